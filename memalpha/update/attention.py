"""Attention over a packed sequence: each row attends to its own prefix and to itself only.

A pack is [prefix A][rest of row 1][rest of row 2]...[prefix B]... (``logps.pack_rows``). Results
equal those of a dense mask; masked keys are skipped. Calls without ``prefix_layout`` run plain
``sdpa``, so generation, saving and evaluation do not change.

Three layouts of a pack do the same: :class:`Flash` where flash attention runs,
:class:`TiledProducts` in float32 on a CPU, else :class:`PaddedAttention`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from memalpha.generation.products import multiply
from memalpha.upstream import attention_of, takes_attention

NAME = "memalpha_prefix"
FLASH_HEAD = 256  # largest head size of the kernels
AMPERE = (8, 0)  # the least capability that they run on
TILE = 128  # most query tokens of a tile, which bound its memory and what it masks


def base_model(model: nn.Module) -> Any:
    """Return the transformers model inside DDP and PEFT."""
    inner: Any = getattr(model, "module", model)
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner


def share_prefixes(base: Any) -> str:
    """Switch a transformers model to this attention, or return what its own is, if it is not plain
    ``sdpa`` in every layer.
    """
    other = {*(getattr(base.config, "layer_types", None) or ())} - {"full_attention"}
    own = attention_of(base.config)
    if other or own not in ("sdpa", NAME) or not takes_attention(base):
        return f"attention {own!r} with {', '.join(sorted(other)) or 'plain'} layers"
    # compiled layers stop for it: the lengths of a pack's rows are numbers in it
    attention: Any = torch.compiler.disable(prefix_attention)  # type: ignore[no-untyped-call]
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    base.set_attn_implementation(NAME)
    return ""


class Group(NamedTuple):
    """One group of a pack: its first token, the length of its prefix and of each row's own part."""

    start: int
    prefix: int
    lengths: list[int]


def prefix_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    prefix_layout: "Layout | None" = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as ``sdpa``, or along ``prefix_layout``: query (1, heads, L, size); key, value (1, key
    heads, L, size), where a value may have a size of its own.
    """
    if prefix_layout is None:
        return sdpa_attention_forward(  # type: ignore[no-any-return]
            module, query, key, value, attention_mask, dropout, scaling, **kwargs
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return prefix_layout.attend(query, key, value, dropout, scale), None


class Layout(Protocol):
    """The layout of a pack, which says which tokens attend to which; compiled layers pass it on
    without looking into it.
    """

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, dropout: float, scale: float
    ) -> Tensor:
        """Return what each token attends to, (1, L, heads, size of a value)."""


def layout_of(base: Any, groups: Sequence[Group], device: torch.device) -> Layout:
    """Lay out the groups of a pack, which follow one another, for a transformers model."""
    config = base.config.get_text_config()
    casts = torch.is_autocast_enabled(device.type)
    kind: torch.dtype = torch.get_autocast_dtype(device.type) if casts else base.dtype
    if not getattr(config, "attention_dropout", 0.0):
        if runs_flash(device, kind, head_of(config)):
            return Flash(groups, device, kind)
        if runs_tiles(device, kind):
            return TiledProducts(groups)
    return PaddedAttention(groups, device)


def head_of(config: Any) -> int:
    """Return the size of a query's head; where attention is latent, a part is rotated."""
    if getattr(config, "qk_rope_head_dim", None) and getattr(config, "qk_nope_head_dim", None):
        return int(config.qk_rope_head_dim + config.qk_nope_head_dim)
    own = getattr(config, "head_dim", None)
    return int(own or config.hidden_size // config.num_attention_heads)


def runs_flash(device: torch.device, kind: torch.dtype, head: int) -> bool:
    """Whether flash attention runs on a device, for products in ``kind`` and heads of this size."""
    fits = kind in (torch.float16, torch.bfloat16) and head <= FLASH_HEAD and head % 8 == 0
    if device.type != "cuda" or not fits or not torch.backends.cuda.is_flash_attention_available():
        return False
    return torch.cuda.get_device_capability(device) >= AMPERE


def runs_tiles(device: torch.device, kind: torch.dtype) -> bool:
    """Whether attention is computed in tiles: in float32 on a CPU."""
    return device.type == "cpu" and kind is torch.float32


# ------------------------------------------------------------------------------------------------
# in padded rows


class PaddedAttention:
    """Each prefix attends to itself, then its rows, as a padded batch, to [prefix, own part]."""

    def __init__(self, groups: Sequence[Group], device: torch.device) -> None:
        self.groups = [group_layout(*group, device) for group in groups]

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, dropout: float, scale: float
    ) -> Tensor:
        """Return what each token attends to, (1, L, heads, size)."""
        repeats = query.shape[1] // key.shape[1]
        states = [query, repeat_kv(key, repeats), repeat_kv(value, repeats)]
        parts = []
        for group in self.groups:
            if group.own > group.start:
                q, k, v = (state[:, :, group.start : group.own] for state in states)
                parts.append(
                    scaled_dot_product_attention(
                        q, k, v, dropout_p=dropout, scale=scale, is_causal=True
                    )
                )
            if group.stop > group.own:
                parts.append(_own_parts(group, states, dropout, scale))
        return torch.cat(parts, dim=2).transpose(1, 2).contiguous()


