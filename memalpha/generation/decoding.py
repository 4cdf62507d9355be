"""Decoding: one step for all rows, over buffers that stay where they are.

A step writes the keys and values of each row's last token, draws the next one, and records it.
It neither waits for the device nor asks the host anything. So on CUDA it is captured once for a
number of rows and slots, as a graph, and replayed: a token of a small model is some 2,000 small
operations, which take longer to start than to compute. The graph holds addresses, not values:
weights that an optimizer changes in place are the ones that it reads.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from memalpha.generation.products import Products, using
from memalpha.types import Sampling

# ------------------------------------------------------------------------------------------------
# the cache of keys and values
# It starts from a shared prefix, is written in place, and drops ended rows. transformers'
# ``DynamicCache`` copies all keys and values at each step; these buffers are allocated once.


class Room:
    """Memory of a cache that is kept between calls: two flat tensors a layer, which only grow."""

    def __init__(self) -> None:
        self.flat: dict[tuple[int, str], Tensor] = {}

    def take(self, layer: int, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return a view of this shape, at the address of the last one if that is large enough."""
        flat = self.flat.get((layer, name))
        count = prod(shape)
        fits = flat is not None and flat.numel() >= count
        if flat is None or not fits or (flat.dtype, flat.device) != (like.dtype, like.device):
            flat = self.flat[layer, name] = like.new_empty(count)
        return flat[:count].view(*shape)

    @property
    def size(self) -> int:
        """Bytes held."""
        return sum(flat.numel() * flat.element_size() for flat in self.flat.values())


class BufferLayer(DynamicLayer):  # type: ignore[misc]
    """Buffers of one layer; ``keys`` and ``values`` (rows, heads, slots, head size) fill the first
    of ``capacity`` slots.

    Attention sees the written slots, which are finite, so masked ones do no harm. With ``slot``, a
    tensor (1,) that says which one is written, it sees all.
    """

    def __init__(self, place: int, rows: int, capacity: int, room: Room | None) -> None:
        super().__init__()
        self.is_initialized: bool = False
        self.place = place
        self.rows = rows  # at most
        self.capacity = capacity
        self.room = room
        self.length = 0
        self.slot: Tensor | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write new slots (rows, heads, new slots, head size); return what attention sees."""
        if not self.is_initialized:
            self.keys = self._buffer("keys", key_states)
            self.values = self._buffer("values", value_states)
            self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        if self.slot is not None:
            self.keys.index_copy_(2, self.slot, key_states)
            self.values.index_copy_(2, self.slot, value_states)
            return self.keys, self.values
        end = self.length + key_states.shape[-2]
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _buffer(self, name: str, states: Tensor) -> Tensor:
        rows, heads, _, size = states.shape
        if self.room is None:
            return states.new_empty(rows, heads, self.capacity, size)
        whole = self.room.take(self.place, name, (self.rows, heads, self.capacity, size), states)
        return whole[:rows]

    def get_seq_length(self) -> int:
        """Return the number of slots written."""
        return self.length

    def spread(self, source: Tensor) -> None:
        """Let row i be the row ``source[i]`` of now, in the buffers of all ``rows``; the slots
        not yet written become finite.
        """
        assert self.room is not None
        for name in ("keys", "values"):
            buffer = getattr(self, name)
            _, heads, _, size = buffer.shape
            shape = (len(source), heads, self.capacity, size)
            whole = self.room.take(self.place, name, shape, buffer)
            whole[:, :, : self.length] = buffer[:, :, : self.length][source]
            whole[:, :, self.length :] = 0
            setattr(self, name, whole)

    def moved(self, source: Tensor, places: Tensor) -> "BufferLayer":
        """Move row ``source[i]`` to i for each i of ``places``; return the first ``len(source)``
        rows.
        """
        end = self.length if self.slot is None else self.capacity
        for buffer in (self.keys, self.values):
            buffer[places, :, :end] = buffer[source[places], :, :end]
        first = copy(self)
        first.keys = self.keys[: len(source)]
        first.values = self.values[: len(source)]
        return first


class BufferCache(Cache):  # type: ignore[misc]
    """One :class:`BufferLayer` per layer."""

    def __init__(self, layers: int, rows: int, capacity: int, room: Room | None = None) -> None:
        super().__init__(
            layers=[BufferLayer(place, rows, capacity, room) for place in range(layers)]
        )
        self.capacity = capacity

    def start_from(self, prefixes: Cache, index: Tensor) -> None:
        """Write the cached prefix of each row first; ``index`` (rows,) says which it is."""
        for layer, common in zip(self.layers, prefixes.layers, strict=True):
            layer.update(common.keys[index], common.values[index])

    def fix(self, source: Tensor, slot: Tensor) -> None:
        """Let row i be row ``source[i]``, and write slots where ``slot`` says from now on."""
        for layer in self.layers:
            layer.spread(source)
            layer.slot = slot

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
        slots: int = layer.capacity if layer.slot is not None else layer.length + 1
        return slots


def without_ended(alive: Tensor) -> Tensor:
    """Return the ``source`` for :meth:`BufferCache.select` that fills gaps with the last rows;
    ``alive`` is (rows,) bool.
    """
    rows = torch.arange(len(alive), device=alive.device)
    count = int(alive.sum())
    source = rows[:count].clone()
    source[~alive[:count]] = rows[count:][alive[count:]]
    return source


# ------------------------------------------------------------------------------------------------
# one token


def draw(
    logits: Tensor, sampling: Sampling, uniforms: Tensor, *, logprobs: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Draw one token per row of logits (rows, vocabulary): its uniform number selects in the
    cumulative distribution.

    Returns tokens (rows,) int64 and, if asked for, their log-probabilities (rows,) float32.
    Temperature, top-k, top-p, in this order; log-probabilities are those before top-k and top-p, as
    a policy gradient needs them.
    """
    logits = logits.float()
    if sampling.temperature > 0:
        logits = logits / sampling.temperature
        tokens = _invert(logits, sampling, uniforms)
    else:
        tokens = logits.argmax(-1)
    if not logprobs:
        return tokens, None
    return tokens, logits.gather(-1, tokens[:, None]).squeeze(-1) - logits.logsumexp(-1)


