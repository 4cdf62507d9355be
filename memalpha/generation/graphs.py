"""Forwards captured as CUDA graphs, and drawing with them.

A token of a small model is some 2,000 small operations, which take longer to start than to compute.
So on CUDA a forward is captured once for a number of rows and slots, and replayed. The graph holds
addresses, not values: weights that an optimizer changes in place are the ones that it reads.
"""

import logging
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import Tensor

from memalpha.agent.context import window_of
from memalpha.generation.cache import BufferCache, Room
from memalpha.generation.decoding import CHECK_EVERY, ForwardInput, Step
from memalpha.generation.products import Products, using

_logger = logging.getLogger(__name__)

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
MOST_KEPT = 64
"""Graphs of a model that are kept."""
CAPTURING = threading.Lock()
"""Held while something is captured: one at a time in a process; and none empties torch's cache."""


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


Unit = TypeVar("Unit", Step, ForwardInput)


class Graphs:
    """Captured forwards of a model by shape, kept between calls with what they read and write.

    A graph holds addresses. Whoever changes weights in place (an optimizer, ``load_state_dict``)
    changes what it computes; if a tensor moved, all graphs are made anew.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.room = Room(self._forget)
        self.rounded = Products()  # adapters, in the type of the products
        self._kept: dict[Hashable, tuple[Any, Callable[[], None]]] = {}
        self._met: set[Hashable] = set()
        self._mode: Hashable = ()  # how the model casts
        self._adapters: Hashable = ()  # which ones each layer uses
        self._addresses: tuple[int, ...] = ()
        self._pool: Any = None
        self._stream: Any = None
        self._fails = False

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around a call, in which the weights stand still; what they were rounded to is renewed."""
        if self.rounded:
            weights = [weight.detach() for weight, _ in self.rounded]
            torch._foreach_copy_(list(self.rounded.values()), weights)
        device = self.model.device
        casts = torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type)
        mode = (casts, "forward" in vars(self.model))  # accelerate puts its own one there
        if mode != self._mode:  # keys and values may have another type
            self._release()
            self._mode = mode
        layers = [module for module in self.model.modules() if hasattr(module, "lora_A")]
        self._adapters = tuple(
            (*layer.active_adapters, layer.disable_adapters, *layer.merged_adapters)
            for layer in layers
        )
        try:
            with using(self.rounded):
                yield
        except BaseException:
            self._release()
            raise
        if self.room.size > KEPT_SHARE * _memory(device):
            self._release()

    def read(self, cache: BufferCache, *given: Any) -> Tensor:
        """Return the logits of a :class:`Read`: captured when its shape comes again."""
        read = ForwardInput(self.model, cache, *given)
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
        if addresses != self._addresses or len(self._kept) >= MOST_KEPT:
            self._forget()
            self._addresses = addresses
        key = self._key(unit)
        if key not in self._kept:
            unit.cache = unit.cache.copied()
            self._kept[key] = unit, self._replay_of(unit)
        kept: tuple[Unit, Callable[[], None]] = self._kept[key]
        if kept[0] is not unit:
            _copy(unit.state, kept[0].state)
        return kept

    def _forget(self) -> None:
        self._kept.clear()
        self._met.clear()
        self._pool = None

    def _release(self) -> None:
        self._forget()
        self.room.clear()

    def _tensors(self) -> Iterator[Tensor]:
        yield from self.model.parameters()
        yield from self.rounded.values()
        yield from self.room.flat

    def _key(self, unit: Step | ForwardInput) -> Hashable:
        return type(unit), unit.shape, self._adapters

    def _replay_of(self, unit: Step | ForwardInput) -> Callable[[], None]:
        if not self._fails:
            try:
                with CAPTURING:
                    return self._capture(unit)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                message = (
                    "completions are drawn slowly, since CUDA cannot capture a forward pass (%s)"
                )
                _logger.warning(message, error)
                self._fails = True
        return unit

    def _capture(self, unit: Step | ForwardInput) -> Callable[[], None]:
        device = self.model.device
        before = [tensor.clone() for tensor in unit.state]
        own: Any = torch.cuda.current_stream(device)
        # torch's stream for captures is that of the first device; a pool stays with its stream
        self._stream = self._stream or torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(own)
        with torch.cuda.stream(self._stream):
            unit()  # libraries set themselves up in their first call
        own.wait_stream(self._stream)
        _copy(before, unit.state)
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        options = {
            "pool": self._pool,
            "stream": self._stream,
            "capture_error_mode": "thread_local",  # another thread may score meanwhile
        }
        # autocast keeps casts of weights: those from outside would not be renewed in a replay, and
        # those made here belong to the graph
        torch.clear_autocast_cache()
        try:
            with torch.cuda.stream(own), torch.cuda.graph(graph, **options):
                unit()
        except RuntimeError:
            with suppress(RuntimeError):  # torch leaves its allocator capturing
                torch._C._cuda_endAllocateToPool(device.index or 0, self._pool)
            self._pool = None
            raise
        finally:
            torch.clear_autocast_cache()
        return graph.replay


class CapturedStep:
    """A :class:`Step` that is replayed."""

    def __init__(self, graphs: Graphs, step: Step, replay: Callable[[], None]) -> None:
        self._graphs = graphs
        self._step = step
        self._replay = replay
        self.rows = step.rows
        self.draw = step.draw
        self.check_every = CHECK_EVERY["else"]

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
