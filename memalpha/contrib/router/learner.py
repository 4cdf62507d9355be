"""Learners of routing tasks: MAPPO, multi-agent GRPO and LinUCB.

The random draws of update ``i`` depend on (seed, i) only, so a resumed run repeats them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from memalpha.config import Options, Share
from memalpha.contrib.router.policy import (
    Batch,
    NetworkOptions,
    Policy,
    PPOAgent,
    PPOOptions,
    Shape,
    Trajectories,
    batch_of,
    make_policy,
    mean_probabilities,
    pack,
    unpack,
)
from memalpha.contrib.router.tasks import Experience, Floats, Integers, LiveTask, LogTask, Task
from memalpha.errors import InputError
from memalpha.types import JsonObject


@dataclass(frozen=True, slots=True)
class GroupOptions(Options):
    """Options of a group of agents.

    Attributes:
        relative_weights: Each agent has its own weight w, from 0 (its own advantage alone) to 1
            (the relative advantage alone).
        entropies: Each agent has its own weight of the entropy bonus; an empty tuple takes
            ``entropy`` for all.
    """

    relative_weights: Annotated[tuple[Share, ...], Field(min_length=1)] = (0.3, 0.7, 0.7)
    entropies: tuple[NonNegativeFloat, ...] = ()

    def check(self) -> None:
        """Check that both have one length."""
        if self.entropies and len(self.entropies) != len(self.relative_weights):
            expected = f"no numbers, or {len(self.relative_weights)} numbers"
            raise InputError(f"entropies is {self.entropies}", expected=expected)


def seeds_of(seed: int, n: int) -> list[int]:
    """Return ``n`` independent seeds made of one."""
    return [int(number) for number in np.random.SeedSequence(seed).generate_state(n)]


@torch.no_grad()
def collect_episodes(
    task: LiveTask, policies: Sequence[Policy], episodes: int, length: int, seeds: Sequence[int]
) -> Trajectories:
    """Take ``length`` (T) steps in each of ``episodes`` (N) fresh episodes, shared equally among
    the policies; ``seeds``: of task and actions.
    """
    running = task.begin(episodes, seeds[0])
    generator = torch.Generator().manual_seed(seeds[1])

    def values(observations: Tensor) -> Tensor:
        parts = observations.chunk(len(policies))
        return torch.cat([policy.value(part) for policy, part in zip(policies, parts, strict=True)])

    rows: list[tuple[Tensor, ...]] = []
    for t in range(length):
        observations = torch.from_numpy(running.observe())
        parts = observations.chunk(len(policies))
        drawn = [_draw(*pair, generator) for pair in zip(policies, parts, strict=True)]
        actions = torch.cat([action for action, _ in drawn])
        log_probs = torch.cat([log_prob for _, log_prob in drawn])
        rewards, terminated, truncated, reached = running.step(actions.numpy())
        ended = torch.from_numpy(terminated)
        if ended.all():
            next_values = torch.zeros(episodes)
        else:
            next_values = torch.where(ended, 0.0, values(torch.from_numpy(reached)))
        last = ended | torch.from_numpy(truncated) | (t == length - 1)
        earned = torch.as_tensor(rewards, dtype=torch.float32)
        own = (values(observations), next_values, last, torch.ones(episodes))
        rows.append((observations, actions, log_probs, earned, *own))
    return Trajectories(*(torch.stack(column) for column in zip(*rows, strict=True)))


def _draw(
    policy: Policy, observations: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw actions (n, K), with their log-probabilities (n, K)."""
    log_probs = policy.log_probs(observations)
    flat = torch.multinomial(log_probs.exp().flatten(0, 1), 1, generator=generator)
    actions = flat.view(log_probs.shape[:2])
    return actions, log_probs.gather(-1, actions[..., None]).squeeze(-1)


@torch.no_grad()
def replay_episodes(policy: Policy, old: Experience, max_ratio: float) -> Trajectories:
    """Return old steps as one episode after the other, with a policy's own probabilities, values
    and truncated ratios.
    """
    log_probs = policy.log_probs(old.observations).gather(-1, old.actions[..., None]).squeeze(-1)
    ratios = (log_probs.sum(dim=-1) - old.log_probs).exp().clamp(max=max_ratio)
    next_values = torch.where(old.terminated, 0.0, policy.value(old.reached))
    values = policy.value(old.observations)
    columns = (old.observations, old.actions, log_probs, old.rewards, values, next_values)
    return Trajectories(*(column[:, None] for column in (*columns, old.last, ratios)))


