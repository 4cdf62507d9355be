"""Giving a trained policy further options without touching what it learnt about the others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from memalpha.errors import InputError
from memalpha.routing.grpo import Member
from memalpha.routing.policies import SeparatePolicy


def grow_choices(member: Member, choices: int) -> None:
    """Widen the last layer of an agent's policy network to ``choices`` options, in place.

    A new option starts with the mean weights and bias of the old ones, so its logit is the mean of theirs for every observation,
    and the old options keep their odds among one another. Adam's running means of that layer are widened with zeros.

    Raises:
        InputError: If the policy has several deciders or no network of its own, or would get fewer options.
    """
    policy, shape = member.policy, member.policy.shape
    if not isinstance(policy, SeparatePolicy) or shape.deciders != 1 or choices < shape.choices:
        raise InputError(
            f"growing {type(policy).__name__} from {shape.choices} to {choices} options", expected="a separate policy, one decider"
        )
    last = policy.actor[-1]
    assert isinstance(last, nn.Linear)
    added = choices - shape.choices
    for name in ("weight", "bias"):
        old: Tensor = getattr(last, name)
        grown = nn.Parameter(torch.cat([old.detach(), old.detach().mean(dim=0, keepdim=True).expand(added, *old.shape[1:])]))
        _replace(member.optimizer, old, grown)
        setattr(last, name, grown)
    last.out_features = choices
    policy.shape = shape._replace(choices=choices)


def _replace(optimizer: torch.optim.Optimizer, old: Tensor, new: nn.Parameter) -> None:
    for group in optimizer.param_groups:
        group["params"] = [new if parameter is old else parameter for parameter in group["params"]]
    state = optimizer.state.pop(old, None)
    if state:
        optimizer.state[new] = {name: _padded(value, new) for name, value in state.items()}


def _padded(value: Tensor, like: Tensor) -> Tensor:
    if value.dim() == 0:  # Adam's count of steps
        return value
    return torch.cat([value, value.new_zeros(len(like) - len(value), *value.shape[1:])])
