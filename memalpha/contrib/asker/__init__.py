"""The asker: a second adapter that answers questions and may search the memory before."""
