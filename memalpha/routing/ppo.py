"""PPO with a clipped ratio (Schulman et al., arXiv 1707.06347): the losses, one update, and the single-agent learner.

    policy   -mean(min(ratio * A, clip(ratio, 1 - c, 1 + c) * A)),  ratio = exp(log pi(a|s) - log pi_old(a|s))
    total    policy + value_coefficient * mean((V - R)^2) - entropy * mean(entropy)

The gradient is clipped by its norm. An update stops as soon as a minibatch shows a divergence from the old policy above 1.5 times
``target_kl``, before that minibatch is learnt from; divergence is the mean of (ratio - 1) - log ratio (never negative).

What always holds: old log-probabilities are those the actions were sampled with, kept with the data. Fault of the public code that
is mended here: it computed them from the policy being trained, so the first ratio was always 1 and data from another policy went
unnoticed. What an update reports is averaged over the minibatches that were learnt from, not over those that were planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from memalpha.errors import InputError
from memalpha.routing.policies import Policy


@dataclass(frozen=True, slots=True)
class PPOOptions:
    """How a policy is updated.

    Attributes:
        lr_actor: Adam's learning rate of the policy.
        lr_critic: Adam's learning rate of the value.
        anneal: Let both rates fall in a straight line to 0 over the run.
        gamma: Discount.
        lam: Lambda of the advantage estimates.
        clip: How far the ratio may move, in both directions.
        target_kl: An update stops at 1.5 times this divergence, in nats (0 = never).
        value_coefficient: Weight of the value's squared error.
        entropy: Weight of the entropy bonus, per nat.
        max_grad_norm: Bound of the gradient's norm.
        epochs: Most passes over the data of an update.
        batch_size: Steps of a minibatch.
        normalise: Whether advantages are shifted and scaled to mean 0 and deviation 1 first.
    """

    lr_actor: float = 3e-4
    lr_critic: float = 1e-3
    anneal: bool = False
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2
    target_kl: float = 0.01
    value_coefficient: float = 0.5
    entropy: float = 0.01
    max_grad_norm: float = 0.5
    epochs: int = 10
    batch_size: int = 64
    normalise: bool = True

    def __post_init__(self) -> None:
        """Check the numbers; InputError names the first that cannot be."""
        for name in ("lr_actor", "lr_critic", "clip", "max_grad_norm"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)!r}", expected="a number above 0")
        for name in ("target_kl", "value_coefficient", "entropy"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} is {getattr(self, name)!r}", expected="at least 0")
        for name in ("gamma", "lam"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} is {getattr(self, name)!r}", expected="from 0 to 1")
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)!r}", expected="at least 1")


class Batch(NamedTuple):
    """Steps to learn from, in any order.

    Attributes:
        observations: Shape (n, size).
        actions: Shape (n, K).
        log_probs: Log-probability of each decider's action when it was sampled, shape (n, K).
        advantages: Shape (n,).
        returns: Targets of the value, shape (n,).
    """

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    advantages: Tensor
    returns: Tensor

    def rows(self, index: Tensor) -> Batch:
        """Return the steps at ``index``."""
        return Batch(*(tensor[index] for tensor in self))


class Losses(NamedTuple):
    """The parts of the loss of one minibatch, scalars: ``total`` has a gradient; the rest is for looking at."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor
    clipped: Tensor


