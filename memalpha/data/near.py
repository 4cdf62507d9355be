"""Texts by MinHash (``datasketch``): is one nearly equal to one that was added?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from datasketch import MinHash
    from numpy.typing import NDArray

THRESHOLD = 0.7
"""Estimated Jaccard similarity from which two texts are nearly equal."""

PERMUTATIONS = 128
"""Random permutations of a MinHash."""


class NearIndex:
    """Texts as the sets of their pieces, each with what must be shared with it besides (None = nothing)."""

    def __init__(self) -> None:
        self._index: Any = None
        self._held: list[tuple[NDArray[np.uint64], frozenset[str] | None]] = []

    def add(self, pieces: list[bytes], shared: frozenset[str] | None = None) -> None:
        """Add a text."""
        from datasketch import MinHashLSH

        if self._index is None:
            # More weight on misses than on false candidates: these are thrown out by the estimate below.
            self._index = MinHashLSH(threshold=THRESHOLD, num_perm=PERMUTATIONS, weights=(0.1, 0.9))
        signature = _signature(pieces)
        self._index.insert(len(self._held), signature)
        self._held.append((signature.hashvalues.copy(), shared))

    def has(self, pieces: list[bytes], shared: frozenset[str] | None = None) -> bool:
        """Whether a text is nearly equal to one that was added, and has in common with it what that one asks for."""
        if self._index is None:
            return False
        signature = _signature(pieces)
        for number in sorted(self._index.query(signature)):
            held, needed = self._held[number]
            alike = float((held == signature.hashvalues).mean())  # estimates the Jaccard similarity
            if alike >= THRESHOLD and (needed is None or needed & (shared or frozenset())):
                return True
        return False


def _signature(pieces: list[bytes]) -> MinHash:
    from datasketch import MinHash

    signature = MinHash(num_perm=PERMUTATIONS, seed=1)
    signature.update_batch(pieces)
    return signature


__all__ = ["PERMUTATIONS", "THRESHOLD", "NearIndex"]
