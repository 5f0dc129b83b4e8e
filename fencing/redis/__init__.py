"""Fences minted by Redis."""
