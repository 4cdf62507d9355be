"""Generation: one completion a prompt, behind one protocol (transformers, an OpenAI-compatible endpoint, a scripted double)."""
