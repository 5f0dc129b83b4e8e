"""Records what happens in a demo, and draws it: for the terminal, and as a page with pictures."""
