"""Checkpoints of learned routers: networks, weights, optimizers, step, seeds, configuration, and what they route.

One file, read without running any code it might hold (``weights_only``). What always holds: a file appears whole or not at all;
loading never fills a gap silently, and names everything that does not fit at once.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from memalpha.errors import InputError
from memalpha.files import replacing
from memalpha.routing.policies import Policy

FORMAT = 1
"""Version of the form below."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything a router is.

    Attributes:
        learner: Name of what trained it.
        updates: Updates taken.
        steps: Steps of the environment taken.
        seed: Of the run.
        config: The run's configuration, as plain data.
        state: What the learner's ``state`` returned; ``members`` of it are packed policies.
        routes: What is routed: ``sections``, ``trained_sections``, ``embedder``, ``sequential`` of a section router, ``tools`` and
            their descriptions of a selector; empty otherwise.
        format: Version of this form.
    """

    learner: str
    updates: int
    steps: int
    seed: int
    config: Mapping[str, Any]
    state: Mapping[str, Any]
    routes: Mapping[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    def save(self, path: str | Path) -> None:
        """Write the file, whole."""
        with replacing(Path(path)) as temporary:
            torch.save({name: getattr(self, name) for name in _NAMES}, temporary)

    @classmethod
    def load(cls, path: str | Path) -> Checkpoint:
        """Read a file.

        Raises:
            InputError: If there is none, it is damaged, or it has another form.
        """
        if not Path(path).is_file():
            raise InputError(f"no router at {str(path)!r}", expected="a checkpoint", fix="make one with memalpha router train")
        try:
            data = torch.load(path, map_location="cpu", weights_only=True)
        except _DAMAGE as error:
            raise InputError(f"{path} cannot be read: {error}", expected="a checkpoint of memalpha router train") from error
        found = set(data) if isinstance(data, dict) else set()
        if found != set(_NAMES) or data["format"] != FORMAT:
            raise InputError(
                f"{path} holds {sorted(map(str, found))}, format {data.get('format') if found else None}",
                expected=f"{sorted(_NAMES)}, format {FORMAT}",
            )
        return cls(**data)


# What torch.load raises for a file that is damaged or something else altogether, depending on where it stumbles.
_DAMAGE = (EOFError, IndexError, KeyError, OSError, RuntimeError, TypeError, ValueError, pickle.UnpicklingError)

_NAMES = tuple(item.name for item in fields(Checkpoint))


def pack_policy(policy: Policy, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return a policy's form, weights and optimizer."""
    return {
        "policy": plain(policy.describe()),
        "weights": {name: tensor.detach().clone() for name, tensor in policy.state_dict().items()},
        "optimizer": optimizer.state_dict(),
    }


def unpack_members(state: Mapping[str, Any], members: Sequence[tuple[Policy, torch.optim.Optimizer]]) -> None:
    """Fill policies and optimizers, or change nothing.

    Raises:
        InputError: Names every member, network and tensor that does not fit.
    """
    packed = state.get("members", [])
    if len(packed) != len(members):
        raise InputError(f"a checkpoint of {len(packed)} agents", expected=f"{len(members)}, as configured")
    faults = [
        f"agent {i}: {fault}"
        for i, (saved, (policy, _)) in enumerate(zip(packed, members, strict=True))
        for fault in misfits(saved["weights"], policy.state_dict())
    ]
    if faults:
        raise InputError(
            "the checkpoint does not fit:\n    " + "\n    ".join(faults), expected="the configuration it was made with"
        )
    for saved, (policy, optimizer) in zip(packed, members, strict=True):
        policy.load_state_dict(saved["weights"])
        optimizer.load_state_dict(saved["optimizer"])


def misfits(saved: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> list[str]:
    """Return what differs between saved and wanted weights, a line each: missing, unknown, of another shape."""
    lines = [f"{name} is missing" for name in wanted if name not in saved]
    lines += [f"{name} is unknown" for name in saved if name not in wanted]
    for name in saved:
        if name in wanted and saved[name].shape != wanted[name].shape:
            lines.append(f"{name} has shape {tuple(saved[name].shape)} instead of {tuple(wanted[name].shape)}")
    return lines


def plain(data: Any) -> Any:
    """Return data made of dicts, lists and scalars alone, as a checkpoint may hold."""
    if isinstance(data, Mapping):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain(value) for value in data]
    return plain(asdict(data)) if hasattr(data, "__dataclass_fields__") else data
