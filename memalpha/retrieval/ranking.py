"""Ranked lists of ids (unique, best first), merging and reciprocal-rank fusion; ties: the entry created last is first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

RRF_CONSTANT = 60
"""Constant of reciprocal-rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009: 60 is near-optimal)."""


class Ranking(NamedTuple):
    """Ids, best first, and their scores."""

    ids: tuple[str, ...]
    scores: tuple[float, ...]

    @classmethod
    def empty(cls) -> Ranking:
        """Return an empty ranking."""
        return cls((), ())


def merge(rankings: Sequence[Ranking], created: Callable[[str], int], k: int) -> Ranking:
    """Merge rankings of disjoint ids by score; at most ``k`` ids. ``created`` breaks ties: a higher number is newer."""
    if len(rankings) == 1:
        return Ranking(rankings[0].ids[:k], rankings[0].scores[:k])
    pairs = [pair for ranking in rankings for pair in zip(ranking.ids, ranking.scores, strict=True)]
    best = sorted(pairs, key=lambda pair: (-pair[1], -created(pair[0])))[:k]
    return Ranking(tuple(key for key, _ in best), tuple(score for _, score in best))


def fuse(rankings: Sequence[Ranking], created: Callable[[str], int], k: int, constant: int = RRF_CONSTANT) -> Ranking:
    """Fuse rankings by reciprocal rank; at most ``k`` ids. ``created`` breaks ties: a higher number is newer.

    score(id) = sum over the rankings that hold it of 1 / (constant + rank), rank from 1.
    """
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, key in enumerate(ranking.ids, start=1):
            scores[key] = scores.get(key, 0.0) + 1.0 / (constant + rank)
    best = sorted(scores, key=lambda key: (-scores[key], -created(key)))[:k]
    return Ranking(tuple(best), tuple(scores[key] for key in best))
