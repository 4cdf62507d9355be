"""Decoding: one step for all rows, over buffers that stay where they are.

A step writes the keys and values of each row's last token, draws the next one, and records it.
It neither waits for the device nor asks the host anything. So on CUDA it is captured once for a
number of rows and slots, as a graph, and replayed: a token of a small model is some 2,000 small
operations, which take longer to start than to compute. The graph holds addresses, not values:
weights that an optimizer changes in place are the ones that it reads.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from memalpha.generation.products import Products, using
from memalpha.types import Sampling

# ------------------------------------------------------------------------------------------------
# the cache of keys and values
# It starts from a shared prefix, is written in place, and drops ended rows. transformers'
# ``DynamicCache`` copies all keys and values at each step; these buffers are allocated once.


class Form(NamedTuple):
    """What is the same for all keys and values of a model."""

    heads: int
    size: int
    types: tuple[torch.dtype, torch.dtype]  # of keys, and of values
    device: torch.device


class Room:
    """Memory of a cache that is kept between calls; its form is known after the first forward."""

    def __init__(self) -> None:
        self.form: Form | None = None
        self.flat: list[Tensor] = []  # keys, then values, each (layers, elements)

    def reserve(self, layers: int, elements: int, form: Form) -> None:
        """Make room for so many elements a layer; what is large enough keeps its address."""
        if form != self.form or not self.flat or self.flat[0].shape[1] < elements:
            self.form = form
            self.flat = [
                torch.zeros(layers, elements, dtype=kind, device=form.device) for kind in form.types
            ]

    def clean(self) -> None:
        """Let all slots be finite: attention multiplies masked ones, too."""
        for tensor in self.flat:
            tensor.zero_()

    @property
    def size(self) -> int:
        """Bytes held."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.flat)


class BufferLayer(DynamicLayer):  # type: ignore[misc]
    """Buffers of one layer; ``keys`` and ``values`` (rows, heads, slots, head size) fill the first
    of ``capacity`` slots.

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
        """Write new slots (rows, heads, new slots, head size); return what attention sees."""
        if not self.is_initialized:
            rows, heads, _, size = key_states.shape
            types = (key_states.dtype, value_states.dtype)
            self.allocate(rows, Form(heads, size, types, key_states.device))
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
        shape = (rows, form.heads, self.cache.capacity, form.size)
        room = self.cache.room
        if room is None:
            self.keys, self.values = (
                torch.empty(shape, dtype=kind, device=form.device) for kind in form.types
            )
        else:
            most = prod((self.cache.rows, *shape[1:]))
            room.reserve(len(self.cache.layers), most, form)
            self.keys, self.values = (
                flat[self.place, : prod(shape)].view(shape) for flat in room.flat
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


def without_ended(alive: Tensor) -> Tensor:
    """Return the ``source`` for :meth:`BufferCache.at` that fills gaps with the last rows;
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


class RowState(NamedTuple):
    """What a step reads and writes of each of R rows with N new tokens in S slots."""

    uniforms: Tensor  # (R, N)
    tokens: Tensor  # (R, N), drawn so far
    logprobs: Tensor  # (R, N)
    seen: Tensor  # (R, 1, 1, S) bool: slots to attend to
    positions: Tensor  # (R, 1), of the last token
    last: Tensor  # (R, 1), the last token
    alive: Tensor  # (R,) bool: not ended

    def at(self, source: Tensor) -> "RowState":
        """Return the rows ``source``."""
        return RowState(*(field[source] for field in self))


CHECK_EVERY = {"cpu": 1, "else": 16}
"""Tokens after which ended rows leave: looking for them waits for the device."""


class Drawing(NamedTuple):
    """How tokens are drawn; ``ends``: ids that end a row."""

    sampling: Sampling
    ends: tuple[int, ...]
    logprobs: bool


