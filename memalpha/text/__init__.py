"""Texts: token ids, quotation where they are not trusted, what a model thinks, and times."""
