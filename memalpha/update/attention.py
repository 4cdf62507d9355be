"""Attention over a packed sequence that skips masked keys: each row attends to its own prefix and
to itself only.

Group by group, the prefix attends to itself, then its rows as a batch to [prefix, own part];
results equal those of a dense mask. Calls without ``prefix_layout`` run plain ``sdpa``, so
generation, saving and evaluation do not change.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "memalpha_prefix"


def share_prefixes(base: Any) -> str:
    """Switch a transformers model to this attention, or return what its own is, if it is not plain
    ``sdpa`` in every layer.
    """
    other = {*(getattr(base.config, "layer_types", None) or ())} - {"full_attention"}
    own = base.config._attn_implementation
    if other or own not in ("sdpa", NAME) or not base._can_set_attn_implementation():
        return f"attention {own!r} with {', '.join(sorted(other)) or 'plain'} layers"
    AttentionInterface.register(NAME, prefix_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    base.set_attn_implementation(NAME)
    return ""


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


def prefix_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    prefix_layout: Sequence[GroupLayout] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as ``sdpa``, or along ``prefix_layout``: query (1, heads, L, size); key, value (1, key
    heads, L, size).
    """
    if prefix_layout is None:
        return sdpa_attention_forward(  # type: ignore[no-any-return]
            module, query, key, value, attention_mask, dropout, scaling, **kwargs
        )
    repeats = query.shape[1] // key.shape[1]
    states = [query, repeat_kv(key, repeats), repeat_kv(value, repeats)]
    parts = []
    for group in prefix_layout:
        if group.own > group.start:
            q, k, v = (state[:, :, group.start : group.own] for state in states)
            parts.append(
                scaled_dot_product_attention(
                    q, k, v, dropout_p=dropout, scale=scaling, is_causal=True
                )
            )
        if group.stop > group.own:
            parts.append(_own_parts(group, states, dropout, scaling))
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def _own_parts(
    group: GroupLayout, states: Sequence[Tensor], dropout: float, scaling: float | None
) -> Tensor:
    """Return (1, heads, tokens of all rows, size): what the rows of a group attend to."""
    _, heads, _, size = states[0].shape
    rows = []
    for state in states:  # to (R, heads, M, size)
        own = state[0, :, group.own : group.stop].index_select(1, group.tokens)
        rows.append(own.view(heads, -1, len(group.allowed), size).transpose(0, 1))
    for place in (1, 2):  # keys and values: (R, heads, P + M, size)
        prefix = states[place][:, :, group.start : group.own].expand(len(rows[0]), -1, -1, -1)
        rows[place] = torch.cat([prefix, rows[place]], dim=2)
    q, k, v = rows
    out = scaled_dot_product_attention(
        q, k, v, attn_mask=group.allowed, dropout_p=dropout, scale=scaling
    )
    return out.transpose(0, 1).reshape(1, heads, -1, size).index_select(2, group.real)
