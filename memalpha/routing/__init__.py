"""Learned routing: policies that choose by a text's embedding: sections of a memory to search, tools to answer with."""
