"""The demo of a lock that a failover grants twice."""
