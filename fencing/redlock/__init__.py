"""The coordinator of several independent Redis servers, of which a majority must agree."""
