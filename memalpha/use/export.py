"""Export: a trained agent as a folder that stands alone, as an adapter or merged into a whole model, ready for the Hub.

What always holds: the folder appears whole or not at all; nothing in it is code or a pickle of the trainer; the agent's
configuration goes with its schema, so a later change of a preset does not reach it. A merged model is compared with base and
adapter on a prompt, logit by logit, before it is written; it is merged in float32 whatever type it is stored in. Weights that do
not fit into a smaller type are refused.

It does not cover quantised bases, and adapters other than LoRA.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.errors import InputError, MemAlphaError, ServiceError
from memalpha.memory.schema import presets
from memalpha.models.policy import (
    ADAPTER_RECORD,
    ADAPTER_WEIGHTS,
    DTYPES,
    adapter_shapes,
    agent_folder,
    base_of,
    check_adapter,
    load_policy_model,
    load_tokenizer,
    weightless,
)
from memalpha.models.registry import resolve_model
from memalpha.types import Chunk
from memalpha.use.card import RunFacts, hub_name, make_card

if TYPE_CHECKING:
    from torch import Tensor

EXPORT_RECORD = "memalpha_export.json"
"""File in an exported folder: ``{base, merged, dtype, largest_difference}``."""
_ADAPTER_FILES = ("adapter_config.json", ADAPTER_WEIGHTS, ADAPTER_RECORD, "memalpha_warmup.json")
_MODEL_FILES = (
    "config.json", "generation_config.json", "*.safetensors", "model.safetensors.index.json", "tokenizer*.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.jinja",
)  # fmt: skip
_TOLERANCE = 1e-3  # of the largest logit; float32 rounding is a hundredth of it


@dataclass(frozen=True, slots=True)
class Exported:
    """What was exported.

    Attributes:
        folder: Where it lies.
        merged: Whether it is a whole model.
        largest_difference: Largest difference of a logit between base with adapter and the merged model, in logits; None if
            nothing was merged.
    """

    folder: Path
    merged: bool
    largest_difference: float | None = None


def export(
    trained: str | Path,
    output: str | Path,
    *,
    model: str | Path | None = None,
    merge: bool = False,
    dtype: str | None = None,
    repo: str = "",
    note: str = "",
) -> Exported:
    """Write a trained agent as a folder of its own.

    Args:
        trained: Folder of an adapter or a whole model, or of the run that made it.
        output: Folder to make.
        model: Base of the adapter; None takes the one the adapter names.
        merge: Merge the adapter into its base; a whole model is one already.
        dtype: Type the weights are stored in; None leaves an adapter's as they are and stores a merged model's in float32.
        repo: Hub name it will go to, for the card.
        note: A line about its limits, for the card.

    Raises:
        InputError: If there is no agent of ours, it does not fit its base, its weights do not fit ``dtype``, or ``output`` exists.
        MemAlphaError: If the merged model does not say what base and adapter say.
    """
    source, target = agent_folder(trained), Path(output)
    if target.exists():
        raise InputError(f"{str(output)!r} exists already", expected="the name of a new folder")
    config = AgentConfig.load(source)
    whole = (source / "config.json").is_file()
    _check_dtype(dtype, whole)
    base = str(model) if model else ("" if whole else base_of(source))
    if repo:
        _check_hub_name(repo)
    _check_weights(source, whole)
    if model and not whole and not merge:
        _check_base(source, base)
    facts = RunFacts.of(source)
    base = base or str(facts.config.get("model") or "")
    with _made(target) as draft:
        difference = None
        if whole:
            _copy(source, draft, _MODEL_FILES)
        elif merge:
            difference = _merge(source, base, config, dtype or "float32", draft)
        else:
            _copy(source, draft, (*_ADAPTER_FILES, *_MODEL_FILES[4:]))
            _name_base(draft, base)
            if dtype:
                _store_as(draft / ADAPTER_WEIGHTS, dtype)
        _save_config(config, draft)
        merged = whole or merge
        stored = dtype or ("float32" if merge and not whole else None)
        record = {"base": base, "merged": merged, "dtype": stored, "largest_difference": difference}
        (draft / EXPORT_RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        card = make_card(config, base, facts, merged=merged, repo=repo, note=note)
        (draft / "README.md").write_text(card, encoding="utf-8")
    return Exported(target, merged, difference)


def push(folder: str | Path, repo: str, *, private: bool = False) -> str:
    """Upload an exported folder to the Hub, making the repository if need be; return the commit's address.

    Raises:
        InputError: If the name cannot be used, or the Hub does not let this user write there.
        ServiceError: If the Hub cannot be reached or fails.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    _check_hub_name(repo)
    api = HfApi()
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        done = api.upload_folder(repo_id=repo, folder_path=str(folder), commit_message="Memory agent, exported by memalpha")
    except LocalTokenNotFoundError as error:
        raise InputError(f"nobody is logged in to the Hub to write {repo}", fix="hf auth login, or set HF_TOKEN") from error
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", 0)
        if status in (401, 403):
            raise InputError(
                f"the Hub does not let this user write {repo} (status {status})",
                expected="a token with write access",
                fix="hf auth login, or set HF_TOKEN",
            ) from error
        raise ServiceError(f"the Hub refused {repo}: {_first_line(error)}") from error
    except Exception as error:  # the boundary to the Hub's client, whose transport and its errors differ by version
        raise ServiceError(f"the Hub cannot be reached: {_first_line(error)}") from error
    return str(done.commit_url)


