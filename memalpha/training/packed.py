"""Log-probabilities of completions with the common prompt prefix computed once, and an exact
gradient.

Rows with equal first ``shared`` prompt ids follow one copy of that prefix: [prefix A][rest of row
1][rest of row 2]... Each row attends to its prefix and itself only, and its positions restart after
the prefix, so values equal those of a forward over the row alone. Logits are divided by the
temperature before the log-softmax, as in TRL; entropies (nats) have no gradient.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from memalpha.errors import InputError
from memalpha.generation.products import forwarding
from memalpha.training import prefix_attention
from memalpha.training.fast_layers import use_fast_layers
from memalpha.training.logprobs import TokenScores, frozen_head, hidden_scores, token_scores


class Row(NamedTuple):
    """Token ids of a prompt (at least one) and its completion; ``shared``: leading prompt ids that
    may be shared.
    """

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    shared: int = 0


class PackedLogps(NamedTuple):
    """Per row a tensor (completion length,): logps with gradient; entropies in nats without, None
    if not asked for.
    """

    logps: list[Tensor]
    entropies: list[Tensor] | None


class Group(NamedTuple):
    """One group of a pack: its first token, the length of its prefix and of each row's own part."""

    start: int
    prefix: int
    lengths: list[int]


class Pack(NamedTuple):
    """One sequence: ids and positions (1, L); ``predictors`` (N,): index of the token that predicts
    each of the ``targets``.
    """

    input_ids: Tensor
    position_ids: Tensor
    predictors: Tensor
    targets: Tensor
    lengths: list[int]
    groups: list[Group]


def packed_logps(
    model: nn.Module,
    rows: Sequence[Row],
    *,
    temperature: float = 1.0,
    compute_entropy: bool = False,
    max_tokens: int = 0,
) -> PackedLogps:
    """Score completions, differentiably, ``max_tokens`` a forward (0 = all). InputError if rows or
    model do not fit.
    """
    InputError.raise_if(
        not temperature > 0,
        f"temperature {temperature}",
        expected="a number above 0",
        fix="use 1.0 for greedy completions",
    )
    prefix_attention.use_prefix_attention(base_model(model))
    logps: list[Tensor] = [torch.empty(0)] * len(rows)
    entropies = list(logps)
    for indices in split_rows(rows, max_tokens):
        pack = pack_rows([rows[i] for i in indices])
        scores = _score(model, pack, temperature, compute_entropy)
        parts = (torch.split(values, pack.lengths) for values in scores)
        for i, values, row_entropies in zip(indices, *parts, strict=True):
            logps[i], entropies[i] = values, row_entropies
    return PackedLogps(logps, entropies if compute_entropy else None)


def split_rows(rows: Sequence[Row], max_tokens: int = 0) -> list[list[int]]:
    """Return the row indices of each pack of at most ``max_tokens`` tokens (0 = one pack); equal
    prefixes stay together.
    """
    packs: list[list[int]] = []
    used = 0
    for prefix, members in _by_prefix(rows).items():
        for place, i in enumerate(members):
            own = _own_length(rows[i])
            cost = own if place else own + len(prefix)
            if not packs or (max_tokens and used + cost > max_tokens):
                packs.append([])
                used, cost = 0, own + len(prefix)
            packs[-1].append(i)
            used += cost
    return packs


def pack_rows(rows: Sequence[Row]) -> Pack:
    """Lay rows out in one sequence, group by group; ``targets`` and ``lengths`` keep the row order.
    All on the CPU.
    """
    ids, positions, groups = list[int](), list[int](), list[Group]()
    predictors: list[list[int]] = [[]] * len(rows)
    for prefix, indices in _by_prefix(rows).items():
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
    chosen = torch.tensor([p for own in predictors for p in own], dtype=torch.long)
    targets = torch.tensor(
        [token for row in rows for token in row.completion_ids], dtype=torch.long
    )
    return Pack(
        torch.tensor([ids]),
        torch.tensor([positions]),
        chosen,
        targets,
        lengths=[len(row.completion_ids) for row in rows],
        groups=groups,
    )


def _score(model: nn.Module, pack: Pack, temperature: float, compute_entropy: bool) -> TokenScores:
    device, base = next(model.parameters()).device, base_model(model)
    use_fast_layers(base)
    head, targets = frozen_head(base), pack.targets.to(device)
    with (
        nullcontext() if head is None else forwarding({head: nn.Identity().forward})
    ):  # its input instead of logits
        output = model(
            input_ids=pack.input_ids.to(device),
            position_ids=pack.position_ids.to(device),
            use_cache=False,
            attention_mask=torch.zeros(
                1, 1, 1, 1, device=device
            ),  # four axes: transformers makes none of its own
            prefix_layout=[prefix_attention.group_layout(*group, device) for group in pack.groups],
            logits_to_keep=pack.predictors.to(device),
        )
    predicted = output.logits.squeeze(0)
    if head is not None:
        return hidden_scores(
            predicted, head.weight, targets, temperature, compute_entropy=compute_entropy
        )
    return token_scores(predicted, targets, temperature, compute_entropy=compute_entropy)


def _by_prefix(rows: Sequence[Row]) -> dict[tuple[int, ...], list[int]]:
    members: dict[tuple[int, ...], list[int]] = {}
    for i, row in enumerate(rows):
        InputError.raise_if(
            not row.prompt_ids[:1] or not 0 <= row.shared <= len(row.prompt_ids),
            f"a row with {len(row.prompt_ids)} prompt ids of which {row.shared} are shared",
        )
        members.setdefault(tuple(row.prompt_ids[: row.shared]), []).append(i)
    return members


def _own_length(row: Row) -> int:
    return len(row.prompt_ids) - row.shared + max(len(row.completion_ids) - 1, 0)


def base_model(model: nn.Module) -> Any:
    """Return the transformers model inside DDP and PEFT."""
    inner: Any = getattr(model, "module", model)
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner


def trim(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Cut, in place, padding that no row needs: of prompts on the left, of completions on the
    right.
    """
    completion = max(1, int(inputs["completion_mask"].sum(1).max()))
    prompt = int(inputs["prompt_mask"].any(0).int().argmax())
    for name, value in inputs.items():
        if value.ndim == 2:
            inputs[name] = (
                value[:, prompt:] if name.startswith("prompt_") else value[:, :completion]
            )
    return inputs


def unpad(input_ids: Tensor, attention_mask: Tensor, keep: int, shared: Sequence[int]) -> list[Row]:
    """Return the rows of a batch (B, T): prompts padded on the left, completions (``keep`` wide) on
    the right.
    """
    return [
        Row(ids[:-keep][mask[:-keep]].tolist(), ids[-keep:][mask[-keep:]].tolist(), prefix)
        for ids, mask, prefix in zip(input_ids, attention_mask.bool(), shared, strict=True)
    ]


def pad(values: Sequence[Tensor], width: int) -> Tensor:
    """Return one-dimensional tensors as a (B, width) tensor, padded on the right with 0."""
    padded = pad_sequence(list(values), batch_first=True)
    return nn.functional.pad(padded, (0, width - padded.shape[1]))
