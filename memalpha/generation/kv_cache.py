"""A key/value cache for decoding: it starts from a shared prefix, is written in place, and drops
ended rows.

``DynamicCache`` of transformers copies all keys and values at each step; these buffers are
allocated once. Every slot that attention sees has been written, so masked slots are finite. Not
covered: sliding-window, linear-attention and compressed caches.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class BufferLayer(DynamicLayer):  # type: ignore[misc]
    """Buffers of one layer; ``keys`` and ``values`` (rows, heads, slots, head size) fill the first
    of ``capacity`` slots.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.is_initialized: bool = False
        self.capacity = capacity
        self.length = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write new slots (rows, heads, new slots, head size); return views of all written ones."""
        if not self.is_initialized:
            self.keys = key_states.new_empty(
                *key_states.shape[:2], self.capacity, key_states.shape[-1]
            )
            self.values = value_states.new_empty(
                *value_states.shape[:2], self.capacity, value_states.shape[-1]
            )
            self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        end = self.length + key_states.shape[-2]
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        """Return the number of slots written."""
        return self.length

    def select(self, source: Tensor, moved: Tensor) -> None:
        """Keep ``len(source)`` rows: row i becomes row ``source[i]``; ``moved`` lists the i with
        source[i] != i.
        """
        for buffer in (self.keys, self.values):
            buffer[moved, :, : self.length] = buffer[source[moved], :, : self.length]
        self.keys, self.values = self.keys[: len(source)], self.values[: len(source)]


class BufferCache(Cache):  # type: ignore[misc]
    """One :class:`BufferLayer` per layer."""

    def __init__(self, layers: int, capacity: int) -> None:
        super().__init__(layers=[BufferLayer(capacity) for _ in range(layers)])

    def start_from(self, prefixes: Cache, index: Tensor) -> None:
        """Write the cached prefix of each row first; ``index`` (rows,) says which it is."""
        for layer, common in zip(self.layers, prefixes.layers, strict=True):
            layer.update(common.keys[index], common.values[index])

    def select(self, source: Tensor) -> None:
        """Keep ``len(source)`` rows: row i becomes row ``source[i]``. Only rows that move are
        copied.
        """
        moved = (source != torch.arange(len(source), device=source.device)).nonzero().squeeze(-1)
        for layer in self.layers:
            layer.select(source, moved)


def without_ended(alive: Tensor) -> Tensor:
    """Return the ``source`` for :meth:`BufferCache.select` that fills gaps with the last rows;
    ``alive`` is (rows,) bool.
    """
    rows = torch.arange(len(alive), device=alive.device)
    count = int(alive.sum())
    source = rows[:count].clone()
    source[~alive[:count]] = rows[count:][alive[count:]]
    return source
