"""Loading a trained agent: its configuration, base model and adapter, from a folder or from the Hugging Face Hub.

What always holds: what comes back is what was trained: the configuration that lies beside the weights, the base the adapter names
(checked by ``memalpha.models.policy``), and budgets that fit the model. A Hub name is fetched by ``huggingface_hub``, whose cache
serves it without a network afterwards; only files an agent has are taken, and none of them is code.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep, check_context
from memalpha.errors import InputError, ServiceError
from memalpha.files import path_of
from memalpha.models.policy import agent_folder
from memalpha.protocols import Generator

AGENT_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "memalpha_schema.yaml", "memalpha_router.pt")
"""What is taken from a Hub repository."""
_EXPECTED = "a folder that memalpha train or memalpha warmup wrote, or a Hub name owner/name or owner/name@revision"


class Trained(NamedTuple):
    """A loaded agent.

    Attributes:
        step: Prompt maker and applier.
        generator: Its model.
        name: What its journal calls it: the folder's name, or the Hub name with the commit.
    """

    step: AgentStep
    generator: Generator
    name: str


class Found(NamedTuple):
    """Where a trained agent lies, and what it is called."""

    folder: Path
    name: str


def find_trained(trained: str | Path) -> Found:
    """Return the folder of a trained agent, fetched from the Hub if need be.

    Args:
        trained: The folder of an adapter or a whole model, or of the run that made it; or a Hub name ``owner/name``, with
            ``@revision`` for another than the main branch.

    Raises:
        InputError: If it is neither, or the Hub knows no such repository or revision.
        ServiceError: If the Hub does not answer and nothing is cached.
    """
    text = str(trained)
    if text and (path := path_of(text, _EXPECTED)).is_dir():
        return Found(agent_folder(text), path.resolve().name)
    name, _, revision = text.partition("@")
    if isinstance(trained, Path) or name.count("/") != 1 or not all(name.split("/")) or name[0] in "./~":
        raise InputError(
            f"no trained agent at {text!r}",
            expected=_EXPECTED,
        )
    folder = _fetch(name, revision or None)
    return Found(folder, f"{name}@{folder.name[:12]}")


def _fetch(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(AGENT_FILES)))
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise InputError(
            f"the Hub has no {name!r}" + (f" at {revision!r}" if revision else ""),
            expected="the name of a repository that can be read",
            fix="check the spelling; log in (`hf auth login`) if it is private",
        ) from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ServiceError(
            f"{name} could not be fetched from the Hub: {str(error).splitlines()[0]}\n"
            "  to fix: connect this machine once, or give the folder of a copy"
        ) from error


def load_trained(
    trained: str | Path, model: str | Path | None = None, *, router: str | Path | None = None, device: str = "cpu"
) -> Trained:
    """Load a trained agent.

    Args:
        trained: Folder or Hub name of an adapter, or of a whole model; or the folder of a run.
        model: Base of the adapter: registered name, folder or Hub name; None takes the one the adapter names.
        router: Trained section router for layer 1 of its retriever; None takes the agent's own, if it has one.
        device: Where the model runs, as torch names it.

    Raises:
        InputError: If it is no agent of ours, belongs to another base, or its budgets do not fit the model; or this machine has
            no such device.
        ServiceError: If something had to be fetched and could not be.
    """
    from memalpha.generation.hf import HFGenerator
    from memalpha.models import load_policy_model
    from memalpha.models.policy import base_of

    check_device(device)
    folder, name = find_trained(trained)
    config = AgentConfig.load(folder)
    if router is not None:
        config = replace(config, router=str(router))
    whole = (folder / "config.json").is_file()
    policy = load_policy_model(folder) if whole else load_policy_model(model or base_of(folder), adapter=folder)
    policy.model.to(device).eval()
    step = AgentStep(config, policy.tokenizer)
    check_context(step, policy.model.config)
    return Trained(step, HFGenerator(policy.model, policy.tokenizer), name)


def check_device(device: str) -> None:
    """Raise InputError unless a tensor can be put where ``device`` says."""
    import torch

    try:
        torch.zeros(1, device=device).item()
    except (AssertionError, NotImplementedError, RuntimeError) as error:  # torch has no one exception for this
        raise InputError(
            f"device {device!r} cannot be used: {str(error).splitlines()[0]}",
            expected="a device of this machine as torch names it, such as cpu, cuda, cuda:1 or mps",
        ) from error


__all__ = ["AGENT_FILES", "Found", "Trained", "check_device", "find_trained", "load_trained"]
