"""The guard of files: each resource has a folder with a pointer file, which one rename replaces."""
