"""Locks on a Redis Cluster: where its nodes differ from one Redis."""
