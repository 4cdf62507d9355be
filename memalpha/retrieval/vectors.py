"""Vectors of length 1."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from memalpha.errors import InputError

Vectors = NDArray[np.float32]
_ROUNDING = 1e-6  # of the norm of a row


def unit_rows(rows: Vectors) -> Vectors:
    """Return rows at length 1; zero stays zero."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    done = (lengths == 0) | (np.abs(lengths - 1) < _ROUNDING)
    return (rows / np.where(done, 1.0, lengths)).astype(np.float32)


def unit_vector(vector: ArrayLike, dimension: int) -> Vectors:
    """Return a vector at length 1 (zero stays zero).

    InputError unless it holds ``dimension`` finite numbers.
    """
    values = np.asarray(vector, dtype=np.float64)
    if values.shape != (dimension,) or not np.isfinite(values).all():
        raise InputError(
            f"a vector has the shape {values.shape}",
            expected=f"{dimension} finite numbers",
        )
    length = np.linalg.norm(values)
    return (values / length if length else values).astype(np.float32)
