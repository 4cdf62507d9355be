"""Two-layer retrieval over one memory: sections, then entries. Lexical retrieval loads neither torch nor faiss."""
