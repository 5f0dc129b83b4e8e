"""Values and rules of fencing. The standard library only; no I/O."""
