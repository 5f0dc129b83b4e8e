"""Locks, leases and renewal. Nothing here knows a backend."""