class GroupLayout(NamedTuple):
    """R rows behind one prefix: it spans ``start`` to ``own`` (P tokens), they span ``own`` to
    ``stop``, the longest has M tokens.

    ``tokens`` (R * M,) from ``own``, a shorter row repeats its first at the end; ``real``: entries
    that are no repeats; ``allowed`` (M, P + M) bool: the keys [prefix, own part] a row's tokens
    see.
    """

    start: int
    own: int
    stop: int
    tokens: Tensor
    real: Tensor
    allowed: Tensor


def group_layout(
    start: int, prefix: int, lengths: Sequence[int], device: torch.device
) -> GroupLayout:
    """Lay out a group from its first token, its prefix length (may be 0) and each row's own length
    (0 is left out).
    """
    sizes = torch.tensor([n for n in lengths if n], dtype=torch.long)
    longest = int(sizes.max()) if len(sizes) else 0
    steps = torch.arange(longest)
    inside = steps < sizes[:, None]  # (R, M)
    tokens = (sizes.cumsum(0) - sizes)[:, None] + steps * inside
    own = start + prefix
    return GroupLayout(
        start,
        own,
        stop=own + int(sizes.sum()),
        tokens=tokens.flatten().to(device),
        real=inside.flatten().nonzero().squeeze(-1).to(device),
        allowed=torch.ones(longest, prefix + longest, dtype=torch.bool).tril(prefix).to(device),
    )


def _own_parts(
    group: GroupLayout, states: Sequence[Tensor], dropout: float, scale: float
) -> Tensor:
    """Return (1, heads, tokens of all rows, size of a value): what the rows of a group attend
    to.
    """
    heads = states[0].shape[1]
    rows = []
    for state in states:  # to (R, heads, M, size)
        own = state[0, :, group.own : group.stop].index_select(1, group.tokens)
        rows.append(own.view(heads, -1, len(group.allowed), own.shape[-1]).transpose(0, 1))
    for place in (1, 2):  # keys and values: (R, heads, P + M, size)
        prefix = states[place][:, :, group.start : group.own].expand(len(rows[0]), -1, -1, -1)
        rows[place] = torch.cat([prefix, rows[place]], dim=2)
    q, k, v = rows
    out = scaled_dot_product_attention(
        q, k, v, attn_mask=group.allowed, dropout_p=dropout, scale=scale
    )
    return out.transpose(0, 1).reshape(1, heads, -1, out.shape[-1]).index_select(2, group.real)


# ------------------------------------------------------------------------------------------------
# by flash attention, in two parts


class Flash:
    """Nothing is copied or padded: every prefix and every row's own part is a sequence that attends
    to itself; then the rows of a group attend to their prefix. ``kind``: type of the products.
    """

    def __init__(self, groups: Sequence[Group], device: torch.device, kind: torch.dtype) -> None:
        self.kind = kind
        parts = [n for group in groups for n in (group.prefix, *group.lengths)]
        self.parts = segments(parts, device)
        self.shared = [
            SharedPrefix(
                slice(group.start, group.start + group.prefix),
                slice(group.start + group.prefix, group.start + group.prefix + sum(group.lengths)),
                segments([sum(group.lengths)], device),
                segments([group.prefix], device),
            )
            for group in groups
            if group.prefix and sum(group.lengths)
        ]

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, dropout: float, scale: float
    ) -> Tensor:
        """Return what each token attends to, (1, L, heads, size)."""
        # rotated queries and keys may have the type of the positions
        states = [state[0].transpose(0, 1).to(self.kind) for state in (query, key, value)]
        size = max(state.shape[-1] for state in states)  # the kernels take one: zeros add nothing
        q, k, v = (pad(state, (0, size - state.shape[-1])) for state in states)
        joined: Tensor = FlashAttention.apply(q, k, v, self, scale)  # type: ignore[no-untyped-call]
        return joined[None, ..., : value.shape[-1]]