def _invert(logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Tensor:
    likeliest = None
    if sampling.top_k > 0 or sampling.top_p < 1:
        size = logits.shape[-1]
        count = min(sampling.top_k, size) if sampling.top_k > 0 else size
        logits, likeliest = logits.topk(count, dim=-1)
    weights = logits.softmax(-1)
    if sampling.top_p < 1:
        dropped = weights.cumsum(-1) - weights >= sampling.top_p  # likelier tokens have enough mass
        dropped[:, 0] = False
        weights = weights.masked_fill(dropped, 0.0)
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1]
    # Strictly below the total: a token of weight zero is never drawn.
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    choice = torch.searchsorted(cumulative, target[:, None], right=True)
    return (choice if likeliest is None else likeliest.gather(-1, choice)).squeeze(-1)


class Rows(NamedTuple):
    """What a step reads and writes of each of R rows with N new tokens in S slots."""

    uniforms: Tensor  # (R, N)
    tokens: Tensor  # (R, N), drawn so far
    logprobs: Tensor  # (R, N)
    seen: Tensor  # (R, 1, 1, S) bool: slots to attend to
    positions: Tensor  # (R, 1), of the last token
    last: Tensor  # (R, 1), the last token
    alive: Tensor  # (R,) bool: not ended

    def at(self, source: Tensor) -> "Rows":
        """Return the rows ``source``."""
        return Rows(*(field[source] for field in self))


CHECK_EVERY = {"cpu": 1, "else": 16}
"""Tokens after which ended rows leave: looking for them waits for the device."""


class Drawing(NamedTuple):
    """How tokens are drawn; ``ends``: ids that end a row."""

    sampling: Sampling
    ends: tuple[int, ...]
    logprobs: bool


