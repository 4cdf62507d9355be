"""Torch policies that choose for K deciders among A options, with a value of the state.

| kind | policy | value |
| --- | --- | --- |
| separate | one network of the observation, K x A logits | a network of its own |
| shared_encoder | a head on an encoder | another head on the same encoder |
| team | an actor a decider, or one for all that is told which it is; each sees its view | a network that sees everything |

Wide observations (sentence embeddings) go through a *learned projection* first. Weights start orthogonal: gain sqrt(2) before a
ReLU, 0.01 for logits (so that all options start as likely), 1 for values; biases at 0.

Fault of the public code that is mended here: its optimizers held the heads alone, so the shared encoder never learned.
``parameter_groups`` puts every parameter in exactly one group: what the policy uses learns at the actor's rate, what is left at the
critic's; ``memalpha.routing.ppo.make_optimizer`` makes the one optimizer of both. And logits go into the distribution as logits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from memalpha.errors import InputError


class Shape(NamedTuple):
    """What goes in and out of a policy: see ``memalpha.routing.tasks.Task``; ``views`` are (start, stop) pairs."""

    size: int
    deciders: int
    choices: int
    views: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """A policy's networks.

    Attributes:
        kind: ``separate``, ``shared_encoder`` or ``team``.
        hidden: Widths of the hidden layers.
        projection: Width of the learned projection in front (0 = none).
        share_actors: Team: one actor for all deciders, which must then see views of one length.
    """

    kind: str = "separate"
    hidden: tuple[int, ...] = (64, 64)
    projection: int = 0
    share_actors: bool = False

    def __post_init__(self) -> None:
        """Check the values."""
        if self.kind not in POLICIES:
            raise InputError(f"policy kind {self.kind!r}", expected=f"one of {', '.join(POLICIES)}")
        object.__setattr__(self, "hidden", tuple(self.hidden))
        if not self.hidden or min(self.hidden) < 1 or self.projection < 0:
            raise InputError(f"hidden is {self.hidden}, projection is {self.projection}", expected="widths of at least 1")


class Policy(nn.Module):
    """What every policy can do."""

    shape: Shape
    options: PolicyOptions

    def logits(self, observations: Tensor) -> Tensor:
        """Return unnormalised log-probabilities of shape (n, K, A) for observations (n, size)."""
        raise NotImplementedError

    def value(self, observations: Tensor) -> Tensor:
        """Return the values of observations (n, size), shape (n,)."""
        raise NotImplementedError

    def actor_modules(self) -> Sequence[nn.Module]:
        """Return the modules that the logits depend on."""
        raise NotImplementedError

    def log_probs(self, observations: Tensor) -> Tensor:
        """Return log-probabilities of every option, shape (n, K, A)."""
        return torch.log_softmax(self.logits(observations), dim=-1)

    def parameter_groups(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return the parameters of the actor and all others; each parameter is in exactly one of the two."""
        actor = [parameter for module in self.actor_modules() for parameter in module.parameters()]
        known = {id(parameter) for parameter in actor}
        return actor, [parameter for parameter in self.parameters() if id(parameter) not in known]

    def describe(self) -> dict[str, Any]:
        """Return plain data that ``policy_from`` makes the same networks from."""
        return {"shape": self.shape._asdict(), "options": asdict(self.options)}


class SeparatePolicy(Policy):
    """A policy network and a value network that share nothing."""

    def __init__(self, shape: Shape, options: PolicyOptions) -> None:
        super().__init__()
        self.shape, self.options = shape, options
        self.actor = network(shape.size, options, shape.deciders * shape.choices, gain=0.01)
        self.critic = network(shape.size, options, 1, gain=1.0)

    def logits(self, observations: Tensor) -> Tensor:
        """Return logits, shape (n, K, A)."""
        return _joint(self.actor(observations), self.shape)

    def value(self, observations: Tensor) -> Tensor:
        """Return values, shape (n,)."""
        return _scalar(self.critic(observations))

    def actor_modules(self) -> Sequence[nn.Module]:
        """Return the policy network."""
        return (self.actor,)


