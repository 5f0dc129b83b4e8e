"""Runnable examples, and the real servers that they and the tests talk to."""
