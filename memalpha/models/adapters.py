"""Adapters and the base that each belongs to: what is written down beside one, and what is checked before it is put on a model.

An adapter of this package carries ``memalpha_adapter.json`` with the fingerprint of its base (architecture and vocabulary size: the
same for every copy of the same model, wherever it lies). One without that file is compared tensor by tensor. Other weights in the
same architecture cannot be told by shape: they are reported as a warning where both sides recorded the sha256 of their weights.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memalpha.errors import InputError
from memalpha.models.registry import model_record

log = logging.getLogger(__name__)

ADAPTER_RECORD = "memalpha_adapter.json"
"""File in an adapter's folder: ``{base_fingerprint, base, base_weights_sha256, ...}``."""

ADAPTER_WEIGHTS = "adapter_model.safetensors"
"""File with an adapter's weights, as peft names it."""

ARCHITECTURE_FIELDS = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
)
"""Fields of a model's config that decide the shapes of its tensors; a field that a config lacks counts as null."""


def base_of(adapter: str | Path) -> str:
    """Return the name of the base an adapter was trained on.

    Raises:
        InputError: The folder is no adapter, or does not name its base.
    """
    folder = Path(adapter)
    check_adapter_folder(folder)
    record = _read_json(folder / ADAPTER_RECORD) if (folder / ADAPTER_RECORD).is_file() else {}
    base = record.get("base") or _read_json(folder / "adapter_config.json").get("base_model_name_or_path")
    if not base:
        raise InputError(f"adapter {folder} does not name its base", expected="a base", fix="name it: model=")
    return str(base)


def base_fingerprint(config: Any, vocabulary_size: int) -> str:
    """Return the sha256 (hexadecimal) over the architecture fields of a model's config and the length of its tokenizer."""
    fields = {field: getattr(config, field, None) for field in ARCHITECTURE_FIELDS}
    return hashlib.sha256(json.dumps([fields, vocabulary_size], sort_keys=True).encode()).hexdigest()


def name_base(model: Any, base: str) -> None:
    """Let an adapter's own config name its base as the user did, not by a local path; without adapters nothing happens.

    Args:
        model: The policy.
        base: Registered name, folder or Hub name.
    """
    for config in getattr(model, "peft_config", {}).values():
        config.base_model_name_or_path = Path(base).name if Path(base).is_dir() else base


def write_adapter_record(adapter: str | Path, base: str | Path, config: Any, tokenizer: Any, **extra: Any) -> Path:
    """Write ``memalpha_adapter.json`` beside a saved adapter and return its path.

    Args:
        adapter: The adapter's folder.
        base: The base as the user named it; a folder is recorded by its last component only.
        config: The base model's config.
        tokenizer: The base model's tokenizer.
        extra: Further JSON values to keep, such as the run that made it.
    """
    known = model_record(base)
    name = f"{known['name']}@{known['source']}" if known else str(base)
    record = {
        "base": Path(name).name if Path(name).is_dir() else name,
        "base_architecture": _describe(config, len(tokenizer)),
        "base_fingerprint": base_fingerprint(config, len(tokenizer)),
        "base_weights_sha256": known.get("weights_sha256"),
        **extra,
    }
    path = Path(adapter) / ADAPTER_RECORD
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return path


