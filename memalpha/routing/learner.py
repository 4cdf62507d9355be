"""Learners of routing tasks: PPO, MAPPO, multi-agent GRPO, and the bandit LinUCB; and the collection of steps.

The random draws of update ``i`` depend on (seed, i) only, so a resumed run repeats them. Multi-agent GRPO: several agents learn the
same choice, each from its own share of the episodes. The advantage of an agent with weight w (after Shao et al., arXiv 2402.03300):

    (1 - w) * normalised(own GAE advantage) + w * relative,      relative = (return - mean of the group) / deviation of the group

Departure from the public code: a difference, not a factor, which flips sign or explodes for rewards at or below zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from memalpha.config import Options, Share
from memalpha.errors import InputError
from memalpha.policies import Policy, PolicyOptions, Shape, make_policy, mean_probabilities
from memalpha.routing.ppo import Agent, Batch, PPOOptions, gae, normalised, pack, unpack
from memalpha.routing.tasks import Episodes, Floats, Integers, Task


@dataclass(frozen=True, slots=True)
class GroupOptions(Options):
    """The agents of a group.

    Attributes:
        relative_weights: w of each agent, from 0 (own advantage only) to 1 (relative only); one per agent.
        entropies: Weight of the entropy bonus of each agent; empty takes ``entropy`` for all.
    """

    relative_weights: Annotated[tuple[Share, ...], Field(min_length=1)] = (0.3, 0.7, 0.7)
    entropies: tuple[NonNegativeFloat, ...] = ()

    def check(self) -> None:
        """Check that both have one length."""
        if self.entropies and len(self.entropies) != len(self.relative_weights):
            raise InputError(f"entropies are {self.entropies}", expected=f"none, or {len(self.relative_weights)} of them")


def seeds_of(seed: int, n: int) -> list[int]:
    """Return ``n`` independent seeds made of one."""
    return [int(number) for number in np.random.SeedSequence(seed).generate_state(n)]


class Steps(NamedTuple):
    """Collected steps, each of shape (T, N, ...): time, then episodes. ``next_values`` and ``last`` as in ``gae``."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    rewards: Tensor
    values: Tensor
    next_values: Tensor
    last: Tensor


@torch.no_grad()
def collect(task: Task, policies: Sequence[Policy], episodes: int, length: int, seeds: Sequence[int]) -> Steps:
    """Take ``length`` (T) steps in each of ``episodes`` (N) fresh episodes, shared equally; ``seeds``: of task and actions."""
    running, generator = Episodes(task, episodes, seeds[0]), torch.Generator().manual_seed(seeds[1])

    def shares(observations: Tensor) -> list[tuple[Policy, Tensor]]:
        return list(zip(policies, observations.chunk(len(policies)), strict=True))

    def values(observations: Tensor) -> Tensor:
        return torch.cat([policy.value(part) for policy, part in shares(observations)])

    rows: list[tuple[Tensor, ...]] = []
    for t in range(length):
        seen = torch.from_numpy(running.observe())
        actions, log_probs = map(torch.cat, zip(*(_draw(p, part, generator) for p, part in shares(seen)), strict=True))
        rewards, ended, reached = running.step(actions.numpy())
        over = torch.from_numpy(ended)
        after = torch.zeros(episodes) if over.all() else torch.where(over, 0.0, values(torch.from_numpy(reached)))
        earned, last = torch.as_tensor(rewards, dtype=torch.float32), over | (t == length - 1)
        rows.append((seen, actions, log_probs, earned, values(seen), after, last))
    return Steps(*(torch.stack(column) for column in zip(*rows, strict=True)))


