"""What retrieval must agree with, computed the slow way and from scratch."""

import math
import re
from collections import Counter

import numpy as np

from memalpha.retrieval.lexical import STOP_WORDS


def words(text):
    found = re.findall(r"\w+", text.lower())
    return [w for w in found if w not in STOP_WORDS] or found


def bm25(texts, query, k1=1.5, b=0.75):
    """{id: text} -> {id: score}, the formula written out."""
    docs = {key: Counter(words(text)) for key, text in texts.items()}
    n = len(docs)
    mean = sum(sum(d.values()) for d in docs.values()) / n if n else 0
    scores = {}
    for key, doc in docs.items():
        total = 0.0
        for word in words(query):
            df = sum(word in other for other in docs.values())
            if df:
                tf, length = doc[word], sum(doc.values())
                total += (
                    math.log(1 + (n - df + 0.5) / (df + 0.5))
                    * tf
                    / (tf + k1 * (1 - b + b * length / mean))
                )
        scores[key] = total
    return scores


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
