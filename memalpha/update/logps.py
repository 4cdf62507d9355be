"""Log-probabilities and entropies of chosen tokens, and of packed rows with common prefixes.

They are exact up to rounding, without a second array of the logits' size.

``hidden_logps`` never builds all logits: with hidden state h, frozen head W, p = softmax(W h / T)
and token y, the gradient of log p[y] by h is (W[y] - sum_v p[v] W[v]) / T, which forward sums over
vocabulary blocks, as flash attention does.
"""

from collections.abc import Sequence
from functools import cache
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from memalpha.agent.context import window_of
from memalpha.errors import InputError
from memalpha.generation.graphs import PLAIN_MODELS
from memalpha.generation.products import blocks, fits, product
from memalpha.types import JsonObject
from memalpha.update.attention import NAME, Group, base_model, layout_of
from memalpha.upstream import attention_of

ELEMENTS_AT_ONCE = 2**20

TOKENS_AT_ONCE = 512
HEAD_ELEMENTS = 2**18
"""Logits of one block on a CPU: what its cache holds."""
GPU_HEAD_ELEMENTS = 2**26
"""Logits of one block elsewhere: a quarter of a gigabyte."""
HEAD_ROWS = 2048
"""Rows of the head in one block, where blocks are laid out for oneDNN."""


class TokenLogps(NamedTuple):
    """Log-probabilities (with gradient) and entropies (nats, no gradient; zeros if not asked for)
    of N tokens, float32 (N,).
    """

    logps: Tensor
    entropies: Tensor


def token_logps(
    logits: Tensor, targets: Tensor, temperature: float = 1.0, compute_entropy: bool = False
) -> TokenLogps:
    """Return the log-probabilities of ``targets`` (N,) int64 under softmax(logits / temperature),
    logits (N, V) of any float type; temperature > 0.
    """
    logps, entropies = _LogitLogps.apply(  # type: ignore[no-untyped-call]
        logits, targets, temperature, compute_entropy
    )
    return TokenLogps(logps, entropies)


class _LogitLogps(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, temperature: float, compute_entropy: bool
    ) -> tuple[Tensor, Tensor]:
        norms = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
        entropies = torch.zeros_like(norms)
        for part in _parts(logits):
            scaled = logits[part].float() / temperature
            norms[part] = scaled.logsumexp(-1)
            if compute_entropy:  # H = log Z - E[scaled logit]
                expected = ((scaled - norms[part, None]).exp_() * scaled).sum(-1)
                entropies[part] = norms[part] - expected
        ctx.save_for_backward(logits, targets, norms)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropies)
        chosen = logits.gather(-1, targets[:, None]).squeeze(-1).float() / temperature
        return chosen - norms, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        logits, targets, norms = ctx.saved_tensors
        grad = grad / ctx.temperature
        result = torch.empty_like(logits)
        for part in _parts(logits):
            softmax = (logits[part].float() / ctx.temperature).sub_(norms[part, None]).exp_()
            own = softmax.mul_(-grad[part, None])
            own.scatter_add_(-1, targets[part, None], grad[part, None])
            result[part] = own
        return result, None, None, None