class SharedEncoderPolicy(Policy):
    """Two heads on one encoder; the encoder learns from both losses, at the actor's rate."""

    def __init__(self, shape: Shape, options: PolicyOptions) -> None:
        super().__init__()
        self.shape, self.options = shape, options
        self.encoder = network(shape.size, options)
        self.policy_head = orthogonal(options.hidden[-1], shape.deciders * shape.choices, gain=0.01)
        self.value_head = orthogonal(options.hidden[-1], 1, gain=1.0)

    def logits(self, observations: Tensor) -> Tensor:
        """Return logits, shape (n, K, A)."""
        return _joint(self.policy_head(self.encoder(observations)), self.shape)

    def value(self, observations: Tensor) -> Tensor:
        """Return values, shape (n,)."""
        return _scalar(self.value_head(self.encoder(observations)))

    def actor_modules(self) -> Sequence[nn.Module]:
        """Return the encoder and the policy's head."""
        return (self.encoder, self.policy_head)


class TeamPolicy(Policy):
    """Actors that see their own views, and a centralised value that sees everything (MAPPO, arXiv 2103.01955)."""

    def __init__(self, shape: Shape, options: PolicyOptions) -> None:
        super().__init__()
        self.shape, self.options = shape, options
        widths = [stop - start for start, stop in shape.views]
        if options.share_actors and len(set(widths)) > 1:
            raise InputError(
                f"shared actors with views of lengths {widths}", expected="views of one length", fix="share_actors: false"
            )
        inputs = [widths[0] + shape.deciders] if options.share_actors else widths
        self.actors = nn.ModuleList(network(width, options, shape.choices, gain=0.01) for width in inputs)
        self.critic = network(shape.size, options, 1, gain=1.0)

    def logits(self, observations: Tensor) -> Tensor:
        """Return logits, shape (n, K, A)."""
        seen = [observations[:, start:stop] for start, stop in self.shape.views]
        if not self.options.share_actors:
            return torch.stack([actor(view) for actor, view in zip(self.actors, seen, strict=True)], dim=1)
        who = torch.eye(self.shape.deciders, dtype=observations.dtype).expand(len(observations), -1, -1)
        logits: Tensor = self.actors[0](torch.cat([torch.stack(seen, dim=1), who], dim=-1))
        return logits

    def value(self, observations: Tensor) -> Tensor:
        """Return values, shape (n,)."""
        return _scalar(self.critic(observations))

    def actor_modules(self) -> Sequence[nn.Module]:
        """Return all actors."""
        return (self.actors,)


POLICIES: dict[str, type[Policy]] = {"separate": SeparatePolicy, "shared_encoder": SharedEncoderPolicy, "team": TeamPolicy}
"""Every policy by its kind."""


def make_policy(shape: Shape, options: PolicyOptions, seed: int) -> Policy:
    """Return a policy whose first weights depend on the seed alone; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        kind: Any = POLICIES[options.kind]
        policy: Policy = kind(shape, options)
        return policy


def policy_from(description: Mapping[str, Any]) -> Policy:
    """Return untrained networks of a described form; InputError if it is no description."""
    try:
        shape = Shape(**{**description["shape"], "views": tuple((int(a), int(b)) for a, b in description["shape"]["views"])})
        return make_policy(shape, PolicyOptions(**description["options"]), seed=0)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"not the description of a policy: {error!r}", expected="what Policy.describe returned") from error


def network(size: int, options: PolicyOptions, out: int = 0, gain: float = 1.0) -> nn.Sequential:
    """Return projection, hidden layers and, where ``out`` is given, a last linear layer with its own gain."""
    layers: list[nn.Module] = []
    if options.projection:
        layers.append(orthogonal(size, options.projection, gain=1.0))
        size = options.projection
    for width in options.hidden:
        layers += [orthogonal(size, width, gain=math.sqrt(2)), nn.ReLU()]
        size = width
    if out:
        layers.append(orthogonal(size, out, gain))
    return nn.Sequential(*layers)


def orthogonal(size: int, out: int, gain: float) -> nn.Linear:
    """Return a linear layer with orthogonal weights and zero biases."""
    layer = nn.Linear(size, out)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def _joint(flat: Tensor, shape: Shape) -> Tensor:
    return flat.view(len(flat), shape.deciders, shape.choices)


def _scalar(column: Tensor) -> Tensor:
    return column.squeeze(-1)
