"""A paused lock holder writes late: three protocols, the same pause, a real Redis and a real PostgreSQL."""