def check_adapter(adapter: Path, base: Path | str, model: Any, tokenizer: Any) -> None:
    """Raise InputError unless a folder holds an adapter made for this base; warn where only the weights differ.

    Args:
        adapter: The adapter's folder.
        base: The base's folder or Hub id.
        model: The loaded base model.
        tokenizer: Its tokenizer.
    """
    config = _read_json(adapter / "adapter_config.json")
    record = _read_json(adapter / ADAPTER_RECORD) if (adapter / ADAPTER_RECORD).is_file() else {}
    theirs = str(record.get("base") or config.get("base_model_name_or_path"))
    wanted = record.get("base_fingerprint")
    found = base_fingerprint(model.config, len(tokenizer))
    if wanted is not None and wanted != found:
        raise _other_base(
            adapter,
            f"{theirs} ({record.get('base_architecture')}, fingerprint {str(wanted)[:12]})",
            f"{base} ({_describe(model.config, len(tokenizer))}, fingerprint {found[:12]})",
        )
    shapes = adapter_shapes(adapter)
    if not any(".lora_" in key for key in shapes):
        raise InputError(f"adapter {adapter} holds no LoRA matrices", expected=f"those of a LoRA adapter in {ADAPTER_WEIGHTS}")
    problem = _shape_problem(shapes, model)
    if problem:
        raise _other_base(adapter, theirs, f"{base} ({_describe(model.config, len(tokenizer))}): {problem}")
    ours, made_with = model_record(base).get("weights_sha256"), record.get("base_weights_sha256")
    if ours and made_with and ours != made_with:
        log.warning("adapter %s was trained on other weights of the same model (%s) than %s", adapter, theirs, base)
    elif wanted is None and Path(theirs).name.lower() != Path(str(base)).name.lower():
        log.warning(
            "adapter %s names its base %s; it fits %s by shape, but nothing says it is the same model", adapter, theirs, base
        )


def _other_base(adapter: Path, theirs: str, ours: str) -> InputError:
    return InputError(
        f"adapter {adapter} belongs to another base: it was trained on {theirs}, and the model given is {ours}",
        expected="an adapter trained on the model given",
        fix="give the adapter's own base as the model, or train an adapter on this one (`memalpha warmup`)",
    )


def _describe(config: Any, vocabulary_size: int) -> str:
    return (
        f"{config.model_type}, {config.num_hidden_layers} layers of width {config.hidden_size}, "
        f"{config.vocab_size} embeddings, {vocabulary_size} tokens"
    )


def _shape_problem(shapes: Mapping[str, tuple[int, ...]], model: Any) -> str | None:
    """Return what does not fit between an adapter's LoRA matrices and the linear layers they are for, or None."""
    modules = {name: module.weight.shape for name, module in model.named_modules() if getattr(module, "weight", None) is not None}
    for key, shape in shapes.items():
        name, marker, rest = key.removeprefix("base_model.model.").rpartition(".lora_")
        side = rest[:1]
        if not marker or side not in ("A", "B"):
            continue
        if name not in modules:
            return f"it has no layer {name}"
        rows, columns = modules[name][0], modules[name][-1]
        fits = shape[-1] == columns if side == "A" else shape[0] == rows
        if not fits:
            return f"layer {name} is {rows} x {columns}, the adapter's lora_{side} is {' x '.join(map(str, shape))}"
    return None


def adapter_shapes(adapter: Path) -> Mapping[str, tuple[int, ...]]:
    """Return the shape of each matrix of an adapter; InputError if its weights cannot be read."""
    from safetensors import SafetensorError, safe_open

    path = adapter / ADAPTER_WEIGHTS
    try:
        with safe_open(path, framework="np") as tensors:
            return {key: tuple(tensors.get_slice(key).get_shape()) for key in tensors.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read: {error}", expected="the safetensors file of a LoRA adapter") from error


def check_adapter_folder(adapter: Path) -> None:
    """Raise InputError unless a folder is an adapter's."""
    if not (adapter / "adapter_config.json").is_file():
        raise InputError(
            f"adapter folder {adapter} " + ("has no adapter_config.json" if adapter.is_dir() else "does not exist"),
            expected=f"a folder with adapter_config.json and {ADAPTER_WEIGHTS}",
            fix="give the folder that `memalpha warmup` or `memalpha train` wrote, or one of its checkpoint-N folders",
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}", expected="a JSON object") from error
    if not isinstance(data, dict):
        raise InputError(f"{path} holds a {type(data).__name__}", expected="a JSON object")
    return data
