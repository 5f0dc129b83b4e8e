"""A partitioned Parquet dataset, one of whose writers is paused: a hand-made latest.json, and publications."""
