"""Log-probabilities of completions with the common prompt prefix computed once, and an exact gradient.

Rows whose first ``shared`` prompt ids are equal stand behind one copy of that prefix, in one sequence of batch size 1:

    [prefix A][rest of row 1][rest of row 2]...[prefix B][rest of row 3]...

Each row sees its prefix and itself, causally, and no other row; positions restart after the prefix for each row. So every number
equals that of a plain forward over the row alone, there is no padding, and the prefix costs one forward and one backward whatever
the number of rows. Logits are computed only where they predict a completion token.

What always holds: the result of a row does not depend on which rows it is packed with (up to rounding); ids are used as given and
nothing is truncated. Values follow TRL: logits are divided by the temperature before the log-softmax, entropies are those of the
same distribution, in nats, and carry no gradient.

A model loaded with ``sdpa`` is switched, at its first packed call and for good, to the attention of
:mod:`memalpha.training.prefix_attention`, which leaves out what the mask hides and is ``sdpa`` itself in every other call; a model
with ``eager`` attention gets the mask. In the same way its LoRA layers and norms get the passes of
:mod:`memalpha.training.fast_layers`, which run with a gradient only. A frozen LM head is left out of the forward pass:
:mod:`memalpha.training.logprobs` scores its input.

Not covered: models whose layers are not all full attention (sliding window, linear attention), and attention kernels that take no
mask of four dimensions (flash attention); :func:`check_packable` refuses both with a clear error.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from memalpha.errors import InputError
from memalpha.training import prefix_attention
from memalpha.training.fast_layers import use_fast_layers
from memalpha.training.logprobs import TokenScores, frozen_head, hidden_scores, hidden_states_only, token_scores

if TYPE_CHECKING:
    from torch import nn
from torch.nn.utils.rnn import pad_sequence


class Row(NamedTuple):
    """One prompt and its completion, as token ids.

    Attributes:
        prompt_ids: The prompt; at least one id.
        completion_ids: What is scored; may be empty.
        shared: How many leading prompt ids may be shared with rows whose first ``shared`` ids are equal.
    """

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    shared: int = 0


class PackedLogps(NamedTuple):
    """Scores of the completions, one float tensor of shape (completion length,) for each row, in order.

    Attributes:
        logps: Log-probability of each completion token, with gradient.
        entropies: Entropy (nats) of the distribution each completion token was drawn from, without gradient; None if not asked for.
    """

    logps: list[Tensor]
    entropies: list[Tensor] | None


class Group(NamedTuple):
    """One group of a pack: its first token, the tokens of its prefix and those of each row's own part."""

    start: int
    prefix: int
    lengths: list[int]


class Pack(NamedTuple):
    """One packed sequence of L tokens that predicts N completion tokens.

    Attributes:
        input_ids: (1, L) int64.
        position_ids: (1, L) int64; restart after the prefix for each row.
        allowed: (L, L) bool; whether the query (first axis) sees the key (second axis).
        predictors: (N,) int64; index into the sequence of the token that predicts each completion token.
        targets: (N,) int64; the completion tokens, row after row.
        lengths: Completion length of each row; sums to N.
        groups: The groups, in the order of the sequence, which they cover.
    """

    input_ids: Tensor
    position_ids: Tensor
    allowed: Tensor
    predictors: Tensor
    targets: Tensor
    lengths: list[int]
    groups: list[Group]


