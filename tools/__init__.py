"""Programs for those who work on the code; no part of what is installed."""
