"""A paused uploader goes on late: three protocols, the same pause, a real Redis and an S3."""
