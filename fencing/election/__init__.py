"""The election of a leader: a lock that replicas wait for without end, and whose block is a term."""
