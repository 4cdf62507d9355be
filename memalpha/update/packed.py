"""Log-probabilities of completions with the common prompt prefix computed once, and an exact
gradient.

Rows with equal first ``shared`` prompt ids follow one copy of that prefix. Each attends to its
prefix and itself only, and its positions restart after the prefix, so values equal those of a
forward over the row alone. Two rows, prompts P Q b and P Q c (P Q is shared), completions x y and
u v w, whose last tokens predict nothing:

    input_ids     P  Q  b  x  c  u  v
    position_ids  0  1  2  3  2  3  4
    targets             x  y  u  v  w

Logits are divided by the temperature before the log-softmax, as in TRL; entropies (nats) have no
gradient.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from memalpha.errors import InputError
from memalpha.update.attention import NAME, group_layout
from memalpha.update.logps import TokenLogps, frozen_head, hidden_logps, token_logps
from memalpha.update.prepare import base_model


class Row(NamedTuple):
    """Token ids of a prompt (at least one) and its completion; ``shared``: leading prompt ids that
    other rows may have, too.
    """

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    shared: int = 0


class Group(NamedTuple):
    """One group of a pack: its first token, the length of its prefix and of each row's own part."""

    start: int
    prefix: int
    lengths: list[int]


class Pack(NamedTuple):
    """One sequence: ids and positions (1, L); ``predictors`` (N,): index of the token that predicts
    each of the ``targets``, row after row.
    """

    input_ids: Tensor
    position_ids: Tensor
    predictors: Tensor
    targets: Tensor
    groups: list[Group]


def packed_logps(
    model: nn.Module,
    rows: Sequence[Row],
    *,
    temperature: float = 1.0,
    compute_entropy: bool = False,
) -> list[TokenLogps]:
    """Return the log-probabilities of each row's completion, differentiably, in one forward.

    ``model`` has gone through ``prepare_policy``; with an attention that cannot share prefixes,
    each row has a forward of its own. InputError for rows without a prompt.
    """
    if base_model(model).config._attn_implementation != NAME and len(rows) > 1:
        alone = (
            packed_logps(model, [row], temperature=temperature, compute_entropy=compute_entropy)
            for row in rows
        )
        return [of_row for (of_row,) in alone]
    of_pack = _pack_logps(model, pack_rows(rows), temperature, compute_entropy)
    lengths = [len(row.completion_ids) for row in rows]
    parts = (torch.split(values, lengths) for values in of_pack)
    return [TokenLogps(*values) for values in zip(*parts, strict=True)]


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
                used = 0
                cost = own + len(prefix)
            packs[-1].append(i)
            used += cost
    return packs


def pack_rows(rows: Sequence[Row]) -> Pack:
    """Lay rows out in one sequence, group by group; ``targets`` keep the order of rows. All on the
    CPU.
    """
    ids = list[int]()
    positions = list[int]()
    groups = list[Group]()
    predictors: list[list[int]] = [[] for _ in rows]
    for prefix, indices in _by_prefix(rows).items():
        groups.append(Group(len(ids), len(prefix), [_own_length(rows[i]) for i in indices]))
        ids.extend(prefix)
        positions.extend(range(len(prefix)))
        last_shared = len(ids) - 1
        for i in indices:
            rest = rows[i].prompt_ids[len(prefix) :]
            start = len(ids)
            ids.extend([*rest, *rows[i].completion_ids[:-1]])
            positions.extend(range(len(prefix), len(prefix) + len(ids) - start))
            first = start + len(rest) - 1 if rest else last_shared
            after = range(start + len(rest), len(ids))
            predictors[i] = [first, *after] if rows[i].completion_ids else []
    targets = [token for row in rows for token in row.completion_ids]
    return Pack(
        torch.tensor([ids]),
        torch.tensor([positions]),
        torch.tensor([place for own in predictors for place in own], dtype=torch.long),
        torch.tensor(targets, dtype=torch.long),
        groups,
    )


def _pack_logps(
    model: nn.Module, pack: Pack, temperature: float, compute_entropy: bool
) -> TokenLogps:
    base = base_model(model)
    device = next(model.parameters()).device
    predictors = pack.predictors.to(device)
    targets = pack.targets.to(device)
    head = frozen_head(base)
    # transformers computes the logits of these positions only.
    options: dict[str, Any] = {"logits_to_keep": predictors}
    if head is not None:
        # -1 keeps the last hidden state only, the head's input; no position: the head computes
        # nothing.
        options = {"output_hidden_states": -1, "logits_to_keep": predictors[:0]}
    if base.config._attn_implementation == NAME:
        options["prefix_layout"] = [group_layout(*group, device) for group in pack.groups]
        # transformers passes a mask of four axes on as it is, and builds no (L, L) one; the layout
        # says who attends to whom, and nobody reads this one.
        options["attention_mask"] = torch.zeros(1, 1, 1, 1, device=device)
    output = model(
        input_ids=pack.input_ids.to(device),
        position_ids=pack.position_ids.to(device),
        use_cache=False,
        **options,
    )
    if head is None:
        return token_logps(output.logits[0], targets, temperature, compute_entropy)
    hidden = output.hidden_states[-1][0, predictors]
    return hidden_logps(hidden, head.weight, targets, temperature, compute_entropy)


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
