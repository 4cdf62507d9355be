"""Multi-agent GRPO: several agents learn the same choice, each from its own advantages and from its standing in the group.

Every agent has a policy network and a value network and acts on its own share of the episodes. An agent's advantage is

    (1 - w) * normalised(own GAE advantage) + w * standing,      standing = (return - mean of the group) / deviation of the group

with a weight w of its own (``relative_weights``). The mean of the group is the mean of its agents' mean returns, the deviation that
of all returns of the update around it; an agent's average standing is therefore how far it is ahead of the group, in deviations.
Both parts are returns minus something that the action did not choose, so the mixture points where the policy gradient points.
The idea of group-relative advantages is GRPO's (Shao et al., arXiv 2402.03300); here the group is the agents.

Rewards are kept by agent until the update and forgotten with it. An update comes every N steps of the whole group;
``MultiAgentGRPO`` collects them from environments, ``memalpha.routing.selector.ToolSelector`` from use.

Faults of the public code and how they are mended:

* it multiplied advantages by (agent's mean reward / group's mean reward): below zero the sign flips, near zero it explodes, and
  good actions are unlearnt. Here the standing is a difference: better than the group is above zero whatever the rewards' sign;
* old log-probabilities were recomputed from the policy in training: here they are kept with the data;
* averages were divided by the planned number of updates: here by those that took place;
* the features were random numbers: here they are sentence embeddings (``memalpha.routing.sections_task``, ``selector``).

Not covered: agents that see each other's actions; more than one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from memalpha.errors import InputError
from memalpha.routing.checkpoints import pack_policy, unpack_members
from memalpha.routing.gae import gae
from memalpha.routing.learner import Acted, Metrics, SamplingActor, Steps, collect, seeds_of
from memalpha.routing.policies import Policy, PolicyOptions, Shape, make_policy
from memalpha.routing.ppo import Batch, PPOOptions, make_optimizer, normalised, set_rates, update_policy

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """The agents of a group.

    Attributes:
        relative_weights: w of each agent, from 0 (own advantage alone) to 1 (standing alone); as many as there are agents.
        entropies: Weight of the entropy bonus of each agent; empty takes ``PPOOptions.entropy`` for all.
    """

    relative_weights: tuple[float, ...] = (0.3, 0.7, 0.7)
    entropies: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Check that there is an agent and that lengths and ranges fit."""
        for name in ("relative_weights", "entropies"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.relative_weights or not all(0 <= w <= 1 for w in self.relative_weights):
            raise InputError(f"relative_weights are {self.relative_weights}", expected="one from 0 to 1 for each agent")
        if self.entropies and len(self.entropies) != len(self.relative_weights):
            raise InputError(f"entropies are {self.entropies}", expected=f"none, or {len(self.relative_weights)} of them")


@dataclass(slots=True)
class Member:
    """One agent of a group."""

    policy: Policy
    optimizer: torch.optim.Adam
    options: PPOOptions
    weight: float


def make_members(shape: Shape, policy: PolicyOptions, options: PPOOptions, group: GroupOptions, seed: int) -> list[Member]:
    """Return agents that differ in their first weights, their mixing weight and their entropy bonus."""
    entropies = group.entropies or (options.entropy,) * len(group.relative_weights)
    members = []
    for weight, entropy, own in zip(group.relative_weights, entropies, seeds_of(seed, len(entropies)), strict=True):
        settings = replace(options, entropy=entropy, normalise=False)  # the mixture is on one scale already
        agent = make_policy(shape, policy, own)
        members.append(Member(agent, make_optimizer(agent, settings), settings, weight))
    return members


# ------------------------------------------------------------------------------------------------ the group
def standings(returns: Sequence[Tensor]) -> list[Tensor]:
    """Return each agent's returns relative to the group's, in deviations of the group.

    Args:
        returns: One tensor an agent, each of any length of at least 1.
    """
    mean = torch.stack([own.mean() for own in returns]).mean()
    deviation = torch.cat(list(returns)).sub(mean).square().mean().sqrt()
    return [(own - mean) / (deviation + 1e-8) for own in returns]


def mix(own: Tensor, standing: Tensor, weight: float) -> Tensor:
    """Return ``(1 - weight) * normalised(own) + weight * standing``, all of shape (n,)."""
    return (1 - weight) * normalised(own) + weight * standing


def learn(members: Sequence[Member], batches: Sequence[Batch], seed: int) -> list[dict[str, float]]:
    """Update every agent from its own steps and its standing; return one report an agent, as ``update_policy`` makes it.

    Args:
        members: The group.
        batches: One an agent, with its own GAE advantages.
        seed: Draws the minibatches.
    """
    reports = []
    relative = standings([batch.returns for batch in batches])
    for member, batch, standing, own_seed in zip(members, batches, relative, seeds_of(seed, len(members)), strict=True):
        mixed = batch._replace(advantages=mix(batch.advantages, standing, member.weight))
        generator = torch.Generator().manual_seed(own_seed)
        report = update_policy(member.policy, member.optimizer, mixed, member.options, generator, per_decider=False)
        reports.append({**report, "standing": float(standing.mean())})
    return reports


@torch.no_grad()
def group_probabilities(members: Sequence[Member], observations: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return each agent's probabilities, shape (agents, n, K, A)."""
    seen = torch.as_tensor(observations)
    found: NDArray[np.float32] = torch.stack([member.policy.log_probs(seen).exp() for member in members]).numpy()
    return found


class GroupActor:
    """Lets each agent act on its own columns, as many for each.

    Args:
        members: The group.
        generator: Where chance comes from.
    """

    def __init__(self, members: Sequence[Member], generator: torch.Generator) -> None:
        self._actors = [SamplingActor(member.policy, generator) for member in members]

    def act(self, observations: Tensor) -> Acted:
        """Draw actions."""
        acted = [actor.act(part) for actor, part in zip(self._actors, self._split(observations), strict=True)]
        return Acted(*(torch.cat(parts) for parts in zip(*acted, strict=True)))

    def value(self, observations: Tensor) -> Tensor:
        """Return values, each by the agent whose column it is."""
        return torch.cat([actor.value(part) for actor, part in zip(self._actors, self._split(observations), strict=True)])

    def _split(self, observations: Tensor) -> Sequence[Tensor]:
        return observations.chunk(len(self._actors))


class MultiAgentGRPO:
    """A group that learns from environments; the columns of the environment are shared out evenly.

    Used greedily, the group decides by the mean of its agents' probabilities.

    Args:
        shape: Of the task.
        policy: Every agent's networks.
        options: How each is updated.
        group: Its agents.
        seed: Draws first weights.
    """

    def __init__(self, shape: Shape, policy: PolicyOptions, options: PPOOptions, group: GroupOptions, seed: int) -> None:
        self.members = make_members(shape, policy, options, group, seed)
        self.options = options
        self.group_rewards: list[list[float]] = [[] for _ in self.members]

    def update(self, env: VectorEnv[Any, Any, Any], length: int, seed: int, share_left: float) -> Metrics:
        """Collect, then update every agent.

        Raises:
            InputError: If the columns cannot be shared out evenly.
        """
        size, rest = divmod(env.num_envs, len(self.members))
        if rest:
            raise InputError(f"{env.num_envs} environments for {len(self.members)} agents", expected="a multiple of the agents")
        env_seed, action_seed, batch_seed = seeds_of(seed, 3)
        steps = collect(env, GroupActor(self.members, torch.Generator().manual_seed(action_seed)), length, env_seed)
        parts = [steps.columns(i * size, (i + 1) * size) for i in range(len(self.members))]
        self.group_rewards = [part.rewards.flatten().tolist() for part in parts]
        for member in self.members:
            set_rates(member.optimizer, member.options, share_left)
        reports = learn(self.members, [self._batch(part) for part in parts], batch_seed)
        metrics = {"reward": float(steps.rewards.mean()), **_over_agents(reports)}
        for i, rewards in enumerate(self.group_rewards):
            metrics[f"agent_{i}/reward"] = float(np.mean(rewards))
            metrics[f"agent_{i}/standing"] = reports[i]["standing"]
        self.group_rewards = [[] for _ in self.members]
        return metrics

    def probabilities(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the mean of the agents' probabilities, shape (n, K, A)."""
        found: NDArray[np.float32] = group_probabilities(self.members, observations).mean(axis=0)
        return found

    def state(self) -> dict[str, Any]:
        """Return every agent's networks, weights and optimizer."""
        return {"members": [pack_policy(member.policy, member.optimizer) for member in self.members]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up every agent's networks and optimizer; InputError says what does not fit."""
        unpack_members(state, [(member.policy, member.optimizer) for member in self.members])

    def _batch(self, steps: Steps) -> Batch:
        o = self.options
        return steps.batch(*gae(steps.rewards, steps.values, steps.next_values, steps.last, o.gamma, o.lam))


def _over_agents(reports: Sequence[dict[str, float]]) -> Metrics:
    """Mean over the agents that report a figure."""
    names = dict.fromkeys(name for report in reports for name in report if name not in ("standing", "stop_kl"))
    return {name: float(np.mean([report[name] for report in reports if name in report])) for name in names}
