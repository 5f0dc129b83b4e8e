"""Seeded faults of the product, and the tests that find them."""
