"""Guards for PostgreSQL through psycopg 3."""