def forward(
    model: Any,
    ids: Tensor,
    mask: Tensor,
    positions: Tensor,
    cache: BufferCache,
    keep: Tensor | int,
) -> Tensor:
    """Return the logits (R, vocabulary) after the tokens ``keep`` (R, 1) of new ``ids`` (R, W),
    whose keys and values the cache gets; ``mask`` (R, 1, W, slots) bool.
    """
    if model.config._attn_implementation == "eager":  # it adds its mask
        zero = torch.zeros((), dtype=model.dtype, device=mask.device)
        mask = torch.where(mask, zero, torch.finfo(zero.dtype).min)
    # four axes: transformers takes the mask as it is, and need not look into it
    output = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=keep,
    )
    logits: Tensor = output.logits[:, -1]
    return logits


class Read:
    """A forward over new tokens ``ids`` (R, W) of all rows, which come to ``slots`` (W,).

    ``last`` (R, 1) says which token is the last of each row; ``logits`` are those after it.
    """

    def __init__(
        self,
        model: Any,
        cache: BufferCache,
        ids: Tensor,
        seen: Tensor,
        positions: Tensor,
        last: Tensor,
        start: int,
    ) -> None:
        self.model = model
        self.cache = cache
        self.ids = ids
        self.positions = positions
        self.last = last
        self.slots = torch.arange(start, start + ids.shape[1], device=ids.device)
        every = torch.arange(cache.capacity, device=ids.device)
        # of the row's tokens, those that are not later
        self.mask = seen[:, None, None] & (every <= self.slots[:, None])
        self.logits: Tensor | None = None

    def __call__(self) -> None:
        """Compute the logits."""
        logits = forward(self.model, self.ids, self.mask, self.positions, self.cache, self.last)
        if self.logits is None:
            self.logits = logits.clone()
        self.logits.copy_(logits)

    @property
    def state(self) -> list[Tensor]:
        """All that it reads, but for the cache."""
        return [self.ids, self.positions, self.last, self.slots, self.mask]

    @property
    def shape(self) -> Hashable:
        """What is the same for all that one graph serves."""
        return self.ids.shape, self.cache.capacity


class Step:
    """A step of ``model`` over ``rows`` and ``cache``, after which they hold one token more."""

    def __init__(
        self, model: Any, rows: RowState, cache: BufferCache, slot: Tensor, drawing: Drawing
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
        logits = forward(self.model, rows.last, mask, rows.positions, self.cache, 1)
        rows.positions.add_(1)
        self.slot.add_(1)
        self.draw(logits)

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

    @property
    def state(self) -> list[Tensor]:
        """All that it reads and writes, but for the cache."""
        return [*self.rows, self.slot, self.count]

    @property
    def shape(self) -> Hashable:
        """What is the same for all steps that one graph serves."""
        drawing = self.drawing._replace(sampling=replace(self.drawing.sampling, seed=None))
        return self.rows.tokens.shape, self.cache.capacity, drawing

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
WIDTH = 64
"""Slots of captured forwards, and the tokens that they read, are rounded up to a multiple of these,
so that calls share a graph."""
READ_TOKENS = 2**14
"""Tokens up to which reading a prompt is captured: more take longer to compute than to start."""
SHRINKS = 4
"""Ended rows leave a captured step when so many times fewer are left: each size is captured."""
KEPT_SHARE = 0.25
"""Share of the device's memory up to which the buffers stay after a call."""


def window_of(config: Any) -> int | None:
    """Return how many tokens a layer of a model looks back at most; None for all."""
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None) or ("sliding_attention",)
    return getattr(text, "sliding_window", None) if "sliding_attention" in kinds else None


def captures(model: Any) -> bool:
    """Whether forwards of a model are captured: on CUDA, dense layers of whole weights."""
    known = model.config.model_type in PLAIN_MODELS and window_of(model.config) is None
    if model.device.type != "cuda" or not known:
        return False
    sharded = any(hasattr(module, "unshard") for module in model.modules())
    sharded = sharded or any(hasattr(parameter, "ds_id") for parameter in model.parameters())
    quantised = any(parameter.dtype is torch.uint8 for parameter in model.parameters())
    return not sharded and not quantised


def bucket(rows: int) -> int:
    """Return the number of rows, a power of two, that a captured forward has for so many."""
    return 1 << (rows - 1).bit_length()


