"""The learner protocol, step collection, and the learners PPO and MAPPO.

What always holds: the random draws of update ``i`` depend on (seed, i) only, so a resumed run repeats them. Each update begins with
fresh episodes; an episode cut off by its end counts as truncated, not terminated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from memalpha.errors import InputError
from memalpha.policies import Policy, PolicyOptions, Shape, make_policy, mean_probabilities
from memalpha.routing.gae import gae
from memalpha.routing.ppo import Agent, Batch, PPOOptions, pack, unpack
from memalpha.routing.tasks import Episodes, Task


class Learner(Protocol):
    """Learns to route."""

    def update(self, task: Task, episodes: int, length: int, seed: int, share_left: float) -> dict[str, float]:
        """Take ``length`` steps in each of ``episodes`` lockstep episodes, learn from them, and return metrics.

        An episode that ends is followed by another. ``share_left`` is the share of the run that is left, 1 at its start.
        """
        ...

    def probabilities(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the probability of every option, shape (n, K, A); the greedy choice is the highest."""
        ...

    def state(self) -> dict[str, Any]:
        """Return everything that was learned, as plain data and tensors."""
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Load what ``state`` returned; InputError says what does not fit."""
        ...


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

    def batch(self, options: PPOOptions) -> Batch:
        """Return all steps as one batch, with estimated advantages and returns."""
        estimates = gae(self.rewards, self.values, self.next_values, self.last, options.gamma, options.lam)
        return Batch(*(tensor.flatten(0, 1) for tensor in (*self[:3], *estimates)))


@torch.no_grad()
def collect(task: Task, policies: Sequence[Policy], episodes: int, length: int, seeds: Sequence[int]) -> Steps:
    """Take ``length`` (T) steps in each of ``episodes`` (N) fresh episodes; one that ends is followed by another.

    Each policy acts in an equal share of the episodes; ``seeds`` are those of the task and of the actions.
    """
    running, generator = Episodes(task, episodes, seeds[0]), torch.Generator().manual_seed(seeds[1])
    rows: list[tuple[Tensor, ...]] = []
    for t in range(length):
        seen = torch.from_numpy(running.observe())
        actions, log_probs = map(torch.cat, zip(*(_draw(p, part, generator) for p, part in _shares(policies, seen)), strict=True))
        rewards, ended, reached = running.step(actions.numpy())
        over = torch.from_numpy(ended)
        after = torch.zeros(episodes) if over.all() else torch.where(over, 0.0, _values(policies, torch.from_numpy(reached)))
        earned, last = torch.as_tensor(rewards, dtype=torch.float32), over | (t == length - 1)
        rows.append((seen, actions, log_probs, earned, _values(policies, seen), after, last))
    return Steps(*(torch.stack(column) for column in zip(*rows, strict=True)))


def _draw(policy: Policy, observations: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw actions (n, K), with their log-probabilities (n, K)."""
    log_probs = policy.log_probs(observations)
    drawn = torch.multinomial(log_probs.exp().flatten(0, 1), 1, generator=generator).view(log_probs.shape[:2])
    return drawn, log_probs.gather(-1, drawn[..., None]).squeeze(-1)


def _values(policies: Sequence[Policy], observations: Tensor) -> Tensor:
    return torch.cat([policy.value(part) for policy, part in _shares(policies, observations)])


def _shares(policies: Sequence[Policy], observations: Tensor) -> list[tuple[Policy, Tensor]]:
    return list(zip(policies, observations.chunk(len(policies)), strict=True))


class PPO:
    """One policy, trained by PPO; the joint action is one action. ``seed`` draws its first weights."""

    per_decider = False

    def __init__(self, shape: Shape, policy: PolicyOptions, options: PPOOptions, seed: int) -> None:
        self.agents = [Agent(make_policy(shape, policy, seed), options)]

    def update(self, task: Task, episodes: int, length: int, seed: int, share_left: float) -> dict[str, float]:
        """Collect steps, estimate advantages, update; InputError if the agents cannot share the episodes evenly."""
        *collecting, batch_seed = seeds_of(seed, 3)
        many = len(self.agents)
        if episodes % many:
            raise InputError(f"{episodes} episodes (envs) for {many} agents", expected="a multiple of the agents")
        steps = collect(task, [agent.policy for agent in self.agents], episodes, length, collecting)
        for agent in self.agents:
            agent.set_rates(share_left)
        parts = [Steps(*own) for own in zip(*(tensor.chunk(many, dim=1) for tensor in steps), strict=True)]
        batches = [part.batch(agent.options) for part, agent in zip(parts, self.agents, strict=True)]
        learned = self.learn(batches, batch_seed, [float(part.rewards.flatten().double().numpy().mean()) for part in parts])
        return {"reward": float(steps.rewards.mean()), **learned}

    def learn(self, batches: Sequence[Batch], seed: int, rewards: Sequence[float]) -> dict[str, float]:
        """Update from a batch and a mean reward per agent; return the metrics."""
        return self.agents[0].update(batches[0], seed, per_decider=self.per_decider)

    def probabilities(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the mean of the agents' probabilities, shape (n, K, A)."""
        found: NDArray[np.float32]
        found = mean_probabilities([agent.policy for agent in self.agents], torch.from_numpy(observations)).numpy()
        return found

    def state(self) -> dict[str, Any]:
        """Return each agent's networks, weights and optimizer."""
        return {"members": pack(self.agents)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Load what ``state`` returned; InputError says what does not fit."""
        unpack(state.get("members", []), self.agents)


class MAPPO(PPO):
    """MAPPO (Yu et al., arXiv 2103.01955): PPO for a team of actors with one centralised value; arguments as for ``PPO``.

    Each decider's actor sees its own view; the value sees the whole observation, in training only. Each decider's ratio is clipped
    separately and uses the team's advantage (section 3 and appendix). Not covered: recurrent actors, value normalisation.
    Departures from the public prompt router: optimizers train all layers, softmax is applied once, episodes run in lockstep.
    """

    per_decider = True

    def __init__(self, shape: Shape, policy: PolicyOptions, options: PPOOptions, seed: int) -> None:
        if policy.kind != "team":
            raise InputError(f"MAPPO with a policy of kind {policy.kind!r}", expected="team")
        super().__init__(shape, policy, options, seed)
