"""SQL databases, for locks and storage guards: supported dialects, bounded waits, the meaning of errors."""
