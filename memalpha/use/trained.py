"""Load a trained agent (configuration, base model, adapter) from a folder or the Hugging Face Hub.

The configuration is the one beside the weights, the base the one the adapter names (checked), and the token budgets fit the model.
Hub files are cached by ``huggingface_hub`` for offline use; only known agent files are fetched, never code.
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

_AGENT_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "memalpha_schema.yaml", "memalpha_router.pt"]
_EXPECTED = "a folder that memalpha train or memalpha warmup wrote, or a Hub name owner/name or owner/name@revision"


class Trained(NamedTuple):
    """A loaded agent; ``name`` is the folder name, or the Hub name with its commit."""

    step: AgentStep
    generator: Generator
    name: str


class Found(NamedTuple):
    """Folder and name of a trained agent."""

    folder: Path
    name: str


def find_trained(trained: str | Path) -> Found:
    """Return the folder of an adapter, whole model or run; a Hub name ``owner/name`` or ``owner/name@revision`` is fetched.

    InputError if there is no such folder, repository or revision; ServiceError if the Hub does not answer and nothing is cached.
    """
    text = str(trained)
    if text and (path := path_of(text, _EXPECTED)).is_dir():
        return Found(agent_folder(text), path.resolve().name)
    name, _, revision = text.partition("@")
    if isinstance(trained, Path) or name.count("/") != 1 or not all(name.split("/")) or name[0] in "./~":
        raise InputError(f"no trained agent at {text!r}", expected=_EXPECTED)
    from huggingface_hub import errors, snapshot_download

    try:
        folder = Path(snapshot_download(name, revision=revision or None, allow_patterns=_AGENT_FILES))
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        fix = "check the spelling; log in (`hf auth login`) if it is private"
        raise InputError(f"the Hub has no {text!r}", expected="the name of a repository that can be read", fix=fix) from error
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as error:
        raise ServiceError(
            f"{name} could not be fetched from the Hub: {str(error).splitlines()[0]}\n"
            "  to fix: connect this machine once, or give the folder of a copy"
        ) from error
    return Found(folder, f"{name}@{folder.name[:12]}")


def load_trained(
    trained: str | Path, model: str | Path | None = None, *, router: str | Path | None = None, device: str = "cpu"
) -> Trained:
    """Load a trained agent from a folder or Hub name (``find_trained``).

    ``model`` is the base (registered name, folder or Hub name; None: the one the adapter names), ``router`` a section router for
    layer 1 of the retriever (None: the agent's own), ``device`` a torch device. InputError if they are not valid or do not fit;
    ServiceError if a download failed.
    """
    from memalpha.generation.hf import HFGenerator
    from memalpha.models import load_policy_model
    from memalpha.models.policy import base_of

    folder, name = find_trained(trained)
    config = AgentConfig.load(folder)
    if router is not None:
        config = replace(config, router=str(router))
    whole = (folder / "config.json").is_file()
    policy = load_policy_model(folder) if whole else load_policy_model(model or base_of(folder), adapter=folder)
    try:
        policy.model.to(device).eval()
    except (AssertionError, NotImplementedError, RuntimeError) as error:  # torch has no single exception for this
        expected = "a device of this machine as torch names it, such as cpu, cuda, cuda:1 or mps"
        raise InputError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}", expected=expected) from error
    step = AgentStep(config, policy.tokenizer)
    check_context(step, policy.model.config)
    return Trained(step, HFGenerator(policy.model, policy.tokenizer), name)


__all__ = ["Found", "Trained", "find_trained", "load_trained"]
