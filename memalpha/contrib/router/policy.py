"""Policy networks with their checkpoint files, and PPO, which updates them.

K deciders choose among A options each, and a critic gives a state's value. ``separate`` is one
network of the observation with K x A logits; ``team`` an actor per decider on its view, or one for
all with the decider's one-hot; a learned projection can come first. Weights are orthogonal: gain
sqrt(2) before a ReLU, 0.01 for logits, 1 for values. Departure from the public code: every
parameter is in an optimizer's group, not the last layers alone.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import pickle
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from memalpha.config import Options, Share
from memalpha.errors import InputError
from memalpha.files import replacing
from memalpha.types import JsonMapping, JsonObject


class Shape(NamedTuple):
    """Observation length, K deciders, A choices of each, and for each decider the (start, stop)
    part that it sees.
    """

    size: int
    deciders: int
    choices: int
    views: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class NetworkOptions(Options):
    """Options of the networks of a policy.

    Attributes:
        kind: ``separate`` makes one actor and one critic; ``team`` makes an actor for each decider
            and one common critic.
        hidden: The hidden layers have these widths.
        projection: A learned projection of this width comes first; 0 = none.
        share_actors: If true, in a team one actor serves all deciders, whose views must then have
            the same length.
    """

    kind: Literal["separate", "team"] = "separate"
    hidden: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (64, 64)
    projection: NonNegativeInt = 0
    share_actors: bool = False


class Policy(nn.Module):
    """A policy with a value; InputError if one actor is to serve views of different lengths."""

    def __init__(self, shape: Shape, options: NetworkOptions) -> None:
        super().__init__()
        self.shape = shape
        self.options = options
        if options.kind == "separate":
            self.actor = _network(shape.size, options, shape.deciders * shape.choices, gain=0.01)
        else:
            widths = [stop - start for start, stop in shape.views]
            if options.share_actors and len(set(widths)) > 1:
                raise InputError(
                    f"share_actors is true, but the views have the lengths {widths}",
                    expected="views of one length",
                    fix="set share_actors: false",
                )
            inputs = [widths[0] + shape.deciders] if options.share_actors else widths
            self.actors = nn.ModuleList(
                _network(width, options, shape.choices, gain=0.01) for width in inputs
            )
        self.critic = _network(shape.size, options, 1, gain=1.0)

    def logits(self, observations: Tensor) -> Tensor:
        """Return unnormalised log-probabilities of shape (n, K, A) for observations (n, size)."""
        if self.options.kind == "separate":
            logits: Tensor = self.actor(observations)
            return logits.view(-1, self.shape.deciders, self.shape.choices)
        views = [observations[:, start:stop] for start, stop in self.shape.views]
        if not self.options.share_actors:
            return torch.stack(
                [actor(view) for actor, view in zip(self.actors, views, strict=True)], dim=1
            )
        one_hot = torch.eye(self.shape.deciders).to(observations).expand(len(observations), -1, -1)
        shared: Tensor = self.actors[0](torch.cat([torch.stack(views, dim=1), one_hot], dim=-1))
        return shared

    def value(self, observations: Tensor) -> Tensor:
        """Return the values of observations (n, size), shape (n,)."""
        return self.critic(observations).squeeze(-1)  # type: ignore[no-any-return]

    def log_probs(self, observations: Tensor) -> Tensor:
        """Return the log-probabilities of all options, shape (n, K, A)."""
        return torch.log_softmax(self.logits(observations), dim=-1)

    def parameter_groups(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return the parameters that the logits use, and all others."""
        named = self.named_parameters()
        actor = [parameter for name, parameter in named if not name.startswith("critic.")]
        return actor, list(self.critic.parameters())


def make_policy(shape: Shape, options: NetworkOptions, seed: int) -> Policy:
    """Return a policy with seeded initial weights; the global random state does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Policy(shape, options)


@torch.no_grad()
def mean_probabilities(policies: Sequence[Policy], observations: Tensor) -> Tensor:
    """Return the mean of the policies' probabilities, shape (n, K, A)."""
    return torch.stack([policy.log_probs(observations).exp() for policy in policies]).mean(dim=0)