def _parts(logits: Tensor) -> list[slice]:
    rows = max(1, ELEMENTS_AT_ONCE // max(logits.shape[-1], 1))
    return [slice(start, start + rows) for start in range(0, len(logits), rows)]


def frozen_head(model: Any) -> Any | None:
    """Return the LM head if ``hidden_logps`` can take its place, else None; ``model`` without PEFT
    and DDP wrappers.
    """
    head: Any = model.get_output_embeddings()
    if model.config.model_type not in PLAIN_MODELS or type(head) is not nn.Linear:
        return None
    weight: Any = head.weight
    bias: Any = head.bias
    whole = type(weight) is nn.Parameter and not hasattr(weight, "ds_id")  # not sharded
    fits_here = whole and not weight.requires_grad and bias is None and "forward" not in vars(head)
    return head if fits_here else None


def hidden_logps(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    compute_entropy: bool = False,
) -> TokenLogps:
    """Return the log-probabilities of ``targets`` (N,) under softmax(hidden weight' / temperature);
    hidden (N, H), frozen weight (V, H).
    """
    logps, entropies = _HiddenLogps.apply(  # type: ignore[no-untyped-call]
        hidden, weight, targets, temperature, compute_entropy
    )
    return TokenLogps(logps, entropies)


class _HiddenLogps(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        compute_entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        with_gradient = ctx.needs_input_grad[0]
        scaled = (hidden / temperature).to(hidden.dtype)
        norms, mean, rounded = _log_partition(scaled, weight, with_gradient or compute_entropy)
        scaled = scaled.to(rounded).float()
        chosen = weight[targets].to(rounded).float()
        entropies = torch.zeros_like(norms)
        with torch.autocast(hidden.device.type, enabled=False):
            logps = torch.linalg.vecdot(scaled, chosen).to(rounded).float() - norms
            if compute_entropy:
                entropies = norms - torch.linalg.vecdot(scaled, mean)
        ctx.mark_non_differentiable(entropies)
        if with_gradient:
            ctx.save_for_backward(chosen.sub_(mean).div_(temperature))
        ctx.dtype = hidden.dtype
        return logps, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None, None]:
        (direction,) = ctx.saved_tensors
        return (direction * grad[:, None]).to(ctx.dtype), None, None, None, None


def _log_partition(
    hidden: Tensor, weight: Tensor, needs_mean: bool
) -> tuple[Tensor, Tensor, torch.dtype]:
    """Return log sum_v exp(weight[v] hidden) (N,), sum_v p[v] weight[v] (N, H), and the logits'
    type.
    """
    device = hidden.device
    norms = torch.empty(len(hidden), device=device)
    mean = torch.zeros(hidden.shape, device=device)
    rounded = torch.float32
    elements = HEAD_ELEMENTS if device.type == "cpu" else GPU_HEAD_ELEMENTS
    for start in range(0, len(hidden), TOKENS_AT_ONCE):
        part = hidden[start : start + TOKENS_AT_ONCE]
        sums = mean[start : start + len(part)]
        top = torch.full((len(part), 1), -torch.inf, device=device)
        total = torch.zeros(len(part), 1, device=device)
        laid_out = fits(weight)
        rows = HEAD_ROWS if laid_out else max(1, elements // len(part))
        for block in blocks(weight, rows) if laid_out else torch.split(weight, rows):
            logits = product(part, block)
            rounded = logits.dtype
            terms = logits.float()  # of the sum: exp(logit - top), in place
            new_top = torch.maximum(top, terms.amax(-1, keepdim=True))
            shrink = (top - new_top).exp_()
            top = new_top
            terms.sub_(top).exp_()
            total.mul_(shrink).add_(terms.sum(-1, keepdim=True))
            if not needs_mean:
                continue
            sums.mul_(shrink)
            if fits(block):
                sums.add_(product(terms, block, transposed=True))
            elif block.dtype is torch.float32:
                sums.addmm_(terms, block)
            else:
                sums.add_(terms.to(block.dtype) @ block)
        norms[start : start + len(part)] = (top + total.log()).squeeze(-1)
        sums.div_(total)
    return norms, mean, rounded


# ------------------------------------------------------------------------------------------------
# packed rows
# Rows with equal first ``shared`` prompt ids follow one copy of that prefix, which is computed
# once: [prefix A][rest of row 1][rest of row 2]... Each row attends to its prefix and itself only,
# and its positions restart after the prefix, so values equal those of a forward over the row alone.
# Logits are divided by the temperature before the log-softmax, as in TRL; entropies (nats) have no
# gradient.


class CompletionRow(NamedTuple):
    """Token ids of a prompt (at least one) and its completion; ``shared`` leading prompt ids may be
    equal in other rows.
    """

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    shared: int = 0


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
    rows: Sequence[CompletionRow],
    *,
    temperature: float = 1.0,
    compute_entropy: bool = False,
) -> list[TokenLogps]:
    """Return the log-probabilities of each row's completion, differentiably, in one forward.

    ``model`` has gone through ``prepare_policy``; with an attention that cannot share prefixes, or
    rows beyond its window, each row has a forward of its own. InputError for rows without a prompt.
    """
    base = base_model(model)
    window = window_of(base.config)
    longest = max((len(row.prompt_ids) + len(row.completion_ids) for row in rows), default=0)
    packs = attention_of(base.config) == NAME and not (window and longest > window)
    if not packs and len(rows) > 1:
        each = (
            packed_logps(model, [row], temperature=temperature, compute_entropy=compute_entropy)
            for row in rows
        )
        return [of_row for (of_row,) in each]
    of_pack = _pack_logps(model, pack_rows(rows), temperature, compute_entropy, packs)
    lengths = [len(row.completion_ids) for row in rows]
    parts = (torch.split(values, lengths) for values in of_pack)
    return [TokenLogps(*values) for values in zip(*parts, strict=True)]


def split_rows(rows: Sequence[CompletionRow], max_tokens: int = 0) -> list[list[int]]:
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


def pack_rows(rows: Sequence[CompletionRow]) -> Pack:
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
    model: nn.Module, pack: Pack, temperature: float, compute_entropy: bool, packs: bool
) -> TokenLogps:
    """``packs``: along a layout; else the pack is one row, and all is as the model has it."""
    base = base_model(model)
    device = next(model.parameters()).device
    predictors = pack.predictors.to(device)
    targets = pack.targets.to(device)
    head = frozen_head(base)
    # transformers computes the logits of these positions only.
    options: JsonObject = {"logits_to_keep": predictors}
    if head is not None:
        # -1 keeps the last hidden state only, the head's input; no position: the head computes
        # nothing.
        options = {"output_hidden_states": -1, "logits_to_keep": predictors[:0]}
    if packs:
        options["position_ids"] = pack.position_ids.to(device)
        options["prefix_layout"] = layout_of(base, pack.groups, device)
        # transformers passes a mask of four axes on as it is, and builds no (L, L) one; the layout
        # says who attends to whom, and nobody reads this one.
        options["attention_mask"] = torch.zeros(1, 1, 1, 1, device=device)
    output = model(input_ids=pack.input_ids.to(device), use_cache=False, **options)
    if head is None:
        kind: Any = type(base)
        logits = output.logits[0] if keeps_logits(kind) else output.logits[0, predictors]
        return token_logps(logits, targets, temperature, compute_entropy)
    hidden = output.hidden_states[-1][0, predictors]
    return hidden_logps(hidden, head.weight, targets, temperature, compute_entropy)


@cache
def keeps_logits(kind: Any) -> bool:
    """Whether a class of models computes the logits of chosen positions only."""
    return "logits_to_keep" in signature(kind.forward).parameters


def _by_prefix(rows: Sequence[CompletionRow]) -> dict[tuple[int, ...], list[int]]:
    members: dict[tuple[int, ...], list[int]] = {}
    for i, row in enumerate(rows):
        if not row.prompt_ids[:1] or not 0 <= row.shared <= len(row.prompt_ids):
            raise InputError(
                f"a row has {len(row.prompt_ids)} prompt ids, of which {row.shared} are shared"
            )
        members.setdefault(tuple(row.prompt_ids[: row.shared]), []).append(i)
    return members


def _own_length(row: CompletionRow) -> int:
    return len(row.prompt_ids) - row.shared + max(len(row.completion_ids) - 1, 0)