def rounded_up(count: int, unit: int) -> int:
    """Return the next multiple of ``unit``."""
    return -(-count // unit) * unit


Unit = TypeVar("Unit", Step, Read)


class Graphs:
    """Captured forwards of a model by shape, kept between calls with what they read and write.

    A graph holds addresses. Whoever changes weights in place (an optimizer, ``load_state_dict``)
    changes what it computes; if a tensor moved, all graphs are made anew.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.room = Room()
        self.rounded = Products()  # adapters, in the type of the products
        self._kept: dict[Any, tuple[Any, Callable[[], None]]] = {}
        self._met: set[Any] = set()
        self._adapters: Hashable = ()  # which ones each layer uses
        self._addresses: tuple[int, ...] = ()
        self._pool: Any = None

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around a call, in which the weights stand still; what they were rounded to is renewed."""
        if self.rounded:
            weights = [weight.detach() for weight, _ in self.rounded]
            torch._foreach_copy_(list(self.rounded.values()), weights)
        layers = [module for module in self.model.modules() if hasattr(module, "lora_A")]
        self._adapters = tuple((*layer.active_adapters, layer.disable_adapters) for layer in layers)
        with using(self.rounded):
            yield
        if self.room.size > KEPT_SHARE * _memory(self.model.device):
            self.room.flat = []
            self._forget()

    def read(self, cache: BufferCache, *given: Any) -> Tensor:
        """Return the logits of a :class:`Read`: captured when its shape comes again."""
        read = Read(self.model, cache, *given)
        cache.allocate(len(read.ids))
        cache.write_at(read.slots)
        key = self._key(read)
        if key in self._met:
            read, replay = self.captured(read)
            replay()
        else:
            self._met.add(key)
            read()
        cache.write_at(None, read.ids.shape[1])
        assert read.logits is not None
        return read.logits

    def step(self, plain: Step) -> "CapturedStep":
        """Return a captured step in the place of this one."""
        plain.cache.write_at(plain.slot)
        return CapturedStep(self, *self.captured(plain))

    def captured(self, unit: Unit) -> tuple[Unit, Callable[[], None]]:
        """Return what was captured for the shape of ``unit``, in its state, and what replays it."""
        addresses = tuple(tensor.data_ptr() for tensor in self._tensors())
        if addresses != self._addresses:
            self._forget()
            self._addresses = addresses
        key = self._key(unit)
        if key not in self._kept:
            unit.cache = unit.cache.copied()
            self._kept[key] = unit, self._capture(unit)
        kept: tuple[Unit, Callable[[], None]] = self._kept[key]
        if kept[0] is not unit:
            _copy(unit.state, kept[0].state)
        return kept

    def _forget(self) -> None:
        self._kept.clear()
        self._pool = None

    def _tensors(self) -> Iterator[Tensor]:
        yield from self.model.parameters()
        yield from self.rounded.values()
        yield from self.room.flat

    def _key(self, unit: Step | Read) -> Hashable:
        device = self.model.device.type
        casts = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
        return type(unit), unit.shape, casts, self._adapters

    def _capture(self, unit: Step | Read) -> Callable[[], None]:
        device = self.model.device
        kind = torch.get_autocast_dtype(device.type)
        casts = torch.is_autocast_enabled(device.type)
        before = [tensor.clone() for tensor in unit.state]
        # what autocast has cast and kept outside would not be renewed
        with torch.autocast(device.type, kind, enabled=casts, cache_enabled=False):
            side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(side):
                unit()  # libraries set themselves up in their first call
            torch.cuda.current_stream(device).wait_stream(side)
            _copy(before, unit.state)
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            # a thread that scores meanwhile may use the device
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                unit()
        return graph.replay


class CapturedStep:
    """A :class:`Step` that is replayed."""

    check_every = CHECK_EVERY["else"]

    def __init__(self, graphs: Graphs, step: Step, replay: Callable[[], None]) -> None:
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
        fewer = Step(step.model, rows, step.cache.at(source), step.slot.clone(), step.drawing)
        fewer.count.copy_(step.count)
        return self._graphs.step(fewer)


def _copy(values: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    for value, tensor in zip(values, tensors, strict=True):
        tensor.copy_(value)


def _memory(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).total_memory)
