"""Tries on a small copy how the update computes the rows of an architecture.

Layers of other people's models leave out what they were not written for, without a word: the
layout of packed rows, a window, the order of time. So rows of a copy are compared with
transformers' own forward of each row alone.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memalpha.generation.small import alone, reason_of
from memalpha.update.attention import share_prefixes
from memalpha.update.logps import CompletionRow, packed_logps

_EXACT = 1e-4
"""Most that log-probabilities (nats) and gradients (by their size) may differ in float32."""

# of two rows behind one prefix: all within the window of a copy, and all longer than it
SHORT = [
    CompletionRow((3, 4, 5, 6, 7), (8, 9, 10), 3),
    CompletionRow((3, 4, 5, 11), (12, 13, 14), 3),
]
LONG = [
    CompletionRow((*range(3, 17), 18, 19), (20, 21, 22, 23), 14),
    CompletionRow((*range(3, 17), 24), (25, 26, 27), 14),
]


class Trial(NamedTuple):
    """The result of a trial: ``refused`` is the reason why a model cannot train, and ``alone`` the
    reason why each row is computed by itself. Both are empty if packed rows are right.
    """

    refused: str = ""
    alone: str = ""


def try_rows(copy: Any) -> Trial:
    """Return how a small copy computes rows; its layers and its attention change."""
    copy.train()  # as the update does; no layer drops anything
    rows = [*SHORT, *LONG]
    try:
        expected = [alone(copy, (*row.prompt_ids, *row.completion_ids)) for row in rows]
        again = [alone(copy, (*row.prompt_ids, *row.completion_ids[:-1], 30)) for row in rows]
    except Exception as error:  # noqa: BLE001 - whatever code of others raises
        return Trial(refused=f"its forward fails: {reason_of(error)}")
    for logits, others in zip(expected, again, strict=True):
        if not torch.allclose(logits[:-1], others[:-1], rtol=0, atol=_EXACT):
            return Trial(refused="what it says of a token depends on later tokens, or on chance")
    parts = [
        logits[len(row.prompt_ids) - 1 : -1].log_softmax(-1)
        for row, logits in zip(rows, expected, strict=True)
    ]
    logps = [
        part.gather(1, torch.tensor(row.completion_ids)[:, None])[:, 0]
        for row, part in zip(rows, parts, strict=True)
    ]
    try:
        if not _agree(copy, rows, logps):
            return Trial(refused="the update does not compute what its own forward does")
    except Exception as error:  # noqa: BLE001 - whatever code of others raises
        return Trial(refused=f"the update fails: {reason_of(error)}")
    reason = share_prefixes(copy)
    if reason:
        return Trial(alone=reason)
    count = len(SHORT)
    try:
        if not _agree(copy, SHORT, logps[:count]):
            return Trial(alone="its layers do not keep packed rows apart")
        if not _agree(copy, LONG, logps[count:]):
            return Trial(alone="its layers do not look back at all tokens of a packed row")
    except Exception as error:  # noqa: BLE001
        return Trial(alone=f"packed rows fail: {reason_of(error)}")
    return Trial()


def _agree(copy: Any, rows: Sequence[CompletionRow], logps: Sequence[Tensor]) -> bool:
    """Whether log-probabilities of rows, and their gradient, are those of the update."""
    found = [of_row.logps for of_row in packed_logps(copy, rows)]
    pairs = list(zip(found, logps, strict=True))
    if not all(torch.allclose(own, other, rtol=0, atol=_EXACT) for own, other in pairs):
        return False
    gradient, expected = (_gradient(copy, each) for each in (found, logps))
    return bool((gradient - expected).norm() <= _EXACT * expected.norm())


def _gradient(copy: Any, logps: Sequence[Tensor]) -> Tensor:
    joined = torch.cat(list(logps))
    loss = joined @ torch.linspace(-1, 2, len(joined))  # each token has a weight of its own
    weights = [weight for weight in copy.parameters() if weight.requires_grad]
    gradients = torch.autograd.grad(
        loss, weights, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return torch.cat([gradient.flatten() for gradient in gradients])
