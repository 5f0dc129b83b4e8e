"""The reference guard: marks and data in the memory of one process."""
