"""What demos share: processes that can be paused, the screen, how a run starts and ends."""
