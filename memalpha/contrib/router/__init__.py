"""Learned routing by text embedding: which sections of a memory to search, which tool to use."""