def packed_logps(
    model: nn.Module, rows: Sequence[Row], *, temperature: float = 1.0, compute_entropy: bool = False, max_tokens: int = 0
) -> PackedLogps:
    """Score the completions of ``rows``; differentiable.

    Args:
        model: A transformers causal LM, plain, PEFT-wrapped or inside DDP (it is called, never taken apart).
        rows: In any order; rows with an equal shared prefix need not be neighbours.
        temperature: Logits are divided by it; above 0.
        compute_entropy: Whether to return entropies.
        max_tokens: Tokens a forward, see :func:`split_rows`; 0 = one forward for all rows.

    Raises:
        InputError: A row has an empty prompt or a bad ``shared``, the temperature is not positive, or the model cannot take
            packed sequences.
    """
    if not temperature > 0:
        raise InputError(f"temperature {temperature}", expected="a number above 0", fix="use 1.0 for greedy completions")
    check_packable(model)
    logps: list[Tensor] = [torch.empty(0)] * len(rows)
    entropies = list(logps)
    for indices in split_rows(rows, max_tokens):
        pack = pack_rows([rows[i] for i in indices])
        values, entropy = _score(model, pack, temperature, compute_entropy)
        for i, value, row_entropy in zip(
            indices, torch.split(values, pack.lengths), torch.split(entropy, pack.lengths), strict=True
        ):
            logps[i], entropies[i] = value, row_entropy
    return PackedLogps(logps, entropies if compute_entropy else None)


def split_rows(rows: Sequence[Row], max_tokens: int = 0) -> list[list[int]]:
    """Split rows into packs of at most ``max_tokens`` tokens; returns the row indices of each pack.

    Rows with an equal shared prefix stay together as far as the budget allows (a group that is split has its prefix in each part).
    A single row above the budget makes a pack of its own. The split depends on the rows and the budget alone. 0 = one pack.
    """
    order: dict[tuple[int, ...], list[int]] = {}
    for i, row in enumerate(rows):
        order.setdefault(_prefix(row), []).append(i)
    packs: list[list[int]] = []
    used = 0
    for prefix, members in order.items():
        fresh = True
        for i in members:
            own = _own_length(rows[i])
            cost = own + (len(prefix) if fresh else 0)
            if not packs or (max_tokens and used + cost > max_tokens):
                packs.append([])
                used, cost = 0, own + len(prefix)
            packs[-1].append(i)
            used += cost
            fresh = False
    return packs


def pack_rows(rows: Sequence[Row]) -> Pack:
    """Lay rows out in one sequence, group by group; ``targets`` and ``lengths`` keep the order of the rows. All on the CPU."""
    members: dict[tuple[int, ...], list[int]] = {}
    for i, row in enumerate(rows):
        members.setdefault(_prefix(row), []).append(i)
    ids: list[int] = []
    positions: list[int] = []
    groups: list[Group] = []
    predictors: list[list[int]] = [[]] * len(rows)
    for prefix, indices in members.items():
        groups.append(Group(len(ids), len(prefix), [_own_length(rows[i]) for i in indices]))
        ids.extend(prefix)
        positions.extend(range(len(prefix)))
        last_shared = len(ids) - 1
        for i in indices:
            prompt, completion, shared = rows[i]
            start, rest = len(ids), len(prompt) - shared
            ids.extend([*prompt[shared:], *completion[:-1]])
            positions.extend(range(shared, shared + len(ids) - start))
            first = start + rest - 1 if rest else last_shared
            predictors[i] = [first, *range(start + rest, len(ids))] if len(completion) else []
    return Pack(
        input_ids=torch.tensor([ids]),
        position_ids=torch.tensor([positions]),
        allowed=_allowed(groups),
        predictors=torch.tensor([p for own in predictors for p in own], dtype=torch.long),
        targets=torch.tensor([token for row in rows for token in row.completion_ids], dtype=torch.long),
        lengths=[len(row.completion_ids) for row in rows],
        groups=groups,
    )


def _allowed(groups: Sequence[Group]) -> Tensor:
    """Return (L, L) bool: a token sees its own segment and its group's prefix, causally."""
    segments: list[int] = []
    parents: list[int] = []
    count = 0
    for group in groups:
        for number, length in enumerate([group.prefix, *group.lengths]):
            segments.extend([count + number] * length)
            parents.extend([count] * length)
        count += 1 + len(group.lengths)
    segment, parent = torch.tensor(segments), torch.tensor(parents)
    related = (segment[:, None] == segment) | (parent[:, None] == segment)
    return related.tril()


