"""SQL databases as locks and storage guards both see them: bounded waits, what differs, what errors mean."""
