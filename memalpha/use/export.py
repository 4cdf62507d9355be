"""Export a trained agent as a self-contained folder with a model card: as an adapter, or merged into a whole model.

The folder is written completely or not at all; it holds the agent's schema, no code and no pickles. A merge runs in float32; its
logits on one prompt must match those of base and adapter. Card numbers come from the run's files, or are shown as unknown. Not
covered: quantised bases, adapters other than LoRA, ``ModelCard.validate``.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.errors import InputError, MemAlphaError, ServiceError
from memalpha.files import read_object, write_object
from memalpha.memory.schema import MemorySchema, presets
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
from memalpha.models.registry import MODELS, resolve_model
from memalpha.rewards.total import RewardConfig
from memalpha.runs import RunFolder, nameless
from memalpha.types import Chunk

if TYPE_CHECKING:
    from torch import Tensor

EXPORT_RECORD = "memalpha_export.json"
"""File in an exported folder: ``{base, merged, dtype, largest_difference}``."""
_WARMUP_RECORD = "memalpha_warmup.json"
_TOKENIZER_FILES = (
    "tokenizer*.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.jinja",
)  # fmt: skip
_ADAPTER_FILES = ("adapter_config.json", ADAPTER_WEIGHTS, ADAPTER_RECORD, *_TOKENIZER_FILES)
_MODEL_FILES = ("config.json", "generation_config.json", "*.safetensors", "model.safetensors.index.json", *_TOKENIZER_FILES)
_TOLERANCE = 1e-3  # relative to the largest logit; float32 rounding is about 1e-5


class Exported(NamedTuple):
    """An exported folder; ``largest_difference`` of a logit between the merged model and base with adapter (None: no merge)."""

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
    """Write an adapter, whole model or run folder ``trained`` as a new folder; InputError if an input is not valid.

    ``model`` None takes the base that the adapter names. ``dtype`` None keeps an adapter's type; a merged model is then float32.
    ``repo`` (Hub name) and ``note`` are for the card. MemAlphaError if the merged logits differ from those of base and adapter.
    """
    source, target = agent_folder(trained), Path(output)
    if target.exists():
        raise InputError(f"{str(output)!r} exists already", expected="the name of a new folder")
    config = AgentConfig.load(source)
    whole = (source / "config.json").is_file()
    base = str(model) if model else ("" if whole else base_of(source))
    if repo:
        _check_hub_name(repo)
    _check_weights(source, whole, dtype)
    if model and not whole and not merge:
        _check_base(source, base)
    facts = RunFacts.of(source)
    base = base or str(facts.config.get("model") or "")
    with _made(target) as draft:
        difference = None
        if whole:
            _copy(source, draft, _MODEL_FILES)
        elif merge:
            dtype = dtype or "float32"
            difference = _merge(source, base, config, dtype, draft)
        else:
            _copy(source, draft, _ADAPTER_FILES)
            if facts.warmup:
                write_object(draft / _WARMUP_RECORD, redacted(facts.warmup))
            _name_base(draft, base)
            if dtype:
                _store_as(draft / ADAPTER_WEIGHTS, dtype)
        _save_config(config, draft)
        merged = whole or merge
        write_object(draft / EXPORT_RECORD, {"base": base, "merged": merged, "dtype": dtype, "largest_difference": difference})
        card = make_card(config, base, facts, merged=merged, repo=repo, note=note)
        (draft / "README.md").write_text(card, encoding="utf-8")
    return Exported(target, merged, difference)


def push(folder: str | Path, repo: str, *, private: bool = False) -> str:
    """Upload an exported folder to the Hub, return the commit URL; InputError (name, access) or ServiceError (Hub)."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    _check_hub_name(repo)
    api = HfApi()
    login = "hf auth login, or set HF_TOKEN"
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        done = api.upload_folder(repo_id=repo, folder_path=str(folder), commit_message="Memory agent, exported by memalpha")
    except LocalTokenNotFoundError as error:
        raise InputError(f"nobody is logged in to the Hub to write {repo}", fix=login) from error
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", 0)
        if status in (401, 403):
            what = f"the Hub does not let this user write {repo} (status {status})"
            raise InputError(what, expected="a token with write access", fix=login) from error
        raise ServiceError(f"the Hub refused {repo}: {_first_line(error)}") from error
    except Exception as error:  # the Hub client's errors differ by version
        raise ServiceError(f"the Hub cannot be reached: {_first_line(error)}") from error
    return str(done.commit_url)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


