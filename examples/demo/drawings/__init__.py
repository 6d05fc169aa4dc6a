"""Images drawn by the program, for a demonstration that needs no data."""
