"""A service owns the data, and a worker that holds the lock is paused while it sends its write."""
