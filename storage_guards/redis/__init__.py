"""The guard of data in Redis: marks beside the data, checked by the script that writes."""
