"""A ranked list of ids, the merging of several of them, and their fusion by reciprocal rank.

What always holds: ids of a ranking are unique and its scores never rise. Ties are broken by the one rule used everywhere in this
folder: the higher score first, then the entry that was created last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

RRF_CONSTANT = 60
"""The constant of reciprocal-rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009, who found 60 near-optimal)."""


class Ranking(NamedTuple):
    """Ids, best first, and the score of each."""

    ids: tuple[str, ...]
    scores: tuple[float, ...]

    @classmethod
    def empty(cls) -> Ranking:
        """Return a ranking of nothing."""
        return cls((), ())


def merge(rankings: Sequence[Ranking], created: Callable[[str], int], k: int) -> Ranking:
    """Merge rankings of different ids by one and the same score.

    Args:
        rankings: The rankings; no id in two of them.
        created: A number of each ranked id that is higher the later it was created; breaks ties.
        k: How many ids to keep.

    Returns:
        At most ``k`` ids, best first.
    """
    if len(rankings) == 1:
        return Ranking(rankings[0].ids[:k], rankings[0].scores[:k])
    pairs = [pair for ranking in rankings for pair in zip(ranking.ids, ranking.scores, strict=True)]
    best = sorted(pairs, key=lambda pair: (-pair[1], -created(pair[0])))[:k]
    return Ranking(tuple(key for key, _ in best), tuple(score for _, score in best))


def fuse(rankings: Sequence[Ranking], created: Callable[[str], int], k: int, constant: int = RRF_CONSTANT) -> Ranking:
    """Fuse rankings by reciprocal rank: score(id) = sum over the rankings that hold it of 1 / (constant + rank), rank from 1.

    Args:
        rankings: The rankings; their scores are not looked at.
        created: A number of each ranked id that is higher the later it was created; breaks ties.
        k: How many ids to keep.
        constant: Higher weighs the first ranks less.

    Returns:
        At most ``k`` ids, best first.
    """
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, key in enumerate(ranking.ids, start=1):
            scores[key] = scores.get(key, 0.0) + 1.0 / (constant + rank)
    best = sorted(scores, key=lambda key: (-scores[key], -created(key)))[:k]
    return Ranking(tuple(best), tuple(scores[key] for key in best))
