"""Learners of routing tasks: PPO and MAPPO; the collection of steps, and old steps as if taken now.

The random draws of update ``i`` depend on (seed, i) only, so a resumed run repeats them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from memalpha.errors import InputError
from memalpha.policies import Policy, PolicyOptions, Shape, make_policy, mean_probabilities
from memalpha.routing.advantages import gae
from memalpha.routing.environment import EnvironmentTask
from memalpha.routing.logged import LogTask
from memalpha.routing.ppo import Agent, Batch, Experience, PPOOptions, pack, unpack
from memalpha.routing.tasks import Episodes, Floats, SectionTask, SyntheticTask

Task = SyntheticTask | SectionTask | EnvironmentTask | LogTask


def seeds_of(seed: int, n: int) -> list[int]:
    """Return ``n`` independent seeds made of one."""
    return [int(number) for number in np.random.SeedSequence(seed).generate_state(n)]


class Steps(NamedTuple):
    """Steps, each of shape (T, N, ...): time, then episodes. ``next_values``, ``last`` and
    ``ratios`` as in ``gae``.
    """

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    rewards: Tensor
    values: Tensor
    next_values: Tensor
    last: Tensor
    ratios: Tensor


def begin(task: Any, n: int, seed: int, *, held_out: bool = False) -> Any:
    """Return ``n`` episodes of a task, or copies of an environment, in lockstep."""
    return (
        task.episodes(n, seed)
        if isinstance(task, EnvironmentTask)
        else Episodes(task, n, seed, held_out=held_out)
    )


@torch.no_grad()
def collect(
    task: Task, policies: Sequence[Policy], episodes: int, length: int, seeds: Sequence[int]
) -> Steps:
    """Take ``length`` (T) steps in each of ``episodes`` (N) fresh episodes, shared equally;
    ``seeds``: of task and actions.
    """
    running, generator = begin(task, episodes, seeds[0]), torch.Generator().manual_seed(seeds[1])

    def shares(observations: Tensor) -> list[tuple[Policy, Tensor]]:
        return list(zip(policies, observations.chunk(len(policies)), strict=True))

    def values(observations: Tensor) -> Tensor:
        return torch.cat([policy.value(part) for policy, part in shares(observations)])

    rows: list[tuple[Tensor, ...]] = []
    for t in range(length):
        seen = torch.from_numpy(running.observe())
        actions, log_probs = map(
            torch.cat, zip(*(_draw(p, part, generator) for p, part in shares(seen)), strict=True)
        )
        rewards, ended, cut, reached = running.step(actions.numpy())
        over = torch.from_numpy(ended)
        after = (
            torch.zeros(episodes)
            if over.all()
            else torch.where(over, 0.0, values(torch.from_numpy(reached)))
        )
        earned, last = (
            torch.as_tensor(rewards, dtype=torch.float32),
            over | torch.from_numpy(cut) | (t == length - 1),
        )
        rows.append(
            (seen, actions, log_probs, earned, values(seen), after, last, torch.ones(episodes))
        )
    return Steps(*(torch.stack(column) for column in zip(*rows, strict=True)))


def _draw(
    policy: Policy, observations: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw actions (n, K), with their log-probabilities (n, K)."""
    log_probs = policy.log_probs(observations)
    drawn = torch.multinomial(log_probs.exp().flatten(0, 1), 1, generator=generator).view(
        log_probs.shape[:2]
    )
    return drawn, log_probs.gather(-1, drawn[..., None]).squeeze(-1)


@torch.no_grad()
def replay(policy: Policy, old: Experience, max_ratio: float) -> Steps:
    """Return old steps as one episode after the other, with a policy's own probabilities, values
    and truncated ratios.
    """
    log_probs = policy.log_probs(old.observations).gather(-1, old.actions[..., None]).squeeze(-1)
    ratios = (log_probs.sum(dim=-1) - old.log_probs).exp().clamp(max=max_ratio)
    after = torch.where(old.terminated, 0.0, policy.value(old.reached))
    found = (
        old.observations,
        old.actions,
        log_probs,
        old.rewards,
        policy.value(old.observations),
        after,
        old.last,
        ratios,
    )
    return Steps(*(tensor[:, None] for tensor in found))


def batch_of(steps: Steps, options: PPOOptions) -> Batch:
    """Return steps with their advantages, in any order."""
    estimates = gae(*steps[3:], options.gamma, options.lam)
    return Batch(*(tensor.flatten(0, 1) for tensor in (*steps[:3], *estimates, steps.ratios)))


class PPO:
    """One policy, trained by PPO; the joint action is one action. ``seed`` draws its first
    weights.
    """

    per_decider = False

    def __init__(self, shape: Shape, policy: PolicyOptions, options: PPOOptions, seed: int) -> None:
        self.agents = [Agent(make_policy(shape, policy, seed), options)]

    def update(
        self, task: Task, episodes: int, length: int, seed: int, share_left: float
    ) -> dict[str, float]:
        """Take ``length`` steps in each of ``episodes`` episodes, learn, and return metrics;
        ``share_left`` of the run.
        """
        *collecting, batch_seed = seeds_of(seed, 3)
        many = len(self.agents)
        if episodes % many:
            raise InputError(
                f"{episodes} episodes (envs) for {many} agents", expected="a multiple of the agents"
            )
        for agent in self.agents:
            agent.set_rates(share_left)
        if isinstance(task, LogTask):
            drawn = [
                task.draw(episodes // many * length, own) for own in seeds_of(collecting[0], many)
            ]
            parts = [
                replay(a.policy, rows, a.options.max_ratio)
                for a, rows in zip(self.agents, drawn, strict=True)
            ]
        else:
            steps = collect(
                task, [agent.policy for agent in self.agents], episodes, length, collecting
            )
            parts = [
                Steps(*own)
                for own in zip(*(tensor.chunk(many, dim=1) for tensor in steps), strict=True)
            ]
        batches = [
            batch_of(own, agent.options) for own, agent in zip(parts, self.agents, strict=True)
        ]
        rewards = [float(part.rewards.double().mean()) for part in parts]
        return {"reward": float(np.mean(rewards)), **self.learn(batches, batch_seed, rewards)}

    def learn(
        self, batches: Sequence[Batch], seed: int, rewards: Sequence[float]
    ) -> dict[str, float]:
        """Update from a batch and a mean reward per agent; return the metrics."""
        return self.agents[0].update(batches[0], seed, per_decider=self.per_decider)

    def probabilities(self, observations: Floats) -> Floats:
        """Return the mean of the agents' probabilities, shape (n, K, A); the greedy choice is the
        highest.
        """
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
