"""What a learner is, collecting steps with it, and the single-agent PPO learner.

A learner sees a vector environment that restarts episodes in the same step. What always holds: update ``i`` of a run with seed
``s`` draws what depends on (s, i) alone, so a resumed run draws what the uninterrupted one would have; each update begins with
fresh episodes, and one that is cut off by its end counts as truncated, not as over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from memalpha.errors import InputError
from memalpha.routing.checkpoints import pack_policy, unpack_members
from memalpha.routing.gae import gae
from memalpha.routing.policies import Policy, PolicyOptions, Shape, make_policy
from memalpha.routing.ppo import Batch, PPOOptions, make_optimizer, set_rates, update_policy
from memalpha.routing.tasks import Task

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

Metrics = dict[str, float]


class Learner(Protocol):
    """Learns to route."""

    def update(self, env: VectorEnv[Any, Any, Any], length: int, seed: int, share_left: float) -> Metrics:
        """Take ``length`` steps in every episode of ``env``, learn from them, and return what happened.

        Args:
            env: A vector environment that restarts episodes in the same step.
            length: Steps of each column.
            seed: Fixes everything that is drawn.
            share_left: Share of the run that is left, 1 at its start.
        """
        ...

    def probabilities(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the probability of every option, shape (n, K, A); the greedy choice is the highest."""
        ...

    def state(self) -> dict[str, Any]:
        """Return everything that was learnt, as plain data and tensors."""
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up what ``state`` returned; InputError that says what does not fit."""
        ...


def shape_of(task: Task) -> Shape:
    """Return the shape of a policy for a task."""
    return Shape(task.size, task.deciders, task.choices, tuple((view.start, view.stop) for view in task.views))


def seeds_of(seed: int, n: int) -> list[int]:
    """Return ``n`` independent seeds made of one."""
    return [int(number) for number in np.random.SeedSequence(seed).generate_state(n)]


# ------------------------------------------------------------------------------------------------ collecting
class Acted(NamedTuple):
    """Actions (n, K), the log-probability of each (n, K), and the values of the observations (n,)."""

    actions: Tensor
    log_probs: Tensor
    values: Tensor


class Actor(Protocol):
    """Acts on observations of shape (n, size)."""

    def act(self, observations: Tensor) -> Acted:
        """Draw actions."""
        ...

    def value(self, observations: Tensor) -> Tensor:
        """Return values, shape (n,)."""
        ...


class SamplingActor:
    """Draws actions from a policy.

    Args:
        policy: The policy.
        generator: Where chance comes from.
    """

    def __init__(self, policy: Policy, generator: torch.Generator) -> None:
        self.policy, self.generator = policy, generator

    def act(self, observations: Tensor) -> Acted:
        """Draw actions from the policy's probabilities."""
        log_probs = self.policy.log_probs(observations)
        n, deciders, choices = log_probs.shape
        drawn = torch.multinomial(log_probs.exp().view(-1, choices), 1, generator=self.generator).view(n, deciders)
        return Acted(drawn, log_probs.gather(-1, drawn[..., None]).squeeze(-1), self.policy.value(observations))

    def value(self, observations: Tensor) -> Tensor:
        """Return the policy's values."""
        return self.policy.value(observations)


