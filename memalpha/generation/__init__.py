"""Generators: one completion per prompt (transformers, an OpenAI-compatible endpoint, a scripted test double)."""