def _draw(policy: Policy, observations: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw actions (n, K), with their log-probabilities (n, K)."""
    log_probs = policy.log_probs(observations)
    drawn = torch.multinomial(log_probs.exp().flatten(0, 1), 1, generator=generator).view(log_probs.shape[:2])
    return drawn, log_probs.gather(-1, drawn[..., None]).squeeze(-1)


class PPO:
    """One policy, trained by PPO; the joint action is one action. ``seed`` draws its first weights."""

    per_decider = False

    def __init__(self, shape: Shape, policy: PolicyOptions, options: PPOOptions, seed: int) -> None:
        self.agents = [Agent(make_policy(shape, policy, seed), options)]

    def update(self, task: Task, episodes: int, length: int, seed: int, share_left: float) -> dict[str, float]:
        """Take ``length`` steps in each of ``episodes`` episodes, learn, and return metrics; ``share_left`` of the run."""
        *collecting, batch_seed = seeds_of(seed, 3)
        many = len(self.agents)
        if episodes % many:
            raise InputError(f"{episodes} episodes (envs) for {many} agents", expected="a multiple of the agents")
        steps = collect(task, [agent.policy for agent in self.agents], episodes, length, collecting)
        for agent in self.agents:
            agent.set_rates(share_left)
        parts = [Steps(*own) for own in zip(*(tensor.chunk(many, dim=1) for tensor in steps), strict=True)]
        batches = []
        for own, agent in zip(parts, self.agents, strict=True):
            estimates = gae(*own[3:], agent.options.gamma, agent.options.lam)
            batches.append(Batch(*(tensor.flatten(0, 1) for tensor in (*own[:3], *estimates))))
        learned = self.learn(batches, batch_seed, [float(part.rewards.flatten().double().numpy().mean()) for part in parts])
        return {"reward": float(steps.rewards.mean()), **learned}

    def learn(self, batches: Sequence[Batch], seed: int, rewards: Sequence[float]) -> dict[str, float]:
        """Update from a batch and a mean reward per agent; return the metrics."""
        return self.agents[0].update(batches[0], seed, per_decider=self.per_decider)

    def probabilities(self, observations: Floats) -> Floats:
        """Return the mean of the agents' probabilities, shape (n, K, A); the greedy choice is the highest."""
        policies = [agent.policy for agent in self.agents]
        return np.asarray(mean_probabilities(policies, torch.from_numpy(observations)).numpy())

    def state(self) -> dict[str, Any]:
        """Return each agent's networks, weights and optimizer."""
        return {"members": pack(self.agents)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Load what ``state`` returned; InputError says what does not fit."""
        unpack(state.get("members", []), self.agents)


class MAPPO(PPO):
    """MAPPO (Yu et al., arXiv 2103.01955): PPO for a team of actors with one centralised value.

    Each decider's ratio is clipped separately. Not covered: recurrent actors, value normalisation.
    """

    per_decider = True


def make_agents(shape: Shape, policy: PolicyOptions, options: PPOOptions, group: GroupOptions, seed: int) -> list[Agent]:
    """Return agents with different first weights and entropy bonuses; ``learn`` normalises their advantages."""
    entropies = group.entropies or (options.entropy,) * len(group.relative_weights)
    return [
        Agent(make_policy(shape, policy, own), replace(options, entropy=entropy, normalise=False))
        for entropy, own in zip(entropies, seeds_of(seed, len(entropies)), strict=True)
    ]


def relative_returns(returns: Sequence[Tensor]) -> list[Tensor]:
    """Return each agent's returns minus the group's mean, in deviations of the group; at least 1 return per agent."""
    mean = torch.stack([own.mean() for own in returns]).mean()
    deviation = torch.cat(list(returns)).sub(mean).square().mean().sqrt()
    return [(own - mean) / (deviation + 1e-8) for own in returns]


def learn(agents: Sequence[Agent], weights: Sequence[float], batches: Sequence[Batch], seed: int) -> list[dict[str, float]]:
    """Update every agent; return its ``Agent.update`` report plus ``standing``, its mean relative return."""
    reports = []
    relative = relative_returns([batch.returns for batch in batches])
    for agent, weight, batch, own, own_seed in zip(agents, weights, batches, relative, seeds_of(seed, len(agents)), strict=True):
        mixed = (1 - weight) * normalised(batch.advantages) + weight * own
        reports.append({**agent.update(batch._replace(advantages=mixed), own_seed), "standing": float(own.mean())})
    return reports


class MultiAgentGRPO(PPO):
    """A group that learns in tasks; its greedy choice uses the mean of its agents' probabilities."""

    def __init__(self, shape: Shape, policy: PolicyOptions, options: PPOOptions, group: GroupOptions, seed: int) -> None:
        self.agents, self.group = make_agents(shape, policy, options, group, seed), group

    def learn(self, batches: Sequence[Batch], seed: int, rewards: Sequence[float]) -> dict[str, float]:
        """Update every agent; return the mean of each figure over the agents that report it, and each agent's own."""
        reports = learn(self.agents, self.group.relative_weights, batches, seed)
        names = dict.fromkeys(name for report in reports for name in report if name not in ("standing", "stop_kl"))
        metrics = {name: float(np.mean([report[name] for report in reports if name in report])) for name in names}
        for i, (report, reward) in enumerate(zip(reports, rewards, strict=True)):
            metrics |= {f"agent_{i}/reward": reward, f"agent_{i}/standing": report["standing"]}
        return metrics


class LinUCB:
    """A linear bandit (Li et al., arXiv 1003.0146, algorithm 1, disjoint models): a ridge regression a decider and option.

    Departures: episodes in lockstep choose and update together; each decider gets the whole team reward.
    """

    def __init__(self, shape: Shape, alpha: float = 1.0, ridge: float = 1.0) -> None:
        self.shape, self.alpha = shape, alpha
        widths = [stop - start for start, stop in shape.views]
        self._squares = [np.stack([ridge * np.eye(width)] * shape.choices) for width in widths]  # per decider (A, d, d)
        self._sums = [np.zeros((shape.choices, width)) for width in widths]  # per decider (A, d)

    def update(self, task: Task, episodes: int, length: int, seed: int, share_left: float) -> dict[str, float]:
        """Act by upper confidence bounds and learn after every step; as ``PPO.update``."""
        running, earned = Episodes(task, episodes, seed), []
        for _ in range(length):
            seen = running.observe()
            actions = self.estimates(seen, self.alpha).argmax(axis=-1)
            earned.append(running.step(actions)[0])
            self.observe(seen, actions, earned[-1])
        return {"reward": float(np.mean(earned))}

    def estimates(self, observations: Floats, alpha: float = 0.0) -> NDArray[np.float64]:
        """Return estimates of the reward plus ``alpha`` standard deviations, shape (n, K, A)."""
        columns = []
        for (start, stop), squares, sums in zip(self.shape.views, self._squares, self._sums, strict=True):
            seen = observations[:, start:stop].astype(np.float64)
            inverse = np.linalg.inv(squares)
            means = seen @ np.einsum("aij,aj->ai", inverse, sums).T
            variances = np.einsum("ni,aij,nj->na", seen, inverse, seen, optimize=True) if alpha else np.zeros_like(means)
            columns.append(means + alpha * np.sqrt(np.maximum(variances, 0.0)))
        return np.stack(columns, axis=1)

    def observe(self, observations: Floats, actions: Integers, rewards: NDArray[np.float64]) -> None:
        """Learn from observations (n, size), actions (n, K) and rewards (n,)."""
        for k, (start, stop) in enumerate(self.shape.views):
            seen = observations[:, start:stop].astype(np.float64)
            for a in range(self.shape.choices):
                chosen = actions[:, k] == a
                self._squares[k][a] += seen[chosen].T @ seen[chosen]
                self._sums[k][a] += seen[chosen].T @ rewards[chosen]

    def probabilities(self, observations: Floats) -> Floats:
        """Return 1 for the option with the highest estimate, else 0, shape (n, K, A)."""
        best = self.estimates(observations).argmax(axis=-1)
        return np.asarray(np.eye(self.shape.choices, dtype=np.float32)[best])

    def state(self) -> dict[str, Any]:
        """Return the regressions."""
        held = {"squares": self._squares, "sums": self._sums}
        return {name: [torch.from_numpy(array.copy()) for array in arrays] for name, arrays in held.items()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Load regressions; InputError if they are of another task."""
        shapes, wanted = ({name: [tuple(a.shape) for a in held] for name, held in one.items()} for one in (state, self.state()))
        if shapes != wanted:
            raise InputError(f"LinUCB state of shapes {shapes}", expected=f"{wanted}")
        self._squares, self._sums = ([tensor.numpy() for tensor in state[name]] for name in ("squares", "sums"))


Learner = PPO | LinUCB