def _check_dtype(dtype: str | None, whole: bool) -> None:
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} cannot be used", expected=f"one of {', '.join(DTYPES)}")
    if dtype is not None and whole:
        raise InputError(
            f"dtype {dtype!r} was asked for, but a whole model is exported as it is", expected="an adapter", fix="leave dtype out"
        )


def _store_as(weights: Path, dtype: str) -> None:
    """Store an adapter's weights in another type."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    wanted = getattr(torch, dtype)
    with safe_open(weights, "pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
    stored = {name: tensor.to(wanted) for name, tensor in tensors.items()}
    for name, tensor in stored.items():
        if not torch.equal(tensor.isfinite(), tensors[name].isfinite()):
            raise InputError(
                f"{name} holds {float(tensors[name].abs().max()):.3g}, which does not fit into {dtype}",
                expected=f"weights of at most {torch.finfo(wanted).max:.3g}",
                fix="use bfloat16 or float32",
            )
    save_file(stored, weights, metadata=metadata)


def _check_hub_name(repo: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # documented, but not in its __all__

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise InputError(f"Hub name {repo!r}: {error}", expected="owner/name") from error


def _check_weights(source: Path, whole: bool) -> None:
    """Refuse a folder whose weights are missing or cut: what is exported has to stand alone."""
    if not whole:
        adapter_shapes(source)
    elif not any(source.glob("*.safetensors")):
        raise InputError(f"{source} has no weights", expected="a whole model with *.safetensors beside its config.json")


def _check_base(source: Path, base: str) -> None:
    """Refuse a base that the adapter does not belong to, without reading its weights."""
    from transformers import AutoConfig

    where, tokenizer = resolve_model(base), load_tokenizer(base)
    check_adapter(source, where, weightless(AutoConfig.from_pretrained(where)), tokenizer)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextmanager
def _made(target: Path) -> Iterator[Path]:
    """Give a folder to fill; it gets its name when all is in it."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    except OSError as error:
        raise InputError(f"{str(target)!r} cannot be made: {error.strerror}", expected="a folder that can be made there") from error
    try:
        yield draft
        draft.chmod(0o755)
        for path in draft.iterdir():
            path.chmod(0o644)
        draft.rename(target)
    except OSError as error:
        raise MemAlphaError(f"{target} could not be written: {error}\n  to fix: make room, or name another place") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _copy(source: Path, draft: Path, patterns: tuple[str, ...]) -> None:
    for path in sorted({path for pattern in patterns for path in source.glob(pattern) if path.is_file()}):
        shutil.copyfile(path, draft / path.name)


def _name_base(draft: Path, base: str) -> None:
    """Let the adapter's own config name its base as the Hub knows it, for who loads it without this package."""
    path, name = draft / "adapter_config.json", hub_name(base)
    if name:
        data = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**data, "base_model_name_or_path": name}, indent=2) + "\n", encoding="utf-8")


def _save_config(config: AgentConfig, draft: Path) -> None:
    """Save the configuration with its schema, also where that is a preset."""
    if config.schema in presets():
        with resources.as_file(resources.files("memalpha.memory") / "presets" / f"{config.schema}.yaml") as path:
            replace(config, schema=str(path)).save(draft)
    else:
        config.save(draft)


def _merge(source: Path, base: str, config: AgentConfig, dtype: str, draft: Path) -> float:
    import torch

    policy = load_policy_model(base, adapter=source)
    step = AgentStep(config, policy.tokenizer)
    memory = step.new_memory()
    ids = step.prompt(memory, step.new_retriever(memory), Chunk("Marta: I moved to Oslo.")).ids
    wanted = _logits(policy.model, ids)
    merged = policy.model.merge_and_unload()
    difference = float((_logits(merged, ids) - wanted).abs().max())
    if not difference <= _TOLERANCE * float(wanted.abs().max()):
        raise MemAlphaError(
            f"the merged model differs from base and adapter by {difference:.3g} logits\n"
            "  to fix: export the adapter without --merge; its layers cannot be merged faithfully"
        )
    merged.to(getattr(torch, dtype)).save_pretrained(draft)
    policy.tokenizer.save_pretrained(draft)
    return difference


def _logits(model: Any, ids: tuple[int, ...]) -> Tensor:
    import torch

    model.eval()
    with torch.no_grad():
        logits: Tensor = model(input_ids=torch.tensor([ids], device=model.device)).logits[0].float()
    return logits


__all__ = ["EXPORT_RECORD", "Exported", "export", "push"]
