"""Guards for SQL databases through SQLAlchemy 2."""