def _network(size: int, options: NetworkOptions, out: int, gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    if options.projection:
        layers.append(_linear(size, options.projection, gain=1.0))
        size = options.projection
    for width in options.hidden:
        layers += [_linear(size, width, gain=math.sqrt(2)), nn.ReLU()]
        size = width
    return nn.Sequential(*layers, _linear(size, out, gain))


def _linear(size: int, out: int, gain: float) -> nn.Linear:
    layer = nn.Linear(size, out)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A trained router or tool selector (``routes`` has its tools); ``state`` is the learner's."""

    learner: str
    updates: int
    steps: int
    seed: int
    config: JsonMapping
    state: JsonMapping
    routes: JsonMapping = field(default_factory=dict)

    def save(self, path: str | Path) -> None:
        """Write the file atomically, the digest of all of it in front."""
        content = pack_tensors({item.name: getattr(self, item.name) for item in fields(self)})
        with replacing(Path(path)) as temporary:
            temporary.write_bytes(hashlib.sha256(content).digest() + content)

    @classmethod
    def load(cls, path: str | Path) -> Checkpoint:
        """Read a file, or ``checkpoint.pt`` of a run folder; InputError if it is missing, damaged
        or foreign.

        What killed writers left beside it is removed.
        """
        file = Path(path) / "checkpoint.pt" if Path(path).is_dir() else Path(path)
        if not file.is_file():
            fix = "make one with memalpha router train"
            raise InputError(
                f"there is no router at {str(file)!r}", expected="a checkpoint", fix=fix
            )
        for leftover in file.parent.glob(f".{file.name}.[0-9]*"):
            if not Path("/proc", leftover.suffix[1:]).exists():
                leftover.unlink(missing_ok=True)
        content = file.read_bytes()
        try:
            if hashlib.sha256(content[32:]).digest() != content[:32]:
                raise ValueError("the file is damaged, or not a checkpoint")
            return cls(**unpack_tensors(content[32:]))
        except _DAMAGE as error:
            raise InputError(
                f"{file} cannot be read: {error}",
                expected="a checkpoint of memalpha router",
                fix="restore the file from a copy, or remove it and start again",
            ) from error


# Errors of torch.load for a foreign file.
_DAMAGE = (
    EOFError,
    IndexError,
    KeyError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
)


def pack_tensors(data: Any) -> bytes:
    """Return tensors and plain data as bytes."""
    content = io.BytesIO()
    torch.save(data, content)
    return content.getvalue()


def unpack_tensors(content: bytes) -> Any:
    """Return what was ``pack_tensors``, on the processor; runs no code that it names."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def as_plain_data(data: Any) -> Any:
    """Return data as plain dicts, lists and scalars."""
    return json.loads(json.dumps(data))


# ------------------------------------------------------------------------------------------------
# PPO
# With a clipped ratio: the one update of MAPPO and of multi-agent GRPO. Schulman et al., arXiv
# 1707.06347, equations 7 and 9:
#
#     policy  -mean(weight * min(ratio * A, clip(ratio, 1 - c, 1 + c) * A))
#     ratio   exp(log pi(a|s) - log pi_old(a|s))
#     total   policy + value_coefficient * mean((V - R)^2) - entropy * mean(entropy)
#
# ``pi_old`` is the policy at the update's start. ``weight`` is its truncated ratio to the policy
# that took the action, 1 if they are the same (the decoupled objective of Hilton et al., arXiv
# 2110.00641, section 3). The divergence from ``pi_old`` is the mean of (ratio - 1) - log ratio: an
# epoch ends before a minibatch above 1.5 times ``target_kl``, the update after an epoch's mean
# above it.


@dataclass(frozen=True, slots=True)
class PPOOptions(Options):
    """Options of a policy update with PPO (arXiv 1707.06347).

    Attributes:
        lr_actor: Adam trains the policy with this learning rate.
        lr_critic: Adam trains the value with this learning rate.
        anneal: If true, both learning rates fall linearly to 0 over the run.
        gamma: Rewards are discounted by this factor a step, from 0 to 1.
        lam: The advantage estimates (GAE) use this lambda, from 0 to 1.
        max_ratio: A step that another policy took has at most this importance weight.
        clip: The probability ratio is clipped at 1 minus and 1 plus this number.
        target_kl: An epoch ends at 1.5 times this divergence, in nats, and the update ends if an
            epoch's mean is above it; 0 = never.
        value_coefficient: The squared error of the value has this weight.
        entropy: The entropy bonus has this weight per nat.
        max_grad_norm: A gradient with a larger norm is scaled down to this norm.
        epochs: An update makes at most this many passes over its data.
        batch_size: A minibatch has this many steps.
        normalise: If true, advantages are first normalised to mean 0 and deviation 1.
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


class Trajectories(NamedTuple):
    """Steps, each of shape (T, N, ...): time, then episodes.

    ``last``: an episode's last step. ``next_values``: of the next observation, 0 if the episode
    terminated. ``ratios``: of the policy that learns to the one that acted, truncated.
    """

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    rewards: Tensor
    values: Tensor
    next_values: Tensor
    last: Tensor
    ratios: Tensor


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


def gae(steps: Trajectories, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Return advantages and the value's targets, both (T, N).

    GAE (Schulman et al. 2016, arXiv 1506.02438, equation 16) with the residuals
    ``d_t = r_t + gamma * V(s_(t+1)) - V(s_t)``. V-trace (Espeholt et al. 2018, arXiv 1802.01561,
    section 4.1, remark 2) weights each residual by the ratio ``rho_t``:

        x_t = rho_t * d_t + gamma * lam * min(1, rho_t) * x_(t+1)     target: V(s_t) + x_t
        A_t = d_t + gamma * lam * x_(t+1)

    Where all ratios are 1, both are GAE.
    """
    deltas = steps.rewards + gamma * steps.next_values - steps.values
    advantages = torch.empty_like(deltas)
    targets = torch.empty_like(deltas)
    following = torch.zeros_like(deltas[0])
    for t in reversed(range(len(deltas))):
        following = gamma * lam * torch.where(steps.last[t], 0.0, following)
        advantages[t] = deltas[t] + following
        ratio = steps.ratios[t]
        following = ratio * deltas[t] + ratio.clamp(max=1) * following
        targets[t] = steps.values[t] + following
    return advantages, targets


def batch_of(steps: Trajectories, options: PPOOptions) -> Batch:
    """Return steps with their advantages, in any order."""
    advantages, targets = gae(steps, options.gamma, options.lam)
    columns = (*steps[:3], advantages, targets, steps.ratios)
    return Batch(*(column.flatten(0, 1) for column in columns))


def ppo_losses(
    policy: Policy, batch: Batch, options: PPOOptions, *, per_decider: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a minibatch, and its parts by name.

    ``per_decider`` clips each decider's ratio (MAPPO), not that of the joint action.
    """
    log_probs = policy.log_probs(batch.observations)  # (n, K, A)
    taken = log_probs.gather(-1, batch.actions[..., None]).squeeze(-1)  # (n, K)
    change = taken - batch.log_probs
    if not per_decider:
        change = change.sum(dim=-1, keepdim=True)
    ratios = change.exp()
    gains = batch.advantages[:, None]
    clipped_ratios = ratios.clamp(1 - options.clip, 1 + options.clip)
    clipped_gains = torch.minimum(ratios * gains, clipped_ratios * gains)
    parts = {
        "policy_loss": -(batch.weights[:, None] * clipped_gains).mean(),
        "value_loss": (policy.value(batch.observations) - batch.returns).square().mean(),
        "entropy": -(log_probs.exp() * log_probs).sum(dim=-1).mean(),
        "kl": ((ratios - 1) - change).mean(),
        "clipped": ((ratios - 1).abs() > options.clip).float().mean(),
    }
    total = (
        parts["policy_loss"]
        + options.value_coefficient * parts["value_loss"]
        - options.entropy * parts["entropy"]
    )
    return total, {name: part.detach() for name, part in parts.items()}


def normalise_values(values: Tensor) -> Tensor:
    """Return values shifted to mean 0 and scaled to (biased) deviation 1."""
    return (values - values.mean()) / (values.std(correction=0) + 1e-8)


class PPOAgent:
    """A policy and its optimizer: one learning rate for the logits' parameters, one for the
    others.
    """

    def __init__(self, policy: Policy, options: PPOOptions) -> None:
        self.policy = policy
        self.options = options
        actor, critic = policy.parameter_groups()
        self.optimizer = torch.optim.Adam(
            [{"params": actor, "lr": options.lr_actor}, {"params": critic, "lr": options.lr_critic}]
        )

    def set_rates(self, share_left: float) -> None:
        """Set the learning rates for ``share_left`` (1 to 0) of the run."""
        scale = share_left if self.options.anneal else 1.0
        actor, critic = self.optimizer.param_groups
        actor["lr"] = self.options.lr_actor * scale
        critic["lr"] = self.options.lr_critic * scale

    def update(self, batch: Batch, seed: int, *, per_decider: bool = False) -> dict[str, float]:
        """Learn from one batch in several passes; return means over the minibatches.

        ``seed`` draws the minibatches.
        """
        options = self.options
        generator = torch.Generator().manual_seed(seed)
        if options.normalise:
            batch = batch._replace(advantages=normalise_values(batch.advantages))
        rows: list[dict[str, float]] = []
        stop = {"stopped": 0.0}
        for _ in range(options.epochs):
            order = torch.randperm(len(batch.advantages), generator=generator)
            divergences: list[float] = []
            for index in torch.split(order, options.batch_size):
                minibatch = Batch(*(column[index] for column in batch))
                total, parts = ppo_losses(self.policy, minibatch, options, per_decider=per_decider)
                divergences.append(float(parts["kl"]))
                if options.target_kl and divergences[-1] > 1.5 * options.target_kl:
                    break
                norm = self._step(total)
                rows.append({name: float(part) for name, part in parts.items()})
                rows[-1]["grad_norm"] = norm
            mean = sum(divergences) / len(divergences)
            if options.target_kl and mean > options.target_kl:
                stop = {"stopped": 1.0, "stop_kl": mean}
                break
        means = {}
        for name in rows[0] if rows else {}:
            means[name] = sum(row[name] for row in rows) / len(rows)
        return {**means, "minibatches": float(len(rows)), **stop}

    def _step(self, total: Tensor) -> float:
        """Take one optimizer step; return the gradient's norm."""
        self.optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        parameters = self.policy.parameters()
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.options.max_grad_norm)
        self.optimizer.step()
        return float(norm)


def pack(agents: Sequence[PPOAgent]) -> list[JsonObject]:
    """Return networks, weights and optimizers: the ``members`` of a checkpoint's state."""
    members = []
    for agent in agents:
        policy = agent.policy
        shape = {"shape": policy.shape._asdict(), "options": asdict(policy.options)}
        weights = {name: value.detach().clone() for name, value in policy.state_dict().items()}
        optimizer = agent.optimizer.state_dict()
        members.append({"policy": as_plain_data(shape), "weights": weights, "optimizer": optimizer})
    return members


def unpack(members: Sequence[JsonMapping], agents: Sequence[PPOAgent]) -> None:
    """Load what ``pack`` returned, or change nothing; InputError names what does not fit."""
    if len(members) != len(agents):
        expected = f"{len(agents)} agents, as in the configuration"
        raise InputError(f"the checkpoint holds {len(members)} agents", expected=expected)
    try:
        for member, agent in zip(members, agents, strict=True):
            deepcopy(agent.policy).load_state_dict(member["weights"])
    except RuntimeError as error:
        expected = "the configuration with which it was made"
        raise InputError(f"the checkpoint does not fit: {error}", expected=expected) from error
    for member, agent in zip(members, agents, strict=True):
        agent.policy.load_state_dict(member["weights"])
        agent.optimizer.load_state_dict(member["optimizer"])
