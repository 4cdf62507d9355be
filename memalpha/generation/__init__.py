"""Completions: one per prompt, from a local transformers model, for one thread or many."""