class Step:
    """A step of ``model`` over ``rows`` and ``cache``, after which they hold one token more."""

    def __init__(
        self, model: Any, rows: Rows, cache: BufferCache, slot: Tensor, drawing: Drawing
    ) -> None:
        self.model = model
        self.rows = rows
        self.cache = cache
        self.slot = slot  # (1,): the slot that the last token gets
        self.drawing = drawing
        self.count = torch.zeros_like(slot)  # tokens drawn
        self.ends = torch.tensor(drawing.ends, dtype=torch.long, device=slot.device)
        self.check_every = CHECK_EVERY.get(slot.device.type, CHECK_EVERY["else"])

    def __call__(self) -> None:
        """Compute the logits of the next token, and draw it."""
        rows = self.rows
        rows.seen.index_fill_(3, self.slot, True)
        mask = rows.seen[..., : self.cache.visible]
        if self.model.config._attn_implementation == "eager":  # it adds its mask
            zero = torch.zeros((), dtype=self.model.dtype, device=mask.device)
            mask = torch.where(mask, zero, torch.finfo(zero.dtype).min)
        # four axes: transformers takes the mask as it is, and need not look into it
        output = self.model(
            input_ids=rows.last,
            attention_mask=mask,
            position_ids=rows.positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        rows.positions.add_(1)
        self.slot.add_(1)
        self.draw(output.logits[:, -1])

    def draw(self, logits: Tensor) -> None:
        """Draw a token for each row from its logits (R, vocabulary), and record it."""
        rows = self.rows
        _, ends, logprobs = self.drawing
        uniforms = rows.uniforms.index_select(1, self.count).squeeze(1)
        tokens, values = draw(logits, self.drawing.sampling, uniforms, logprobs=logprobs)
        rows.tokens.index_copy_(1, self.count, tokens[:, None])
        if values is not None:
            rows.logprobs.index_copy_(1, self.count, values[:, None])
        rows.last.copy_(tokens[:, None])
        if ends:
            rows.alive.logical_and_(~torch.isin(tokens, self.ends))
        self.count.add_(1)

    def leaves(self, count: int) -> bool:
        """Whether ended rows leave when ``count`` rows have not ended."""
        return count < len(self.rows.alive)

    def at(self, source: Tensor) -> "Step":
        """Return the step of the rows ``source`` (see :func:`without_ended`)."""
        self.rows = self.rows.at(source)
        self.cache = self.cache.at(source)
        return self


def decode(step: "Step | CapturedStep", count: int) -> tuple[Tensor, Tensor]:
    """Draw what is left of ``count`` rows, the first of a step that has drawn their first tokens;
    return their tokens and log-probabilities (count, N). What follows a row's end is not defined.
    """
    rows = step.rows
    tokens = torch.zeros_like(rows.tokens[:count])
    logprobs = torch.zeros_like(rows.logprobs[:count])
    places = torch.arange(count, device=tokens.device)  # where each row of the step belongs
    for drawn in range(1, tokens.shape[1]):
        if drawn % step.check_every == 0:
            left = int(step.rows.alive.sum())
            if not left:
                break
            if step.leaves(left):
                tokens[places] = step.rows.tokens[: len(places)]
                logprobs[places] = step.rows.logprobs[: len(places)]
                source = without_ended(step.rows.alive)
                step = step.at(source)
                places = places[source]
        step()
    tokens[places] = step.rows.tokens[: len(places)]
    logprobs[places] = step.rows.logprobs[: len(places)]
    return tokens, logprobs


# ------------------------------------------------------------------------------------------------
# captured

PLAIN_MODELS = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
"""Model types of transformers with dense layers, whose logits are the unchanged output of the
head."""
SLOTS = 128
"""Slots of captured steps are rounded up to a multiple of it, so that calls share a graph."""
LEAST_ROWS = 8
SHRINKS = 4
"""Ended rows leave a captured step when so many times fewer are left: each size is captured."""
KEPT_SHARE = 0.25
"""Share of the device's memory up to which the buffers stay after a call."""


def captures(model: Any) -> bool:
    """Whether steps of a model are captured: on CUDA, dense layers of whole weights."""
    if model.device.type != "cuda" or model.config.model_type not in PLAIN_MODELS:
        return False
    sharded = any(hasattr(module, "unshard") for module in model.modules())
    sharded = sharded or any(hasattr(parameter, "ds_id") for parameter in model.parameters())
    quantised = any(parameter.dtype is torch.uint8 for parameter in model.parameters())
    return not sharded and not quantised


def bucket(rows: int) -> int:
    """Return the number of rows, a power of two, that a captured step has for so many."""
    return max(LEAST_ROWS, 1 << (rows - 1).bit_length())


class StepGraphs:
    """Captured steps of a model by shape, kept between calls with what they read and write.

    A graph holds addresses. Whoever changes weights in place (an optimizer, ``load_state_dict``)
    changes what it computes; if a tensor moved, all graphs are made anew.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.room = Room()
        self.rounded = Products()  # adapters, in the type of the products
        self._kept: dict[Any, tuple[Step, Callable[[], None]]] = {}
        self._addresses: tuple[int, ...] = ()
        self._pool: Any = None

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around a call, in which the weights stand still; what they were rounded to is renewed."""
        for (weight, _), copied in self.rounded.items():
            copied.copy_(weight.detach())
        with using(self.rounded):
            yield
        if self.room.size > KEPT_SHARE * _memory(self.model.device):
            self.room.flat.clear()
            self._forget()

    def step(self, plain: Step) -> "CapturedStep":
        """Return a step in the place of ``plain``, whose cache is fixed."""
        addresses = tuple(tensor.data_ptr() for tensor in self._tensors())
        if addresses != self._addresses:
            self._forget()
            self._addresses = addresses
        key = (_shape(plain), _switches(self.model))
        if key not in self._kept:
            self._kept[key] = plain, self._capture(plain)
        step, replay = self._kept[key]
        if step is not plain:
            _restore(step, _state(plain))
        return CapturedStep(self, step, replay)

    def _forget(self) -> None:
        self._kept.clear()
        self._pool = None

    def _tensors(self) -> Iterator[Tensor]:
        yield from self.model.parameters()
        yield from self.room.flat.values()
        yield from self.rounded.values()

    def _capture(self, step: Step) -> Callable[[], None]:
        device = self.model.device
        kind = torch.get_autocast_dtype(device.type)
        casts = torch.is_autocast_enabled(device.type)
        before = [field.clone() for field in _state(step)]
        # what autocast has cast and kept outside would not be renewed
        with torch.autocast(device.type, kind, enabled=casts, cache_enabled=False):
            side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(side):
                step()  # libraries set themselves up in their first call
            torch.cuda.current_stream(device).wait_stream(side)
            _restore(step, before)
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            # a thread that scores meanwhile may use the device
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                step()
        return graph.replay


class CapturedStep:
    """A :class:`Step` that is replayed."""

    check_every = CHECK_EVERY["else"]

    def __init__(self, graphs: StepGraphs, step: Step, replay: Callable[[], None]) -> None:
        self._graphs = graphs
        self._step = step
        self._replay = replay
        self.rows = step.rows
        self.draw = step.draw

    def __call__(self) -> None:
        """Compute the logits of the next token, and draw it."""
        self._replay()

    def leaves(self, count: int) -> bool:
        """Whether ended rows leave when ``count`` rows have not ended."""
        return SHRINKS * bucket(count) <= len(self.rows.alive)

    def at(self, source: Tensor) -> "CapturedStep":
        """Return the step of the rows ``source``, filled up with ended ones."""
        count = len(source)
        others = torch.arange(count, bucket(count), device=source.device)
        source = torch.cat([source, others])
        rows = self.rows.at(source)
        rows.alive[count:] = False
        step = self._step
        cache = step.cache.at(source)
        fewer = Step(step.model, rows, cache, step.slot.clone(), step.drawing)
        fewer.count.copy_(step.count)
        for layer in cache.layers:
            layer.slot = fewer.slot
        return self._graphs.step(fewer)


def _state(step: Step) -> list[Tensor]:
    return [*step.rows, step.slot, step.count]


def _restore(step: Step, state: Sequence[Tensor]) -> None:
    for own, value in zip(_state(step), state, strict=True):
        own.copy_(value)


def _shape(step: Step) -> Any:
    drawing = step.drawing._replace(sampling=replace(step.drawing.sampling, seed=None))
    device = step.slot.device.type
    casts = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
    return step.rows.tokens.shape, step.cache.capacity, drawing, casts


def _switches(model: Any) -> Any:
    """Which adapters each layer uses."""
    layers = [module for module in model.modules() if hasattr(module, "lora_A")]
    return tuple(
        (tuple(layer.active_adapters), layer.disable_adapters, tuple(layer.merged_adapters))
        for layer in layers
    )


def _memory(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).total_memory)
