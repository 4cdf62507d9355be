"""PPO with a clipped ratio (Schulman et al., arXiv 1707.06347, equations 7 and 9): the one update
of PPO, MAPPO and GRPO.

    policy   -mean(weight * min(ratio * A, clip(ratio, 1 - c, 1 + c) * A)),  ratio = exp(log pi(a|s)
    - log pi_old(a|s)) total    policy + value_coefficient * mean((V - R)^2) - entropy *
    mean(entropy)

``pi_old`` is the policy at the update's start, ``weight`` its truncated ratio to the policy that
took the action, 1 if they are the same (the decoupled objective of Hilton et al., arXiv 2110.00641,
section 3). The divergence from ``pi_old`` is the mean of (ratio - 1) - log ratio: an epoch ends
before a minibatch above 1.5 times ``target_kl``, the update after an epoch's mean above it.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from memalpha.config import Options, Share
from memalpha.errors import InputError
from memalpha.policies import Policy, plain


@dataclass(frozen=True, slots=True)
class PPOOptions(Options):
    """Options of a policy update.

    Attributes:
        lr_actor: Adam's learning rate of the policy.
        lr_critic: Adam's learning rate of the value.
        anneal: Let both rates fall linearly to 0 over the run.
        gamma: Discount.
        lam: Lambda of the advantage estimates.
        max_ratio: Bound of the weight of a step that another policy took.
        clip: Largest change of the ratio, in both directions.
        target_kl: An epoch ends at 1.5 times this divergence, in nats, the update at an epoch's
            mean above it (0 = never).
        value_coefficient: Weight of the value's squared error.
        entropy: Weight of the entropy bonus, per nat.
        max_grad_norm: Bound of the gradient's norm.
        epochs: Most passes over the data of an update.
        batch_size: Steps of a minibatch.
        normalise: Whether advantages are first normalised to mean 0 and deviation 1.
    """

    lr_actor: PositiveFloat = 3e-4
    lr_critic: PositiveFloat = 1e-3
    anneal: bool = False
    gamma: Share = 0.99
    lam: Share = 0.95
    max_ratio: PositiveFloat = 10.0
    clip: PositiveFloat = 0.2
    target_kl: NonNegativeFloat = 0.01
    value_coefficient: NonNegativeFloat = 0.5
    entropy: NonNegativeFloat = 0.01
    max_grad_norm: PositiveFloat = 0.5
    epochs: PositiveInt = 10
    batch_size: PositiveInt = 64
    normalise: bool = True


class Batch(NamedTuple):
    """Steps in any order: observations (n, size), actions and old log_probs (n, K), advantages,
    returns and weights (n,).
    """

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    advantages: Tensor
    returns: Tensor
    weights: Tensor


class Experience(NamedTuple):
    """Old steps in order, (n, ...): ``log_probs`` (n,) of the joint action when it was taken;
    ``reached``: the next observation.
    """

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    rewards: Tensor
    reached: Tensor
    terminated: Tensor
    last: Tensor


def ppo_losses(
    policy: Policy, batch: Batch, options: PPOOptions, *, per_decider: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a minibatch, and its parts by name; ``per_decider`` clips each decider's
    ratio (MAPPO), not the joint.
    """
    log_probs = policy.log_probs(batch.observations)  # (n, K, A)
    taken = log_probs.gather(-1, batch.actions[..., None]).squeeze(-1)  # (n, K)
    change = taken - batch.log_probs
    if not per_decider:
        change = change.sum(dim=-1, keepdim=True)
    ratios = change.exp()
    gains = batch.advantages[:, None]
    clipped_gains = torch.minimum(
        ratios * gains, ratios.clamp(1 - options.clip, 1 + options.clip) * gains
    )
    surrogate = -(batch.weights[:, None] * clipped_gains).mean()
    value = (policy.value(batch.observations) - batch.returns).square().mean()
    entropy = -(log_probs.exp() * log_probs).sum(dim=-1).mean()
    kl = ((ratios - 1) - change).mean()
    clipped = ((ratios - 1).abs() > options.clip).float().mean()
    total = surrogate + options.value_coefficient * value - options.entropy * entropy
    parts = {
        "policy_loss": surrogate,
        "value_loss": value,
        "entropy": entropy,
        "kl": kl,
        "clipped": clipped,
    }
    return total, {name: part.detach() for name, part in parts.items()}


