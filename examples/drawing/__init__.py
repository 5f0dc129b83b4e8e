"""Records what happens in a demo, and draws it: for the terminal, as a page with pictures, as single pictures."""