def check_packable(model: nn.Module) -> None:
    """Raise InputError if the model cannot take packed sequences (see the module's docstring)."""
    config = _config(model)
    if config._attn_implementation not in ("sdpa", "eager", prefix_attention.NAME):
        raise InputError(
            f"attention {config._attn_implementation!r} with packed rows",
            expected="sdpa or eager",
            fix="load the model with attn_implementation='sdpa'",
        )
    other = sorted({kind for kind in getattr(config, "layer_types", None) or () if kind != "full_attention"})
    if other:
        raise InputError(
            f"a model with {', '.join(other)} layers", expected="full attention in every layer", fix="do not pack rows"
        )


def _score(model: nn.Module, pack: Pack, temperature: float, compute_entropy: bool) -> TokenScores:
    """Return log-probabilities and entropies (zeros if not asked for), both (N,)."""
    weight = next(model.parameters())
    device = weight.device
    mask = torch.zeros(pack.allowed.shape, dtype=weight.dtype).masked_fill_(~pack.allowed, torch.finfo(weight.dtype).min)
    options: dict[str, Any] = {}
    if prefix_attention.use_prefix_attention(model):
        options["prefix_layout"] = [prefix_attention.group_layout(*group, device) for group in pack.groups]
    base = base_model(model)
    use_fast_layers(base)
    head, targets = frozen_head(base), pack.targets.to(device)
    with hidden_states_only(head) if head is not None else nullcontext():
        output = model(
            input_ids=pack.input_ids.to(device),
            attention_mask=mask[None, None].to(device),
            position_ids=pack.position_ids.to(device),
            logits_to_keep=pack.predictors.to(device),
            use_cache=False,
            **options,
        )
    predicted = output.logits.squeeze(0)
    if head is not None:
        return hidden_scores(predicted, head.weight, targets, temperature, compute_entropy=compute_entropy)
    return token_scores(predicted, targets, temperature, compute_entropy=compute_entropy)


def _prefix(row: Row) -> tuple[int, ...]:
    if not row.prompt_ids[:1] or not 0 <= row.shared <= len(row.prompt_ids):
        raise InputError(
            f"a row with {len(row.prompt_ids)} prompt ids of which {row.shared} are shared",
            expected="at least one prompt id, and 0 <= shared <= their number",
        )
    return tuple(row.prompt_ids[: row.shared])


def _own_length(row: Row) -> int:
    return len(row.prompt_ids) - row.shared + max(len(row.completion_ids) - 1, 0)


def _config(model: nn.Module) -> Any:
    return getattr(model, "module", model).config


def base_model(model: nn.Module) -> Any:
    """Return the transformers model inside DDP and PEFT."""
    inner: Any = getattr(model, "module", model)
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner


def trim(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Cut, in place, the padding that no row of this part needs: of prompts on the left, of completions on the right."""
    completion = max(1, int(inputs["completion_mask"].sum(1).max()))
    prompt = int(inputs["prompt_mask"].any(0).int().argmax())
    for name, value in inputs.items():
        if value.ndim == 2:
            inputs[name] = value[:, prompt:] if name.startswith("prompt_") else value[:, :completion]
    return inputs


def unpad(input_ids: torch.Tensor, attention_mask: torch.Tensor, keep: int, shared: Sequence[int]) -> list[Row]:
    """Return the rows of a batch.

    Args:
        input_ids: (B, T), prompts padded on the left, completions on the right.
        attention_mask: (B, T), 0 for padding.
        keep: Width of the completions.
        shared: Leading prompt ids of each row that others may share.
    """
    kept = attention_mask.bool()
    return [
        Row(ids[:-keep][mask[:-keep]].tolist(), ids[-keep:][mask[-keep:]].tolist(), prefix)
        for ids, mask, prefix in zip(input_ids, kept, shared, strict=True)
    ]


def pad(values: Sequence[torch.Tensor], width: int) -> torch.Tensor:
    """Return one-dimensional tensors as rows of a (B, width) tensor, padded on the right with 0."""
    padded = pad_sequence(list(values), batch_first=True)
    return torch.nn.functional.pad(padded, (0, width - padded.shape[1]))
