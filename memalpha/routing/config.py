"""The configuration of a router's training: one flat YAML file, every value overridable.

Groups of options make one namespace: the run (``RunOptions``), the networks (``PolicyOptions``), the update (``PPOOptions``) and
the group of agents (``GroupOptions``). A task's own options are a mapping, ``task_options``; ``eval_options`` replaces
some of them for the held-out task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from memalpha.errors import InputError
from memalpha.routing.grpo import GroupOptions
from memalpha.routing.policies import PolicyOptions
from memalpha.routing.ppo import PPOOptions


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What is trained on what.

    Attributes:
        learner: ``mappo``, ``grpo``, ``ppo``, ``linucb`` or ``random``.
        task: ``synthetic`` or ``sections``.
        task_options: Options of the task: ``SyntheticOptions`` or ``SectionOptions``.
        eval_options: Those that differ for the held-out task.
        seed: Draws first weights, actions and minibatches; not the task, which has a seed of its own.
        steps: Steps of the environment to take, over all agents and columns; the last update may go over by less than one update.
        envs: Episodes in lockstep.
        update_every: Steps between updates, over all columns; a multiple of ``envs``.
        eval_every: Updates between measurements on held-out episodes (0 = at the end alone).
        eval_size: Most held-out episodes.
        checkpoint_every: Updates between checkpoints (0 = at the end alone).
    """

    learner: str = "mappo"
    task: str = "synthetic"
    task_options: Mapping[str, Any] = field(default_factory=dict)
    eval_options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 42
    steps: int = 100_000
    envs: int = 96
    update_every: int = 1920
    eval_every: int = 5
    eval_size: int = 2000
    checkpoint_every: int = 0

    def __post_init__(self) -> None:
        """Check the numbers; InputError names the first that cannot be."""
        least = {"seed": 0, "steps": 1, "envs": 1, "update_every": 1, "eval_every": 0, "eval_size": 1, "checkpoint_every": 0}
        for name, minimum in least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
                raise InputError(f"{name} is {value!r}", expected=f"an integer of at least {minimum}")
        if self.update_every % self.envs:
            raise InputError(f"update_every is {self.update_every}", expected=f"a multiple of envs, {self.envs}")
        for name in ("task_options", "eval_options"):
            if not isinstance(getattr(self, name), Mapping):
                raise InputError(f"{name} is {getattr(self, name)!r}", expected="a mapping such as {seed: 1}")

    @property
    def updates(self) -> int:
        """Updates of the whole run."""
        return -(-self.steps // self.update_every)


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Everything that fixes a run."""

    run: RunOptions = field(default_factory=RunOptions)
    policy: PolicyOptions = field(default_factory=PolicyOptions)
    ppo: PPOOptions = field(default_factory=PPOOptions)
    group: GroupOptions = field(default_factory=GroupOptions)

    def flat(self) -> dict[str, Any]:
        """Return all options as one mapping, as a file holds them."""
        flat: dict[str, Any] = {}
        for group in fields(self):
            flat |= asdict(getattr(self, group.name))
        return {name: list(value) if isinstance(value, tuple) else value for name, value in flat.items()}


_GROUPS: dict[str, Any] = {"run": RunOptions, "policy": PolicyOptions, "ppo": PPOOptions, "group": GroupOptions}
_OWNER = {item.name: group for group, kind in _GROUPS.items() for item in fields(kind)}


def config_from(values: Mapping[str, Any]) -> RouterConfig:
    """Return the configuration that flat values make; InputError names unknown names and wrong values."""
    if unknown := sorted(set(values) - set(_OWNER)):
        raise InputError(f"unknown router options {unknown}", expected=", ".join(sorted(_OWNER)))
    parts: dict[str, Any] = {}
    for group, kind in _GROUPS.items():
        own = {name: value for name, value in values.items() if _OWNER[name] == group}
        for item in fields(kind):
            if item.name in own:
                own[item.name] = _typed(item.name, own[item.name], item.type)
        parts[group] = kind(**own)
    return RouterConfig(**parts)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RouterConfig:
    """Read a YAML file and options of the command line, ``--name value``, which go before it.

    Raises:
        InputError: If the file is missing or no mapping, or an option is unknown, has no value or a wrong one.
    """
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise InputError(
            f"cannot read the config file {str(path)!r}: {error}", expected="a YAML file", fix="--config FILE"
        ) from error
    if not isinstance(values, dict):
        raise InputError(f"{path} holds a {type(values).__name__}", expected="a mapping of options")
    return config_from({**values, **_pairs(overrides)})


def _pairs(overrides: Sequence[str]) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    rest = list(overrides)
    while rest:
        name = rest.pop(0)
        if not name.startswith("--") or not rest:
            raise InputError(f"argument {name!r}", expected="--name value")
        pairs[name[2:]] = yaml.safe_load(rest.pop(0))
    return pairs


def _typed(name: str, value: Any, kind: Any) -> Any:
    """Check the plain types; YAML reads ``3e-4`` as a text, and an integer may stand for a number."""
    if kind == "float" and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError as error:
            raise InputError(f"{name} is {value!r}", expected="a number") from error
    wanted = {"int": int, "str": str, "bool": bool, "float": float}.get(kind, object)
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise InputError(f"{name} is {value!r}", expected=f"of type {kind}")
    if str(kind).startswith("tuple") and not isinstance(value, list | tuple):
        raise InputError(f"{name} is {value!r}", expected="a list")
    return value
