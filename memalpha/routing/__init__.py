"""Learned routing: policies that choose by a text's embedding: sections to search, adapters to write with, tools to answer with."""