class Segments(NamedTuple):
    """Sequences that follow one another: where each begins, (S + 1,) int32, and the longest."""

    bounds: Tensor
    longest: int


class SharedPrefix(NamedTuple):
    """The tokens of a prefix and of the rows behind it, and both as sequences."""

    prefix: slice
    own: slice
    queries: Segments
    keys: Segments


def segments(lengths: Sequence[int], device: torch.device) -> Segments:
    """Return sequences of these lengths; those of none are left out."""
    sizes = torch.tensor([0, *(n for n in lengths if n)])
    return Segments(sizes.cumsum(0).int().to(device), max(lengths))


class FlashAttention(torch.autograd.Function):
    """Attention of query (L, heads, size) to key and value (L, key heads, size) along a layout.

    Of two sets of keys with results o1, o2 and logarithms of normalisers z1, z2, the whole has
    z = log(exp z1 + exp z2) and o = exp(z1 - z) o1 + exp(z2 - z) o2 (as FlashAttention-2, section
    3.1). A kernel's backward pass makes the softmax from z, and its row sums from o: given those of
    the whole, each set yields its share of the gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: Flash, scale: float
    ) -> Tensor:
        """Attend within each part, then from the rows of each group to their prefix."""
        out, norms = flash(query, key, value, layout.parts, layout.parts, True, scale)
        for prefix, own, queries, keys in layout.shared:
            more, of_prefix = flash(
                query[own], key[prefix], value[prefix], queries, keys, False, scale
            )
            of_own = norms[:, own]
            both = torch.logaddexp(of_own, of_prefix)
            weight = (of_prefix - both).exp().t()[..., None]
            out[own] = torch.lerp(out[own].float(), more.float(), weight).to(out.dtype)
            norms[:, own] = both
        ctx.save_for_backward(query, key, value, out, norms)
        ctx.layout = layout
        ctx.scale = scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of query, key and value."""
        query, key, value, out, norms = ctx.saved_tensors
        layout = ctx.layout
        grad = grad.contiguous()
        sums = flash_gradient(
            grad, (query, key, value), out, norms, layout.parts, layout.parts, True, ctx.scale
        )
        for prefix, own, queries, keys in layout.shared:
            states = (query[own], key[prefix], value[prefix])
            of_own = norms[:, own].contiguous()
            shares = flash_gradient(
                grad[own], states, out[own], of_own, queries, keys, False, ctx.scale
            )
            for total, place, share in zip(sums, (own, prefix, prefix), shares, strict=True):
                total[place] += share
        return *sums, None, None


def flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    queries: Segments,
    keys: Segments,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return what each sequence of queries attends to (tokens, heads, size), and the logarithms of
    the normalisers (heads, tokens) float32.
    """
    out, norms, *_ = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        queries.bounds,
        keys.bounds,
        queries.longest,
        keys.longest,
        0.0,
        causal,
        False,
        scale=scale,
    )
    return out, norms


def flash_gradient(
    grad: Tensor,
    states: Sequence[Tensor],
    out: Tensor,
    norms: Tensor,
    queries: Segments,
    keys: Segments,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the share of these keys in the gradients of query, key and value (``states``); ``out``
    and ``norms`` are those of all keys.
    """
    state = torch.zeros(2, dtype=torch.uint64, device=grad.device)  # of a dropout, which is off
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._flash_attention_backward(
        grad,
        *states,
        out,
        norms,
        queries.bounds,
        keys.bounds,
        queries.longest,
        keys.longest,
        0.0,
        causal,
        state,
        torch.empty(0, device=grad.device),
        scale=scale,
    )
    return gradients


# ------------------------------------------------------------------------------------------------
# in tiles


