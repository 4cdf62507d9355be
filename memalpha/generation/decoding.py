"""Decoding: one step for all rows, over tensors that stay where they are.

A step writes the keys and values of each row's last token, draws the next one, and records it. It
neither waits for the device nor asks the host anything, so that it can be captured (graphs.py).
"""

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from memalpha.generation.cache import BufferCache
from memalpha.types import Sampling
from memalpha.upstream import attention_of, cache_argument

if TYPE_CHECKING:
    from memalpha.generation.graphs import CapturedStep


def draw_tokens(
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
    """The tensors that a step reads and writes for each of R rows, with N new tokens in S slots."""

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
    whose keys and values the cache gets; ``mask`` (R, 1, W, slots) bool says what each token sees,
    or (R, slots) int64 which slots count: transformers looks into that, and hides later ones.
    """
    if mask.dtype is torch.bool and attention_of(model.config) == "eager":  # it adds masks
        zero = torch.zeros((), dtype=model.dtype, device=mask.device)
        mask = torch.where(mask, zero, torch.finfo(zero.dtype).min)
    output = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions,
        **{cache_argument(): cache},
        use_cache=True,
        logits_to_keep=keep,
    )
    logits: Tensor = output.logits[:, -1]
    return logits


class ForwardInput:
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
        self.seen = seen
        self.positions = positions
        self.last = last
        self.slots = torch.arange(start, start + ids.shape[1], device=ids.device)
        self.logits: Tensor | None = None

    def __call__(self) -> None:
        """Compute the logits."""
        every = torch.arange(self.cache.capacity, device=self.slots.device)
        # of the row's tokens, those that are not later
        mask = self.seen[:, None, None] & (every <= self.slots[:, None])
        logits = forward(self.model, self.ids, mask, self.positions, self.cache, self.last)
        if self.logits is None:
            self.logits = logits.clone()
        else:
            self.logits.copy_(logits)

    @property
    def state(self) -> list[Tensor]:
        """All that it reads, but for the cache."""
        return [self.ids, self.seen, self.positions, self.last, self.slots]

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
        tokens, values = draw_tokens(logits, self.drawing.sampling, uniforms, logprobs=logprobs)
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
                source = without_ended(step.rows.alive, left)
                step = step.at(source)
                places = places[source]
        step()
    tokens[places] = step.rows.tokens[: len(places)]
    logprobs[places] = step.rows.logprobs[: len(places)]
    return tokens, logprobs


def without_ended(alive: Tensor, count: int) -> Tensor:
    """Return the ``source`` for :meth:`BufferCache.at` that fills gaps with the last rows:
    ``count`` of ``alive`` (rows,) bool are true.
    """
    rows = torch.arange(len(alive), device=alive.device)
    source = rows[:count].clone()
    source[~alive[:count]] = rows[count:][alive[count:]]
    return source
