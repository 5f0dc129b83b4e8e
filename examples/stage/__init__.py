"""What demos have in common: processes that can be stopped, what a person sees, and how a run begins and ends."""
