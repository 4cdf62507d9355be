"""Multi-agent GRPO: several agents learn the same choice, each from its own share of the episodes.

The advantage of an agent with weight w (the group-relative reward of Shao et al., arXiv 2402.03300,
section 4.1, between agents):

    (1 - w) * own GAE advantage / its root mean square + w * relative,    relative = (return - the
    group's mean) / its deviation

Departures from the public code: a difference, not a factor, which flips sign or explodes for
rewards at or below zero; own
advantages are scaled, not centred: where every choice of a small batch failed, centring would leave
nothing to learn.
"""

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
from memalpha.routing.ppo import Agent, Batch, PPOOptions


@dataclass(frozen=True, slots=True)
class GroupOptions(Options):
    """The agents of a group.

    Attributes:
        relative_weights: w of each agent, from 0 (own advantage only) to 1 (relative only); one per
            agent.
        entropies: Weight of the entropy bonus of each agent; empty takes ``entropy`` for all.
    """

    relative_weights: Annotated[tuple[Share, ...], Field(min_length=1)] = (0.3, 0.7, 0.7)
    entropies: tuple[NonNegativeFloat, ...] = ()

    def check(self) -> None:
        """Check that both have one length."""
        if self.entropies and len(self.entropies) != len(self.relative_weights):
            raise InputError(
                f"entropies are {self.entropies}",
                expected=f"none, or {len(self.relative_weights)} of them",
            )


def make_agents(
    shape: Shape,
    policy: PolicyOptions,
    options: PPOOptions,
    group: GroupOptions,
    seed: int,
    device: str = "cpu",
) -> list[Agent]:
    """Return agents with different first weights and entropy bonuses; ``learn`` scales their
    advantages.
    """
    entropies = group.entropies or (options.entropy,) * len(group.relative_weights)
    return [
        Agent(
            make_policy(shape, policy, own).to(device),
            replace(options, entropy=entropy, normalise=False),
        )
        for entropy, own in zip(entropies, seeds_of(seed, len(entropies)), strict=True)
    ]


def relative_returns(returns: Sequence[Tensor]) -> list[Tensor]:
    """Return each agent's returns minus the group's mean, in deviations of the group; at least 1
    return per agent.
    """
    mean = torch.stack([own.mean() for own in returns]).mean()
    deviation = torch.cat(list(returns)).sub(mean).square().mean().sqrt()
    return [(own - mean) / (deviation + 1e-8) for own in returns]


def learn(
    agents: Sequence[Agent], weights: Sequence[float], batches: Sequence[Batch], seed: int
) -> list[dict[str, float]]:
    """Update every agent; return its ``Agent.update`` report plus ``standing``, its mean relative
    return.
    """
    reports = []
    relative = relative_returns([batch.returns for batch in batches])
    for agent, weight, batch, own, own_seed in zip(
        agents, weights, batches, relative, seeds_of(seed, len(agents)), strict=True
    ):
        scaled = batch.advantages / (batch.advantages.square().mean().sqrt() + 1e-8)
        mixed = (1 - weight) * scaled + weight * own
        reports.append(
            {
                **agent.update(batch._replace(advantages=mixed), own_seed),
                "standing": float(own.mean()),
            }
        )
    return reports


class MultiAgentGRPO(PPO):
    """A group that learns in tasks; its greedy choice uses the mean of its agents'
    probabilities.
    """

    def __init__(
        self,
        shape: Shape,
        policy: PolicyOptions,
        options: PPOOptions,
        group: GroupOptions,
        seed: int,
    ) -> None:
        self.agents, self.group = make_agents(shape, policy, options, group, seed), group

    def learn(
        self, batches: Sequence[Batch], seed: int, rewards: Sequence[float]
    ) -> dict[str, float]:
        """Update every agent; return the mean of each figure over the agents that report it, and
        each agent's own.
        """
        reports = learn(self.agents, self.group.relative_weights, batches, seed)
        names = dict.fromkeys(
            name for report in reports for name in report if name not in ("standing", "stop_kl")
        )
        metrics = {
            name: float(np.mean([report[name] for report in reports if name in report]))
            for name in names
        }
        for i, (report, reward) in enumerate(zip(reports, rewards, strict=True)):
            metrics |= {f"agent_{i}/reward": reward, f"agent_{i}/standing": report["standing"]}
        return metrics