class TiledProducts:
    """Dense products of some tokens with all keys that one of them sees, through oneDNN."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.tiles = [tile for group in groups for tile in group_tiles(*group)]

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, dropout: float, scale: float
    ) -> Tensor:
        """Return what each token attends to, (1, L, heads, size)."""
        q, k, v = (state[0].transpose(0, 1) for state in (query, key, value))
        tiled: Tensor = TiledAttention.apply(  # type: ignore[no-untyped-call]
            q, k, v, self.tiles, scale
        )
        return tiled[None]


class Tile(NamedTuple):
    """Query tokens, and the keys that they see: all of a prefix, and own ones unless ``hidden``.

    ``hidden`` (queries, own keys) is 0, or minus infinity where a query does not see a key.
    """

    queries: slice
    prefix: slice
    own: slice
    hidden: Tensor


def group_tiles(start: int, prefix: int, lengths: Sequence[int]) -> list[Tile]:
    """Lay out a group from its first token, its prefix length and each row's own length: the prefix
    as a row of its own, then the rows behind it.
    """
    own = start + prefix
    begins = torch.tensor([0, *lengths]).cumsum(0)[:-1] + own
    of_tokens = begins.repeat_interleave(torch.tensor(lengths))  # where the row of each begins
    of_prefix = torch.full((prefix,), start)
    return [
        *row_tiles(slice(start, start), of_prefix),
        *row_tiles(slice(start, own), of_tokens),
    ]


def row_tiles(prefix: slice, begins: Tensor) -> list[Tile]:
    """Lay out the tokens behind a prefix, which see it and their own row, from ``begins`` (N,)."""
    tiles = []
    for first in range(0, len(begins), TILE):
        of_queries = begins[first : first + TILE, None]
        queries = torch.arange(len(of_queries))[:, None] + prefix.stop + first
        own = slice(int(of_queries[0]), int(queries[-1]) + 1)
        keys = torch.arange(own.start, own.stop)
        sees = (of_queries <= keys) & (keys <= queries)
        hidden = torch.zeros(sees.shape).masked_fill_(~sees, -torch.inf)
        tiles.append(Tile(slice(int(queries[0]), own.stop), prefix, own, hidden))
    return tiles


class TiledAttention(torch.autograd.Function):
    """Attention of query (L, heads, size) to key and value (L, key heads, size) along tiles.

    Heads that share a key head are rows of one product. The backward pass computes the weights
    again, so that memory does not grow with their number.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, tiles: Sequence[Tile], scale: float
    ) -> Tensor:
        """Attend tile by tile."""
        q, k, v = (by_head(state, key.shape[1]) for state in (query, key, value))
        q.mul_(scale)
        out = q.new_empty(*q.shape[:-1], v.shape[-1])
        for tile in tiles:
            for head in range(len(k)):
                weights = _weights(q[head], k[head], tile)
                place = out[head, tile.queries]
                place.copy_(multiply(weights, _keys_of_tile(v[head], tile).t()).view_as(place))
        ctx.save_for_backward(q, k, v)
        ctx.tiles = tiles
        ctx.scale = scale
        return by_token(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of query, key and value."""
        q, k, v = ctx.saved_tensors
        grads = by_head(grad, len(k))
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for tile in ctx.tiles:
            for head in range(len(k)):
                above = grads[head, tile.queries].flatten(0, 1)
                weights = _weights(q[head], k[head], tile)
                change = multiply(above, _keys_of_tile(v[head], tile))
                change = torch._softmax_backward_data(change, weights, -1, weights.dtype)
                place = dq[head, tile.queries]
                place.copy_(multiply(change, _keys_of_tile(k[head], tile).t()).view_as(place))
                # these orientations are the fastest in oneDNN
                of_keys = multiply(q[head, tile.queries].flatten(0, 1).t(), change.t()).t()
                of_values = multiply(above.t(), weights.t()).t()
                shared = tile.prefix.stop - tile.prefix.start
                for total, share in ((dk[head, :, 0], of_keys), (dv[head, :, 0], of_values)):
                    total[tile.prefix] += share[:shared]
                    total[tile.own] += share[shared:]
        dq, dk, dv = (by_token(total) for total in (dq.mul_(ctx.scale), dk, dv))
        return dq, dk, dv, None, None


def by_head(state: Tensor, heads: int) -> Tensor:
    """Copy (L, repeats * heads, size) to (heads, L, repeats, size)."""
    copy = state.new_empty(heads, len(state), state.shape[1] // heads, state.shape[2])
    return copy.copy_(state.view(len(state), heads, -1, state.shape[2]).transpose(0, 1))


def by_token(state: Tensor) -> Tensor:
    """Copy (heads, L, repeats, size) to (L, repeats * heads, size)."""
    return state.transpose(0, 1).flatten(1, 2)


def _keys_of_tile(state: Tensor, tile: Tile) -> Tensor:
    """Return the keys (or values) of a tile, from (L, 1, size) to (M, size)."""
    own = state[tile.own, 0]
    return torch.cat([state[tile.prefix, 0], own]) if tile.prefix.stop > tile.prefix.start else own


def _weights(query: Tensor, key: Tensor, tile: Tile) -> Tensor:
    """Return the softmax over the keys that a query sees: (queries * repeats, M)."""
    scores = multiply(query[tile.queries].flatten(0, 1), _keys_of_tile(key, tile))
    queries, own = tile.hidden.shape
    scores.view(queries, -1, scores.shape[1])[..., -own:].add_(tile.hidden[:, None])
    return scores.softmax(-1)