# ------------------------------------------------------------------------------------------------ checks
def _check_hub_name(repo: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # documented, but not in its __all__

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise InputError(f"Hub name {repo!r}: {error}", expected="owner/name") from error


def _check_weights(source: Path, whole: bool, dtype: str | None) -> None:
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} cannot be used", expected=f"one of {', '.join(DTYPES)}")
    if dtype is not None and whole:
        what = f"dtype {dtype!r} was asked for, but a whole model is exported as it is"
        raise InputError(what, expected="an adapter", fix="leave dtype out")
    if not whole:
        adapter_shapes(source)
    elif not any(source.glob("*.safetensors")):
        raise InputError(f"{source} has no weights", expected="a whole model with *.safetensors beside its config.json")


def _check_base(source: Path, base: str) -> None:
    """Check the base without reading its weights."""
    from transformers import AutoConfig

    where, tokenizer = resolve_model(base), load_tokenizer(base)
    check_adapter(source, where, weightless(AutoConfig.from_pretrained(where, trust_remote_code=False)), tokenizer)


# ------------------------------------------------------------------------------------------------ files and weights
@contextmanager
def _made(target: Path) -> Iterator[Path]:
    """Yield a temporary folder; rename it to ``target`` at the end."""
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


def _copy(source: Path, draft: Path, patterns: Sequence[str]) -> None:
    for path in sorted({path for pattern in patterns for path in source.glob(pattern) if path.is_file()}):
        shutil.copyfile(path, draft / path.name)


def _name_base(draft: Path, base: str) -> None:
    path = draft / "adapter_config.json"
    if name := hub_name(base):
        write_object(path, {**read_object(path), "base_model_name_or_path": name})


def _save_config(config: AgentConfig, draft: Path) -> None:
    if config.schema in presets():
        with resources.as_file(resources.files("memalpha.memory") / "presets" / f"{config.schema}.yaml") as path:
            replace(config, schema=str(path)).save(draft)
    else:
        config.save(draft)


def _store_as(weights: Path, dtype: str) -> None:
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


def _merge(source: Path, base: str, config: AgentConfig, dtype: str, draft: Path) -> float:
    """Write base and adapter as one model; return the largest logit difference on one prompt of the agent."""
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


# ------------------------------------------------------------------------------------------------ the model card
_TRAINING = (
    "adapter", "train_data", "train_options", "eval_data", "eval_options", "reader", "content_judge", "loss_type", "learning_rate",
)  # fmt: skip
_MEASURES = (
    "accuracy", "reward", "tool_success", "content", "compression", "memory_tokens", "input_tokens", "entries",
    "calls_per_instance", "update_share", "delete_share",
)  # fmt: skip
_WORDS = "token|key|secret|password|authorization|credential"
_SECRET = re.compile(_WORDS, re.IGNORECASE)
_NAMED = re.compile(rf"""(\w*(?:{_WORDS})\w*["']?\s*[:=]\s*)("[^"]*"|'[^']*'|[^,}}&\n]+)""", re.IGNORECASE)
_BARE = re.compile(r"(?<=://)[^/\s@]+(?=@)|\b(?:hf_|sk-)[A-Za-z0-9_-]{16,}")  # https://user:password@host, and keys of services


class RunFacts(NamedTuple):
    """Records of the run that made an agent; empty where files are missing."""

    summary: Mapping[str, Any]
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    warmup: Mapping[str, Any]

    @classmethod
    def of(cls, folder: Path) -> RunFacts:
        """Read the records of an adapter's or model's folder; only a run's ``adapter`` folder takes those of the run."""
        warmup = read_object(folder / _WARMUP_RECORD) if (folder / _WARMUP_RECORD).is_file() else {}
        parent = folder.resolve().parent
        if folder.resolve().name != "adapter" or not (parent / "config.yaml").is_file():
            return cls({}, {}, {}, warmup)
        run = RunFolder(parent)
        return cls(run.read_optional("summary.json"), run.config, run.read_optional("environment.json"), warmup)