class Steps(NamedTuple):
    """Collected steps: time first, then columns. ``next_values`` and ``last`` as ``memalpha.routing.gae.gae`` takes them."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    rewards: Tensor
    values: Tensor
    next_values: Tensor
    last: Tensor

    def columns(self, start: int, stop: int) -> Steps:
        """Return the steps of some columns."""
        return Steps(*(tensor[:, start:stop] for tensor in self))

    def batch(self, advantages: Tensor, returns: Tensor) -> Batch:
        """Return all steps as one batch, with advantages and returns of shape (T, N)."""
        return Batch(*(tensor.flatten(0, 1) for tensor in (*self[:3], advantages, returns)))


@torch.no_grad()
def collect(env: VectorEnv[Any, Any, Any], actor: Actor, length: int, seed: int) -> Steps:
    """Take ``length`` steps in every column of a vector environment, from fresh episodes.

    Raises:
        InputError: If the environment does not restart episodes in the same step.
    """
    mode = env.metadata.get("autoreset_mode")
    if getattr(mode, "value", None) != "SameStep":
        raise InputError(f"a vector environment with autoreset mode {mode}", expected="AutoresetMode.SAME_STEP")
    observations, _ = env.reset(seed=seed)
    rows: list[tuple[Tensor, ...]] = []
    for t in range(length):
        seen = torch.as_tensor(observations, dtype=torch.float32)
        acted = actor.act(seen)
        observations, rewards, terminated, truncated, info = env.step(acted.actions.numpy())
        ended = np.asarray(terminated) | np.asarray(truncated)
        after = _values_after(actor, observations, terminated, ended, info)
        last = torch.as_tensor(ended | (t == length - 1))
        earned = torch.as_tensor(rewards, dtype=torch.float32)
        rows.append((seen, acted.actions, acted.log_probs, earned, acted.values, after, last))
    return Steps(*(torch.stack(column) for column in zip(*rows, strict=True)))


def _values_after(actor: Actor, observations: Any, terminated: Any, ended: NDArray[np.bool_], info: dict[str, Any]) -> Tensor:
    """Values of what the steps led to, before any restart; 0 where the episode terminated."""
    over = torch.as_tensor(terminated)
    if over.all():
        return torch.zeros(len(over))
    reached = np.array(observations, dtype=np.float32)
    if ended.any():
        reached[ended] = np.stack(list(info["final_obs"][ended]))
    return torch.where(over, 0.0, actor.value(torch.as_tensor(reached)))


# ------------------------------------------------------------------------------------------------ one policy
class PPO:
    """One policy, trained by PPO; the joint action is one action.

    Args:
        shape: Of the task.
        policy: Its networks.
        options: How it is updated.
        seed: Draws its first weights.
    """

    per_decider = False
    kinds: tuple[str, ...] = ("separate", "shared_encoder", "team")

    def __init__(self, shape: Shape, policy: PolicyOptions, options: PPOOptions, seed: int) -> None:
        if policy.kind not in self.kinds:
            raise InputError(f"{type(self).__name__} with a policy of kind {policy.kind!r}", expected=" or ".join(self.kinds))
        self.policy, self.options = make_policy(shape, policy, seed), options
        self.optimizer = make_optimizer(self.policy, options)

    def update(self, env: VectorEnv[Any, Any, Any], length: int, seed: int, share_left: float) -> Metrics:
        """Collect, estimate advantages, update."""
        env_seed, action_seed, batch_seed = seeds_of(seed, 3)
        steps = collect(env, SamplingActor(self.policy, torch.Generator().manual_seed(action_seed)), length, env_seed)
        o = self.options
        advantages, returns = gae(steps.rewards, steps.values, steps.next_values, steps.last, o.gamma, o.lam)
        set_rates(self.optimizer, o, share_left)
        generator = torch.Generator().manual_seed(batch_seed)
        batch = steps.batch(advantages, returns)
        report = update_policy(self.policy, self.optimizer, batch, o, generator, per_decider=self.per_decider)
        return {"reward": float(steps.rewards.mean()), **report}

    @torch.no_grad()
    def probabilities(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the policy's probabilities, shape (n, K, A)."""
        found: NDArray[np.float32] = self.policy.log_probs(torch.as_tensor(observations)).exp().numpy()
        return found

    def state(self) -> dict[str, Any]:
        """Return networks, weights and optimizer."""
        return {"members": [pack_policy(self.policy, self.optimizer)]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up networks and optimizer; InputError says what does not fit."""
        unpack_members(state, [(self.policy, self.optimizer)])
