"""What an evaluation reads: the names of it, and the digests by which it is known again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memalpha.data.schema import digest_instances
from memalpha.evaluation.config import Evaluation
from memalpha.evaluation.digests import digest_adapter, digest_agent, digest_model
from memalpha.evaluation.jobs import LoadedSet
from memalpha.evaluation.policies import PolicyHost
from memalpha.models.registry import resolve_model


def names_read(evaluation: Evaluation, parts: Sequence[str | Path]) -> dict[str, list[str]]:
    """Names of what an evaluation reads, which may be paths, by what they are."""
    return {
        "the model": [evaluation.arguments.model],
        "the router": [evaluation.agent.router],
        "the adapter": [str(system.options.get("adapter", "")) for system in evaluation.systems],
        "the set": [where.data for where in evaluation.sets],
        "the part": [str(part) for part in parts],
    }


def digests(evaluation: Evaluation, sets: Sequence[LoadedSet], host: PolicyHost) -> dict[str, dict[str, Any]]:
    """Digests of what the evaluation is made of; of a model that transformers fetched from the Hub its commit, if it is known."""
    adapters = {str(adapter) for spec in evaluation.systems if (adapter := spec.options.get("adapter"))}
    own = {str(spec.options["adapter"]) for spec in evaluation.systems if spec.options.get("settings") == "own"}
    model = resolve_model(host.model)
    known = digest_model(model) if isinstance(model, Path) else getattr(host.config, "_commit_hash", None)
    return {
        "models": {host.model: known} if known else {},
        "agents": {adapter: digest_agent(adapter) for adapter in sorted(own)},
        "sets": {where.spec.name: digest_instances(where.instances) for where in sets},
        "adapters": {adapter: digest_adapter(adapter) for adapter in sorted(adapters)},
    }


__all__ = ["digests", "names_read"]