def redacted(value: Any, name: str = "") -> Any:
    """Return JSON-like data without possible secrets (secret options, passwords in URLs, known keys); token counts stay."""
    if isinstance(value, Mapping):
        return {key: redacted(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item, name) for item in value]
    if _SECRET.search(name) and not (value is None or isinstance(value, bool) or _is_count(name, value)):
        return "..."
    if not isinstance(value, str):
        return value
    return _NAMED.sub(lambda found: found[0] if _is_count(found[1], found[2]) else f"{found[1]}...", _BARE.sub("...", value))


def _is_count(name: str, value: Any) -> bool:
    return "tokens" in name.lower() and str(value).isdecimal()


def public_command(words: Sequence[str]) -> str:
    """Return a command line for publication: without secrets, and only the last part of each path."""
    shown, name = [], ""
    for word in words:
        name = word if word.startswith("--") else name
        shown.append(nameless(redacted(word, "" if word is name else name)))
    return shlex.join(shown)


def hub_name(base: str) -> str | None:
    """Return the Hub name of a base, or None if it is not on the Hub."""
    spec = MODELS.get(base.partition("@")[0])
    if spec is not None:
        return spec.hub or None
    return base if base.count("/") == 1 and not base.startswith((".", "/", "~")) and not Path(base).exists() else None


def make_card(config: AgentConfig, base: str, facts: RunFacts, *, merged: bool, repo: str = "", note: str = "") -> str:
    """Return the text of the model card with its metadata; ``base`` is empty if unknown. Other arguments: see ``export``."""
    from huggingface_hub import ModelCard
    from jinja2 import Environment

    facts = RunFacts(*map(redacted, facts))
    before, after, delta = (facts.summary.get(name) or {} for name in ("before", "after", "delta"))
    schema = MemorySchema.load(config.schema)
    caps = ("max_tokens", "max_entry_tokens", "max_entries")
    results = [(name, before.get(name), after.get(name)) for name in _MEASURES if name in after]
    for kind, row in (after.get("kinds") or {}).items():
        results.append((f"accuracy, {kind}", (before.get("kinds", {}).get(kind) or {}).get("accuracy"), row["accuracy"]))
    environment = Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)
    environment.filters |= {"shown": _shown, "number": _number}
    template = (resources.files("memalpha.use") / "card.md.jinja").read_text(encoding="utf-8")
    text = environment.from_string(template).render(
        config=config, base=base, facts=facts, merged=merged, repo=repo, note=note, schema=schema, results=results,
        before=before, after=after, delta=delta,
        sections=[
            (section, ", ".join(f"{most} {cap[4:].replace('_', ' ')}" for cap in caps if (most := getattr(section, cap))))
            for section in schema.sections
        ],
        training=[(name, facts.config[name]) for name in _TRAINING if name in facts.config],
        reward=[(each.name, facts.config[each.name]) for each in fields(RewardConfig) if each.name in facts.config],
        command=public_command(["memalpha", *words[1:]]) if (words := facts.environment.get("command")) else "",
    )  # fmt: skip
    return str(ModelCard(f"---\n{_metadata(base, facts, merged).to_yaml()}\n---\n\n{text}"))


def _metadata(base: str, facts: RunFacts, merged: bool) -> Any:
    from huggingface_hub import EvalResult, ModelCardData

    spec = MODELS.get(base.partition("@")[0])
    after = facts.summary.get("after") or {}
    data = str(facts.config.get("eval_data") or "")
    results = None
    if after.get("accuracy") is not None and data:
        names = ", ".join(Path(name.strip()).name for name in data.split(","))
        results = [EvalResult("question-answering", "custom", names, "accuracy", after["accuracy"])]
    return ModelCardData(
        base_model=hub_name(base) if base else None,
        license=spec.license.lower() if spec else None,
        library_name="transformers" if merged else "peft",
        pipeline_tag="text-generation",
        tags=["memory", "agent", "tool-use", *([] if facts.warmup and not facts.summary else ["grpo"]), "memalpha"],
        model_name="memory agent" if results else None,
        eval_results=results,
    )


def _shown(value: Any) -> str:
    text = f"`{json.dumps(value)}`" if isinstance(value, dict | list) else nameless(str(value))
    return text.replace("|", "\\|")


def _number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else "unknown"


__all__ = ["EXPORT_RECORD", "Exported", "RunFacts", "export", "hub_name", "make_card", "public_command", "push", "redacted"]