class MAPPO:
    """MAPPO (Yu et al., arXiv 2103.01955): PPO for a team of actors with one centralised value.

    Each decider's ratio is clipped separately. Not covered: recurrent actors, value normalisation.
    """

    def __init__(
        self, shape: Shape, policy: NetworkOptions, options: PPOOptions, seed: int
    ) -> None:
        self.agents = [PPOAgent(make_policy(shape, policy, seed), options)]

    def update(
        self, task: Task, episodes: int, length: int, seed: int, share_left: float
    ) -> dict[str, float]:
        """Take ``length`` steps in each of ``episodes`` episodes, learn, and return metrics;
        ``share_left`` of the run.
        """
        *collecting, batch_seed = seeds_of(seed, 3)
        many = len(self.agents)
        if episodes % many:
            what = f"there are {episodes} episodes (envs) for {many} agents"
            raise InputError(what, expected="a multiple of the number of agents")
        for agent in self.agents:
            agent.set_rates(share_left)
        if isinstance(task, LogTask):
            seeds = seeds_of(collecting[0], many)
            drawn = [task.draw(episodes // many * length, own) for own in seeds]
            parts = [
                replay_episodes(agent.policy, old, agent.options.max_ratio)
                for agent, old in zip(self.agents, drawn, strict=True)
            ]
        else:
            policies = [agent.policy for agent in self.agents]
            steps = collect_episodes(task, policies, episodes, length, collecting)
            columns = [column.chunk(many, dim=1) for column in steps]
            parts = [Trajectories(*own) for own in zip(*columns, strict=True)]
        batches = [
            batch_of(own, agent.options) for own, agent in zip(parts, self.agents, strict=True)
        ]
        rewards = [float(part.rewards.double().mean()) for part in parts]
        return {"reward": float(np.mean(rewards)), **self.learn(batches, batch_seed, rewards)}

    def learn(
        self, batches: Sequence[Batch], seed: int, rewards: Sequence[float]
    ) -> dict[str, float]:
        """Update from a batch and a mean reward per agent; return the metrics."""
        return self.agents[0].update(batches[0], seed, per_decider=True)

    def probabilities(self, observations: Floats) -> Floats:
        """Return the mean of the agents' probabilities, shape (n, K, A); the greedy choice is the
        highest.
        """
        policies = [agent.policy for agent in self.agents]
        return np.asarray(mean_probabilities(policies, torch.from_numpy(observations)).numpy())

    def state(self) -> JsonObject:
        """Return each agent's networks, weights and optimizer."""
        return {"members": pack(self.agents)}

    def load_state(self, state: JsonObject) -> None:
        """Load what ``state`` returned; InputError says what does not fit."""
        unpack(state.get("members", []), self.agents)


def make_agents(
    shape: Shape,
    policy: NetworkOptions,
    options: PPOOptions,
    group: GroupOptions,
    seed: int,
    device: str = "cpu",
) -> list[PPOAgent]:
    """Return agents with different first weights and entropy bonuses; ``learn_as_group`` scales
    their advantages.
    """
    entropies = group.entropies or (options.entropy,) * len(group.relative_weights)
    agents = []
    for entropy, own_seed in zip(entropies, seeds_of(seed, len(entropies)), strict=True):
        own = replace(options, entropy=entropy, normalise=False)
        agents.append(PPOAgent(make_policy(shape, policy, own_seed).to(device), own))
    return agents


def relative_returns(returns: Sequence[Tensor]) -> list[Tensor]:
    """Return each agent's returns minus the group's mean, in deviations of the group."""
    mean = torch.stack([own.mean() for own in returns]).mean()
    deviation = torch.cat(list(returns)).sub(mean).square().mean().sqrt()
    return [(own - mean) / (deviation + 1e-8) for own in returns]


def learn_as_group(
    agents: Sequence[PPOAgent], weights: Sequence[float], batches: Sequence[Batch], seed: int
) -> list[dict[str, float]]:
    """Update every agent of a group; return its report plus ``standing``, its mean relative return.

    The advantage of an agent with weight w (the group-relative reward of Shao et al., arXiv
    2402.03300, section 4.1, between agents):

        (1 - w) * own GAE advantage / its root mean square + w * relative
        relative = (return - the group's mean) / its deviation

    Departures from the public code: a difference, not a factor, which flips sign or explodes for
    rewards at or below zero; own advantages are scaled, not centred: where every choice of a small
    batch failed, centring would leave nothing to learn.
    """
    relative = relative_returns([batch.returns for batch in batches])
    seeds = seeds_of(seed, len(agents))
    reports = []
    for agent, weight, batch, own, own_seed in zip(
        agents, weights, batches, relative, seeds, strict=True
    ):
        scaled = batch.advantages / (batch.advantages.square().mean().sqrt() + 1e-8)
        mixed = (1 - weight) * scaled + weight * own
        report = agent.update(batch._replace(advantages=mixed), own_seed)
        reports.append({**report, "standing": float(own.mean())})
    return reports


class MultiAgentGRPO(MAPPO):
    """Several agents learn one choice, each from its own share of the episodes; the greedy choice
    uses the mean of their probabilities.
    """

    def __init__(
        self,
        shape: Shape,
        policy: NetworkOptions,
        options: PPOOptions,
        group: GroupOptions,
        seed: int,
    ) -> None:
        self.agents = make_agents(shape, policy, options, group, seed)
        self.group = group

    def learn(
        self, batches: Sequence[Batch], seed: int, rewards: Sequence[float]
    ) -> dict[str, float]:
        """Update every agent; return the mean of each figure over the agents that report it, and
        each agent's own.
        """
        reports = learn_as_group(self.agents, self.group.relative_weights, batches, seed)
        metrics = {}
        for name in dict.fromkeys(name for report in reports for name in report):
            if name not in ("standing", "stop_kl"):
                metrics[name] = float(np.mean([r[name] for r in reports if name in r]))
        for i, (report, reward) in enumerate(zip(reports, rewards, strict=True)):
            metrics[f"agent_{i}/reward"] = reward
            metrics[f"agent_{i}/standing"] = report["standing"]
        return metrics


class LinUCB:
    """A linear bandit (Li et al., arXiv 1003.0146, algorithm 1, disjoint models): a ridge
    regression a decider and option.

    Departures: episodes in lockstep choose and update together; each decider gets the whole team
    reward.
    """

    def __init__(self, shape: Shape, alpha: float = 1.0, ridge: float = 1.0) -> None:
        self.shape = shape
        self.alpha = alpha
        widths = [stop - start for start, stop in shape.views]
        # per decider (A, d, d) and (A, d)
        self._squares = [np.stack([ridge * np.eye(width)] * shape.choices) for width in widths]
        self._sums = [np.zeros((shape.choices, width)) for width in widths]

    def update(
        self, task: Task, episodes: int, length: int, seed: int, share_left: float
    ) -> dict[str, float]:
        """Act by upper confidence bounds and learn after every step; as ``MAPPO.update``."""
        if isinstance(task, LogTask):
            rows = task.draw(episodes * length, seed)
            rewards = rows.rewards.double().numpy()
            self.observe(rows.observations.numpy(), rows.actions.numpy(), rewards)
            return {"reward": float(rows.rewards.mean())}
        running = task.begin(episodes, seed)
        earned = []
        for _ in range(length):
            observations = running.observe()
            actions = self.estimates(observations, self.alpha).argmax(axis=-1)
            earned.append(running.step(actions)[0])
            self.observe(observations, actions, earned[-1])
        return {"reward": float(np.mean(earned))}

    def estimates(self, observations: Floats, alpha: float = 0.0) -> NDArray[np.float64]:
        """Return estimates of the reward plus ``alpha`` standard deviations, shape (n, K, A)."""
        columns = []
        for k, (start, stop) in enumerate(self.shape.views):
            own = observations[:, start:stop].astype(np.float64)
            inverse = np.linalg.inv(self._squares[k])
            means = own @ np.einsum("aij,aj->ai", inverse, self._sums[k]).T
            if alpha:
                variances = np.einsum("ni,aij,nj->na", own, inverse, own, optimize=True)
                means = means + alpha * np.sqrt(np.maximum(variances, 0.0))
            columns.append(means)
        return np.stack(columns, axis=1)

    def observe(
        self, observations: Floats, actions: Integers, rewards: NDArray[np.float64]
    ) -> None:
        """Learn from observations (n, size), actions (n, K) and rewards (n,)."""
        for k, (start, stop) in enumerate(self.shape.views):
            own = observations[:, start:stop].astype(np.float64)
            for choice in range(self.shape.choices):
                chosen = actions[:, k] == choice
                self._squares[k][choice] += own[chosen].T @ own[chosen]
                self._sums[k][choice] += own[chosen].T @ rewards[chosen]

    def probabilities(self, observations: Floats) -> Floats:
        """Return 1 for the option with the highest estimate, else 0, shape (n, K, A)."""
        best = self.estimates(observations).argmax(axis=-1)
        return np.asarray(np.eye(self.shape.choices, dtype=np.float32)[best])

    def state(self) -> JsonObject:
        """Return the regressions."""
        squares = [torch.from_numpy(array.copy()) for array in self._squares]
        sums = [torch.from_numpy(array.copy()) for array in self._sums]
        return {"squares": squares, "sums": sums}

    def load_state(self, state: JsonObject) -> None:
        """Load regressions; InputError if they are of another task."""
        for name, own in self.state().items():
            shapes = [tuple(tensor.shape) for tensor in state[name]]
            expected = [tuple(tensor.shape) for tensor in own]
            if shapes != expected:
                raise InputError(
                    f"the state of LinUCB has the shapes {shapes}", expected=f"{expected}"
                )
        self._squares = [tensor.numpy() for tensor in state["squares"]]
        self._sums = [tensor.numpy() for tensor in state["sums"]]
