"""Guards for object stores: S3, Google Cloud Storage, Azure Blob Storage."""
