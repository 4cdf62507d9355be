"""Two-layer retrieval over one memory: which sections to look in, then which entries inside them.

``two_layer`` is what the rest of the package uses; ``lexical`` (BM25), ``index`` (FAISS) and ``dense`` (layer 1 in vector space)
serve it; ``embedders`` turn texts into vectors. Lexical retrieval loads neither torch nor faiss.
"""
