"""Multi-agent GRPO: several agents learn the same choice, each from its own advantages and from those relative to the group.

Each agent has a policy network and a value network and acts on its own share of the episodes. An agent's advantage is

    (1 - w) * normalised(own GAE advantage) + w * relative,      relative = (return - mean of the group) / deviation of the group

with its own weight w (``relative_weights``). The mean of the group is the mean of its agents' mean returns, the deviation that of
all returns of the update around it. Both parts are returns minus something that the action did not choose, so the mixture points
where the policy gradient points. The idea of group-relative advantages is GRPO's (Shao et al., arXiv 2402.03300); here the group is
the agents. ``MultiAgentGRPO`` learns in tasks, ``memalpha.routing.selector.ToolSelector`` from use.

Faults of the public code and how they are mended:

* it multiplied advantages by (agent's mean reward / group's mean reward): below zero the sign flips, near zero it explodes, and
  good actions are unlearned. Here the relative part is a difference: better than the group is above zero for rewards of any sign;
* old log-probabilities were recomputed from the policy in training: here they are kept with the data;
* averages were divided by the planned number of updates: here by those that took place;
* the features were random numbers: here they are sentence embeddings (``memalpha.routing.sections``, ``selector``).

Not covered: agents that see each other's actions; more than one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from memalpha.config import Options, Share
from memalpha.errors import InputError
from memalpha.policies import PolicyOptions, Shape, make_policy
from memalpha.routing.learner import PPO, seeds_of
from memalpha.routing.ppo import Agent, Batch, PPOOptions, normalised


@dataclass(frozen=True, slots=True)
class GroupOptions(Options):
    """The agents of a group.

    Attributes:
        relative_weights: w of each agent, from 0 (own advantage alone) to 1 (relative alone); as many as there are agents.
        entropies: Weight of the entropy bonus of each agent; empty takes ``entropy`` for all.
    """

    relative_weights: Annotated[tuple[Share, ...], Field(min_length=1)] = (0.3, 0.7, 0.7)
    entropies: tuple[NonNegativeFloat, ...] = ()

    def check(self) -> None:
        """See that both are of one length."""
        if self.entropies and len(self.entropies) != len(self.relative_weights):
            raise InputError(f"entropies are {self.entropies}", expected=f"none, or {len(self.relative_weights)} of them")


def make_agents(shape: Shape, policy: PolicyOptions, options: PPOOptions, group: GroupOptions, seed: int) -> list[Agent]:
    """Return agents that differ in their first weights and their entropy bonus; their advantages are normalised in ``mix``."""
    entropies = group.entropies or (options.entropy,) * len(group.relative_weights)
    return [
        Agent(make_policy(shape, policy, own), replace(options, entropy=entropy, normalise=False))
        for entropy, own in zip(entropies, seeds_of(seed, len(entropies)), strict=True)
    ]


def relative_returns(returns: Sequence[Tensor]) -> list[Tensor]:
    """Return each agent's returns less the group's mean, in deviations of the group; any number of returns an agent, at least 1."""
    mean = torch.stack([own.mean() for own in returns]).mean()
    deviation = torch.cat(list(returns)).sub(mean).square().mean().sqrt()
    return [(own - mean) / (deviation + 1e-8) for own in returns]


def mix(own: Tensor, relative: Tensor, weight: float) -> Tensor:
    """Return ``(1 - weight) * normalised(own) + weight * relative``, all of shape (n,)."""
    return (1 - weight) * normalised(own) + weight * relative


def learn(agents: Sequence[Agent], weights: Sequence[float], batches: Sequence[Batch], seed: int) -> list[dict[str, float]]:
    """Update every agent; return one report an agent, as ``Agent.update`` makes it, with ``standing``, its mean relative return.

    Args:
        agents: The group.
        weights: w of each.
        batches: One an agent, with its own GAE advantages.
        seed: Draws the minibatches.
    """
    reports = []
    relative = relative_returns([batch.returns for batch in batches])
    for agent, weight, batch, own, own_seed in zip(agents, weights, batches, relative, seeds_of(seed, len(agents)), strict=True):
        report = agent.update(batch._replace(advantages=mix(batch.advantages, own, weight)), own_seed)
        reports.append({**report, "standing": float(own.mean())})
    return reports


class MultiAgentGRPO(PPO):
    """A group that learns in tasks; used greedily, it decides by the mean of its agents' probabilities.

    Args:
        shape: Of the task.
        policy: Every agent's networks.
        options: How each is updated.
        group: Its agents.
        seed: Draws first weights.
    """

    def __init__(self, shape: Shape, policy: PolicyOptions, options: PPOOptions, group: GroupOptions, seed: int) -> None:
        self.agents = make_agents(shape, policy, options, group, seed)
        self.group = group

    def learn(self, batches: Sequence[Batch], seed: int, rewards: Sequence[float]) -> dict[str, float]:
        """Update every agent; return the mean of each figure over the agents that report it, and each agent's own."""
        reports = learn(self.agents, self.group.relative_weights, batches, seed)
        names = dict.fromkeys(name for report in reports for name in report if name not in ("standing", "stop_kl"))
        metrics = {name: float(np.mean([report[name] for report in reports if name in report])) for name in names}
        for i, (report, reward) in enumerate(zip(reports, rewards, strict=True)):
            metrics |= {f"agent_{i}/reward": reward, f"agent_{i}/standing": report["standing"]}
        return metrics
