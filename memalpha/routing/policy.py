"""Policy networks and their checkpoint files.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from memalpha.config import Options
from memalpha.errors import InputError
from memalpha.files import replacing


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
    """Networks of a policy.

    Attributes:
        kind: ``separate`` or ``team``.
        hidden: Widths of the hidden layers.
        projection: Width of the learned projection in front (0 = none).
        share_actors: Team: one actor for all deciders; their views must then have the same length.
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
                    f"shared actors with views of lengths {widths}",
                    expected="one length",
                    fix="share_actors: false",
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
    config: Mapping[str, Any]
    state: Mapping[str, Any]
    routes: Mapping[str, Any] = field(default_factory=dict)

    def save(self, path: str | Path) -> None:
        """Write the file atomically, the digest of all of it in front."""
        content = packed({item.name: getattr(self, item.name) for item in fields(self)})
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
            raise InputError(f"no router at {str(file)!r}", expected="a checkpoint", fix=fix)
        for leftover in file.parent.glob(f".{file.name}.[0-9]*"):
            if not Path("/proc", leftover.suffix[1:]).exists():
                leftover.unlink(missing_ok=True)
        content = file.read_bytes()
        try:
            if hashlib.sha256(content[32:]).digest() != content[:32]:
                raise ValueError("it is damaged, or no checkpoint")
            return cls(**unpacked(content[32:]))
        except _DAMAGE as error:
            raise InputError(
                f"{file} cannot be read: {error}",
                expected="a checkpoint of memalpha router",
                fix="put the file back from a copy, or remove it and begin anew",
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


def packed(data: Any) -> bytes:
    """Return tensors and plain data as bytes."""
    content = io.BytesIO()
    torch.save(data, content)
    return content.getvalue()


def unpacked(content: bytes) -> Any:
    """Return what was ``packed``, on the processor; runs no code that it names."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def plain(data: Any) -> Any:
    """Return data as plain dicts, lists and scalars."""
    return json.loads(json.dumps(data))
