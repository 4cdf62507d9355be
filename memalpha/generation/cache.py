"""Keys and values while completions are drawn: buffers allocated once, and written in place.

transformers' ``DynamicCache`` copies all keys and values at each token. A row's cache is [prefix |
hole] [own prompt part | hole] [new tokens]; ended rows are dropped.
"""

from collections.abc import Callable
from copy import copy
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class Form(NamedTuple):
    """What is the same for all keys and values of a layer; each pair is of keys, and of values,
    which differ where attention is latent.
    """

    heads: tuple[int, int]
    sizes: tuple[int, int]
    types: tuple[torch.dtype, torch.dtype]
    device: torch.device

    def elements(self, slots: int) -> tuple[int, int]:
        """Return how many elements the keys and the values of so many slots have."""
        keys, values = (heads * size for heads, size in zip(self.heads, self.sizes, strict=True))
        return slots * keys, slots * values


class Room:
    """Memory of a cache that is kept between calls; its form is known after the first forward.

    ``forget`` is called before it moves, to let go of what holds its addresses.
    """

    def __init__(self, forget: Callable[[], None]) -> None:
        self.forget = forget
        self.form: Form | None = None
        self.flat: list[Tensor] = []  # keys, then values, each (layers, elements)

    def reserve(self, layers: int, slots: int, form: Form) -> None:
        """Make room for so many slots a layer; what is large enough keeps its address."""
        elements = form.elements(slots)
        if form == self.form and self.flat and self.flat[0].shape[1] >= elements[0]:
            return
        self.forget()
        self.clear()
        self.form = form
        for kind, count in zip(form.types, elements, strict=True):
            tensor = torch.zeros(layers, count, dtype=kind, device=form.device)
            self.flat.append(tensor)

    def clear(self) -> None:
        """Give the memory back."""
        self.form = None
        self.flat = []

    def clean(self) -> None:
        """Let all slots be finite: attention multiplies masked ones, too."""
        for tensor in self.flat:
            tensor.zero_()

    @property
    def size(self) -> int:
        """Bytes held."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.flat)


class BufferLayer(DynamicLayer):  # type: ignore[misc]
    """Buffers of one layer; ``keys`` and ``values`` (rows, heads, slots, size) fill the first of
    ``capacity`` slots.

    New slots come after the last, and attention sees those written, which are finite. With
    ``slots``, a tensor that says where new ones go, it sees all.
    """

    def __init__(self, cache: "BufferCache", place: int) -> None:
        super().__init__()
        self.is_initialized: bool = False
        self.cache = cache
        self.place = place
        self.length = 0
        self.slots: Tensor | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write new slots (rows, heads, new slots, size); return what attention sees."""
        if not self.is_initialized:
            rows, key_heads, _, key_size = key_states.shape
            _, value_heads, _, value_size = value_states.shape
            types = (key_states.dtype, value_states.dtype)
            form = Form((key_heads, value_heads), (key_size, value_size), types, key_states.device)
            self.allocate(rows, form)
        if self.slots is not None:
            self.keys.index_copy_(2, self.slots, key_states)
            self.values.index_copy_(2, self.slots, value_states)
            return self.keys, self.values
        end = self.length + key_states.shape[-2]
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def allocate(self, rows: int, form: Form) -> None:
        """Make the buffers for some rows."""
        capacity = self.cache.capacity
        shapes = [
            (rows, heads, capacity, size)
            for heads, size in zip(form.heads, form.sizes, strict=True)
        ]
        room = self.cache.room
        if room is None:
            self.keys, self.values = (
                torch.empty(shape, dtype=kind, device=form.device)
                for shape, kind in zip(shapes, form.types, strict=True)
            )
        else:
            room.reserve(len(self.cache.layers), self.cache.rows * capacity, form)
            self.keys, self.values = (
                flat[self.place, : prod(shape)].view(shape)
                for shape, flat in zip(shapes, room.flat, strict=True)
            )
        self.form = form
        self.dtype, self.device, self.is_initialized = form.types[0], form.device, True

    def get_seq_length(self) -> int:
        """Return the number of slots written."""
        return self.length

    def spread(self, source: Tensor) -> None:
        """Let row i be the row ``source[i]`` of now."""
        keys, values = self.keys, self.values
        self.allocate(len(source), self.form)
        self.keys[:, :, : self.length] = keys[:, :, : self.length][source]
        self.values[:, :, : self.length] = values[:, :, : self.length][source]

    def moved(self, source: Tensor, places: Tensor) -> "BufferLayer":
        """Move row ``source[i]`` to i for each i of ``places``; return the first ``len(source)``
        rows.
        """
        end = self.length if self.slots is None else self.cache.capacity
        for buffer in (self.keys, self.values):
            buffer[places, :, :end] = buffer[source[places], :, :end]
        first = copy(self)
        first.keys = self.keys[: len(source)]
        first.values = self.values[: len(source)]
        return first


class BufferCache(Cache):  # type: ignore[misc]
    """One :class:`BufferLayer` per layer, for at most ``rows`` rows; in ``room``, if given."""

    def __init__(self, layers: int, rows: int, capacity: int, room: Room | None = None) -> None:
        super().__init__(layers=[BufferLayer(self, place) for place in range(layers)])
        self.rows = rows
        self.capacity = capacity
        self.room = room

    def start_from(self, prefixes: Cache, index: Tensor) -> None:
        """Write the cached prefix of each row first; ``index`` (rows,) says which it is."""
        for layer, common in zip(self.layers, prefixes.layers, strict=True):
            layer.update(common.keys[index], common.values[index])

    def spread(self, source: Tensor) -> None:
        """Let row i be row ``source[i]`` of now."""
        for layer in self.layers:
            layer.spread(source)

    def allocate(self, rows: int) -> None:
        """Make the buffers for some rows, if their form is known."""
        for layer in self.layers:
            if self.room and self.room.form and not layer.is_initialized:
                layer.allocate(rows, self.room.form)

    def copied(self) -> "BufferCache":
        """Return a cache of the same buffers, which writes where this one does now."""
        same = copy(self)
        same.layers = [copy(layer) for layer in self.layers]
        return same

    def write_at(self, slots: Tensor | None, written: int = 0) -> None:
        """Write new slots where ``slots`` (new slots,) says from now on; None: after the last,
        when ``written`` more have been.
        """
        for layer in self.layers:
            layer.slots = slots
            layer.length += written

    def at(self, source: Tensor) -> "BufferCache":
        """Return a cache whose row i is row ``source[i]`` of now, in the same buffers; only rows
        that move are copied.
        """
        rows = torch.arange(len(source), device=source.device)
        places = (source != rows).nonzero().squeeze(-1)
        fewer = copy(self)
        fewer.layers = [layer.moved(source, places) for layer in self.layers]
        return fewer

    @property
    def visible(self) -> int:
        """Slots that the next token attends to, its own included."""
        layer = self.layers[0]
        return self.capacity if layer.slots is not None else int(layer.length) + 1
