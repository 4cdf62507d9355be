"""A key/value cache for decoding: starts from a prefix that rows share, is written in place, and drops rows that have ended.

transformers' own ``DynamicCache`` copies every key and value of every row at each step to append one; here the buffers are made
once, at their final size, and attention reads a view of the slots written so far. What always holds: the slots of a view have been
written, so a masked slot is finite and cannot spoil a row.

Not covered: sliding-window, linear-attention and compressed caches. Every layer is treated as full attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class BufferLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer in buffers of fixed capacity.

    Args:
        capacity: Slots a row.
        keys: What the first slots hold, (rows, heads, slots, head size), or None to start empty.
        values: The same for the values.
    """

    def __init__(self, capacity: int, keys: Tensor | None = None, values: Tensor | None = None) -> None:
        super().__init__()
        self.is_initialized: bool = False
        self.capacity = capacity
        self.length = 0
        if keys is not None and values is not None:
            self.update(keys, values)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write new slots (rows, heads, new slots, head size); return all written ones, as views."""
        if not self.is_initialized:
            self.keys = key_states.new_empty(*key_states.shape[:2], self.capacity, key_states.shape[-1])
            self.values = value_states.new_empty(*value_states.shape[:2], self.capacity, value_states.shape[-1])
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
        """Keep ``len(source)`` rows: row i becomes row ``source[i]``; ``moved`` lists the i with source[i] != i."""
        for buffer in (self.keys, self.values):
            buffer[moved, :, : self.length] = buffer[source[moved], :, : self.length]
        self.keys, self.values = self.keys[: len(source)], self.values[: len(source)]


class BufferCache(Cache):  # type: ignore[misc]
    """One :class:`BufferLayer` a layer.

    Args:
        layers: Number of layers of the model.
        capacity: Slots a row: prefix, own prompt and new tokens together.
        prefix: Cache of the distinct prefixes, or None.
        index: Which prefix each row starts from, (rows,) int64.
    """

    def __init__(self, layers: int, capacity: int, prefix: Cache | None = None, index: Tensor | None = None) -> None:
        if prefix is None:
            super().__init__(layers=[BufferLayer(capacity) for _ in range(layers)])
        else:
            super().__init__(layers=[BufferLayer(capacity, layer.keys[index], layer.values[index]) for layer in prefix.layers])

    def select(self, source: Tensor) -> None:
        """Keep ``len(source)`` rows: row i becomes row ``source[i]``. Only rows that change place are copied."""
        moved = (source != torch.arange(len(source), device=source.device)).nonzero().squeeze(-1)
        for layer in self.layers:
            layer.select(source, moved)


def without_ended(alive: Tensor) -> Tensor:
    """Return where each remaining row comes from, for :meth:`BufferCache.select`: the last ones move into the gaps.

    Args:
        alive: (rows,) bool.
    """
    rows = torch.arange(len(alive), device=alive.device)
    count = int(alive.sum())
    source = rows[:count].clone()
    source[~alive[:count]] = rows[count:][alive[count:]]
    return source
