"""What retrieval must agree with, computed the slow way and from scratch."""

import bm25s
import numpy as np

from memalpha.retrieval.lexical import search_words


def bm25(texts, query):
    """{id: score} by bm25s over the texts as they are now, indexed afresh."""
    words = [search_words(text) for text in texts.values()]
    number = {
        word: i for i, word in enumerate(dict.fromkeys(word for row in words for word in row))
    }
    known = [number[word] for word in search_words(query) if word in number]
    if not known:
        return dict.fromkeys(texts, 0.0)
    index = bm25s.BM25(k1=1.5, b=0.75, method="lucene", dtype="float64")
    index.index(
        ([[number[word] for word in row] for row in words], number),
        create_empty_token=False,
        show_progress=False,
    )
    return dict(zip(texts, index.get_scores_from_ids(known).tolist(), strict=True))


def ranked(scores, order, k=None, *, decimals, positive=False):
    """Ids by score, then the last of ``order`` first."""
    place = {key: i for i, key in enumerate(order)}
    keys = [key for key in scores if not positive or scores[key] > 0]
    return sorted(keys, key=lambda key: (-round(scores[key], decimals), -place[key]))[:k]


def cosines(vectors, query):
    """{id: vector} -> {id: cosine} by numpy in float64."""
    query = np.asarray(query, dtype=np.float64)
    out = {}
    for key, vector in vectors.items():
        vector = np.asarray(vector, dtype=np.float64)
        norm = np.linalg.norm(vector) * np.linalg.norm(query)
        out[key] = float(vector @ query / norm) if norm else 0.0
    return out


def weighed(dense, lexical):
    """{id: score} of a hybrid search, from cosines and BM25."""
    best = max(lexical.values(), default=0) or 1
    return {key: 0.8 * cosine + 0.2 * lexical[key] / best for key, cosine in dense.items()}