def clipped_policy_loss(ratios: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Return the clipped surrogate loss of ratios (n, k) and advantages that broadcast to them, a scalar."""
    return -torch.minimum(ratios * advantages, ratios.clamp(1 - clip, 1 + clip) * advantages).mean()


def ppo_losses(policy: Policy, batch: Batch, options: PPOOptions, *, per_decider: bool) -> Losses:
    """Return the losses of a minibatch.

    Args:
        policy: What is trained.
        batch: The minibatch.
        options: Weights and clip.
        per_decider: Whether each decider's own ratio is clipped (MAPPO) or that of the joint action.
    """
    log_probs = policy.log_probs(batch.observations)  # (n, K, A)
    taken = log_probs.gather(-1, batch.actions[..., None]).squeeze(-1)  # (n, K)
    change = taken - batch.log_probs
    if not per_decider:
        change = change.sum(dim=-1, keepdim=True)
    ratios = change.exp()
    surrogate = clipped_policy_loss(ratios, batch.advantages[:, None], options.clip)
    value = (policy.value(batch.observations) - batch.returns).square().mean()
    entropy = -(log_probs.exp() * log_probs).sum(dim=-1).mean()
    with torch.no_grad():
        kl = ((ratios - 1) - change).mean()
        clipped = ((ratios - 1).abs() > options.clip).float().mean()
    return Losses(surrogate + options.value_coefficient * value - options.entropy * entropy, surrogate, value, entropy, kl, clipped)


def make_optimizer(policy: Policy, options: PPOOptions) -> torch.optim.Adam:
    """Return one Adam over all parameters: the actor's at one rate, the others at another."""
    actor, critic = policy.parameter_groups()
    return torch.optim.Adam([{"params": actor, "lr": options.lr_actor}, {"params": critic, "lr": options.lr_critic}])


def set_rates(optimizer: torch.optim.Optimizer, options: PPOOptions, share_left: float) -> None:
    """Set the learning rates to what they are with ``share_left`` (1 to 0) of the run to go."""
    for group, rate in zip(optimizer.param_groups, (options.lr_actor, options.lr_critic), strict=True):
        group["lr"] = rate * (share_left if options.anneal else 1.0)


def update_policy(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    options: PPOOptions,
    generator: torch.Generator,
    *,
    per_decider: bool,
) -> dict[str, float]:
    """Learn from one batch in several passes and return what happened.

    Args:
        policy: Changed in place.
        optimizer: Of all its parameters.
        batch: Fresh steps.
        options: How.
        generator: Draws the minibatches.
        per_decider: See ``ppo_losses``.

    Returns:
        Means over the minibatches learnt from of ``policy_loss``, ``value_loss``, ``entropy``, ``kl``, ``clipped`` (share of
        ratios) and ``grad_norm``; ``minibatches``; ``stopped`` (1 if the divergence ended the update early) and ``stop_kl``,
        the divergence that did.
    """
    if options.normalise:
        batch = batch._replace(advantages=normalised(batch.advantages))
    seen: list[tuple[float, ...]] = []
    for index in _minibatches(len(batch.advantages), options, generator):
        losses = ppo_losses(policy, batch.rows(index), options, per_decider=per_decider)
        if options.target_kl and losses.kl > 1.5 * options.target_kl:
            return _report(seen, stop_kl=float(losses.kl))
        optimizer.zero_grad()
        losses.total.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), options.max_grad_norm)
        optimizer.step()
        seen.append((*(float(part.detach()) for part in losses[1:]), float(norm)))
    return _report(seen)


def normalised(values: Tensor) -> Tensor:
    """Return values shifted to mean 0 and scaled to (biased) deviation 1."""
    return (values - values.mean()) / (values.std(correction=0) + 1e-8)


def _minibatches(n: int, options: PPOOptions, generator: torch.Generator) -> Iterator[Tensor]:
    for _ in range(options.epochs):
        yield from torch.split(torch.randperm(n, generator=generator), options.batch_size)


def _report(seen: Sequence[tuple[float, ...]], stop_kl: float | None = None) -> dict[str, float]:
    names = ("policy_loss", "value_loss", "entropy", "kl", "clipped", "grad_norm")
    means = {name: sum(row[i] for row in seen) / len(seen) for i, name in enumerate(names)} if seen else {}
    stopped = {"stopped": 0.0} if stop_kl is None else {"stopped": 1.0, "stop_kl": stop_kl}
    return {**means, "minibatches": float(len(seen)), **stopped}