def normalised(values: Tensor) -> Tensor:
    """Return values shifted to mean 0 and scaled to (biased) deviation 1."""
    return (values - values.mean()) / (values.std(correction=0) + 1e-8)


class Agent:
    """A policy and its optimizer, with one learning rate for the logits' parameters and one for the
    others.
    """

    def __init__(self, policy: Policy, options: PPOOptions) -> None:
        self.policy, self.options = policy, options
        actor, critic = policy.parameter_groups()
        self.optimizer = torch.optim.Adam(
            [{"params": actor, "lr": options.lr_actor}, {"params": critic, "lr": options.lr_critic}]
        )

    def set_rates(self, share_left: float) -> None:
        """Set the learning rates for ``share_left`` (1 to 0) of the run."""
        for group, rate in zip(
            self.optimizer.param_groups,
            (self.options.lr_actor, self.options.lr_critic),
            strict=True,
        ):
            group["lr"] = rate * (share_left if self.options.anneal else 1.0)

    def update(self, batch: Batch, seed: int, *, per_decider: bool = False) -> dict[str, float]:
        """Learn from one batch in several passes; ``seed`` draws the minibatches, over which the
        returned figures are means.
        """
        options, generator = self.options, torch.Generator().manual_seed(seed)
        if options.normalise:
            batch = batch._replace(advantages=normalised(batch.advantages))
        seen: list[dict[str, float]] = []
        stop = {"stopped": 0.0}
        for _ in range(options.epochs):
            divergences: list[float] = []
            for index in torch.split(
                torch.randperm(len(batch.advantages), generator=generator), options.batch_size
            ):
                total, parts = ppo_losses(
                    self.policy,
                    Batch(*(part[index] for part in batch)),
                    options,
                    per_decider=per_decider,
                )
                divergences.append(float(parts["kl"]))
                if options.target_kl and divergences[-1] > 1.5 * options.target_kl:
                    break
                self.optimizer.zero_grad()
                total.backward()  # type: ignore[no-untyped-call]
                norm = torch.nn.utils.clip_grad_norm_(
                    self.policy.parameters(), options.max_grad_norm
                )
                self.optimizer.step()
                seen.append(
                    {
                        **{name: float(part) for name, part in parts.items()},
                        "grad_norm": float(norm),
                    }
                )
            mean = sum(divergences) / len(divergences)
            if options.target_kl and mean > options.target_kl:
                stop = {"stopped": 1.0, "stop_kl": mean}
                break
        means = {
            name: sum(row[name] for row in seen) / len(seen) for name in (seen[0] if seen else ())
        }
        return {**means, "minibatches": float(len(seen)), **stop}


def pack(agents: Sequence[Agent]) -> list[dict[str, Any]]:
    """Return networks, weights and optimizers: the ``members`` of a checkpoint's state."""
    return [
        {
            "policy": plain(
                {"shape": agent.policy.shape._asdict(), "options": asdict(agent.policy.options)}
            ),
            "weights": {
                name: tensor.detach().clone() for name, tensor in agent.policy.state_dict().items()
            },
            "optimizer": agent.optimizer.state_dict(),
        }
        for agent in agents
    ]


def unpack(members: Sequence[Mapping[str, Any]], agents: Sequence[Agent]) -> None:
    """Load what ``pack`` returned, or change nothing; InputError names what does not fit."""
    if len(members) != len(agents):
        raise InputError(
            f"a checkpoint of {len(members)} agents", expected=f"{len(agents)}, as configured"
        )
    try:
        for member, agent in zip(members, agents, strict=True):
            deepcopy(agent.policy).load_state_dict(member["weights"])
    except RuntimeError as error:
        raise InputError(
            f"the checkpoint does not fit: {error}", expected="the configuration it was made with"
        ) from error
    for member, agent in zip(members, agents, strict=True):
        agent.policy.load_state_dict(member["weights"])
        agent.optimizer.load_state_dict(member["optimizer"])
