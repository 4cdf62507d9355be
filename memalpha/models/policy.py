"""Load a policy: base model, tokenizer, and an adapter that belongs to the base.

The loaded tokenizer has a chat template, an end token and a padding token, and pads on the left; the model's padding id agrees. An
adapter has ``memalpha_adapter.json`` with the fingerprint of its base (architecture and vocabulary size). Other weights of the same
architecture give a warning, if both sides recorded their sha256.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memalpha.agent.config import AGENT_FILE
from memalpha.errors import InputError
from memalpha.models.registry import model_record, resolve_model
from memalpha.qa.readers import UNKNOWN

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

DTYPES = ("float32", "bfloat16", "float16")
ADAPTER_RECORD = "memalpha_adapter.json"  # in an adapter's folder: {base_fingerprint, base, base_weights_sha256, ...}
ADAPTER_WEIGHTS = "adapter_model.safetensors"  # named by peft
# Config fields that decide tensor shapes; a missing one counts as null.
_ARCHITECTURE = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "tie_word_embeddings",
)  # fmt: skip


class PolicyModel(NamedTuple):
    """A ``PreTrainedModel``, or a ``PeftModel`` around it if there is an adapter; and its tokenizer."""

    model: Any
    tokenizer: Any


def load_policy_model(
    path: str | Path, *, adapter: str | Path | None = None, dtype: str | torch.dtype = "float32", trainable: bool = False,
    **more: Any,
) -> PolicyModel:  # fmt: skip
    """Load a causal LM (``path`` as in ``resolve_model``) and its tokenizer; ``trainable`` gives the adapter gradients.

    ``more`` goes to ``from_pretrained``; its ``revision`` also to the tokenizer's, by default the one that the adapter names.

    InputError if a file cannot be used or the adapter has another base; ServiceError if a fetch failed.
    """
    from transformers import AutoModelForCausalLM

    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise InputError(f"dtype {name!r} cannot be used", expected=f"one of {', '.join(DTYPES)}")
    where = resolve_model(path)
    if adapter is not None:
        check_adapter_folder(Path(adapter))
        more = {"revision": _read_json(Path(adapter) / "adapter_config.json").get("revision"), **more}
    more["revision"] = more.get("revision") or "main"
    tokenizer = load_tokenizer(where, more["revision"])
    fix = "fetch a registered model with `memalpha model fetch NAME`, or check the folder"
    with _readable(f"model {where}", "a causal language model with safetensors weights", fix):
        model = AutoModelForCausalLM.from_pretrained(where, dtype=name, trust_remote_code=False, **more)
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    if adapter is not None:
        from peft import PeftModel

        check_adapter(Path(adapter), where, model, tokenizer)
        expected = "a LoRA adapter whose adapter_config.json goes with its weights"
        with _readable(f"adapter {adapter}", expected, "give the folder as it was saved, and its own base"):
            # in training an adapter is float32; else as its base, or each layer copies its input in float32
            model = PeftModel.from_pretrained(model, str(adapter), is_trainable=trainable, autocast_adapter_dtype=trainable)
    return PolicyModel(model, tokenizer)


def weightless(config: Any) -> Any:
    """Return a causal LM of a configuration on the meta device, to check adapters before loading."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def load_tokenizer(path: str | Path, revision: str = "main") -> Any:
    """Load only the tokenizer of a model (``resolve_model``); InputError or ServiceError if that fails."""
    from transformers import AutoTokenizer

    where = resolve_model(path)
    if isinstance(where, Path) and not (where / "config.json").is_file():
        given_adapter = (where / "adapter_config.json").is_file()
        fix = "give an adapter's folder as the adapter, and its base as the model" if given_adapter else "check the path"
        raise InputError(f"{where} is not a model folder: it has no config.json", expected="a folder of save_pretrained", fix=fix)
    with _readable(f"the tokenizer of {where}", "a transformers tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(where, revision=revision, padding_side="left", trust_remote_code=False)
    if not tokenizer.chat_template:
        fix = "use the model's instruct version, or save a template as chat_template.jinja in the model's folder"
        raise InputError(f"the tokenizer of {where} has no chat template", expected="an instruction-tuned model", fix=fix)
    if tokenizer.eos_token is None:
        raise InputError(f"the tokenizer of {where} has no end-of-text token", expected="eos_token in tokenizer_config.json")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@contextmanager
def _readable(what: str, expected: str, fix: str = "") -> Iterator[None]:
    """Turn all errors of transformers and peft about damaged files into InputError; they have no common base."""
    try:
        yield
    except Exception as error:
        said = str(error) if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {error}"
        raise InputError(f"{what} cannot be loaded: {said}", expected=expected, fix=fix) from error


def base_of(adapter: str | Path) -> str:
    """Return the name of the base an adapter was trained on; InputError if it is no adapter or names none."""
    folder = Path(adapter)
    check_adapter_folder(folder)
    record = _read_json(folder / ADAPTER_RECORD) if (folder / ADAPTER_RECORD).is_file() else {}
    base = record.get("base") or _read_json(folder / "adapter_config.json").get("base_model_name_or_path")
    if not base:
        raise InputError(f"adapter {folder} does not name its base", expected="a base", fix="name it: model=")
    return str(base)


def own_reader(folder: Path) -> Path | None:
    """Return the folder of the reader that an agent's record names, relative to its own; InputError if it is not there."""
    record = folder / ADAPTER_RECORD
    name = _read_json(record).get("reader") if record.is_file() else None
    if name and not (folder / str(name) / ADAPTER_WEIGHTS).is_file():
        fix = "name another reader, or '' for none: passages are shown then"
        raise InputError(f"the reader of {folder} is not at {name!r}", expected="the folder of a trained reader", fix=fix)
    return folder / str(name) if name else None


def unknown_bias(adapter: str | Path, tokenizer: Any) -> dict[int, float]:
    """Return what a reader's record adds to the logit of ``unknown`` as an answer's first token, by id; {} if it says nothing.

    InputError if it is no number.
    """
    record = Path(adapter) / ADAPTER_RECORD
    bias = _read_json(record).get("unknown_bias", 0.0) if record.is_file() else 0.0
    if not isinstance(bias, int | float):
        raise InputError(f"unknown_bias of {record} is {bias!r}", expected="a number, such as -0.5")
    return {tokenizer.encode(UNKNOWN, add_special_tokens=False)[0]: bias} if bias else {}


def base_fingerprint(config: Any, vocabulary_size: int) -> str:
    """Return the sha256 (hexadecimal) over the architecture fields of a config and the tokenizer's length."""
    fields = {field: getattr(config, field, None) for field in _ARCHITECTURE}
    return hashlib.sha256(json.dumps([fields, vocabulary_size], sort_keys=True).encode()).hexdigest()


def name_base(model: Any, base: str) -> None:
    """Write the base's name into an adapter's config instead of a local path; no effect without adapters."""
    for config in getattr(model, "peft_config", {}).values():
        config.base_model_name_or_path = Path(base).name if Path(base).is_dir() else base


def write_adapter_record(adapter: str | Path, base: str | Path, config: Any, tokenizer: Any, **extra: Any) -> Path:
    """Write the record beside an adapter, with the config and tokenizer of its base and ``extra`` JSON, and return its path."""
    known = model_record(base)
    name = f"{known['name']}@{known['source']}" if known else str(base)
    record = {
        "base": Path(name).name if Path(name).is_dir() else name,
        "base_fingerprint": base_fingerprint(config, len(tokenizer)),
        "base_weights_sha256": known.get("weights_sha256"),
        **extra,
    }
    path = Path(adapter) / ADAPTER_RECORD
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return path


def check_adapter(adapter: Path, base: Path | str, model: Any, tokenizer: Any) -> None:
    """Raise InputError unless an adapter fits this base (folder or Hub id); warn if only the weights differ."""
    record = _read_json(adapter / ADAPTER_RECORD) if (adapter / ADAPTER_RECORD).is_file() else {}
    theirs = str(record.get("base") or _read_json(adapter / "adapter_config.json").get("base_model_name_or_path"))
    layers = {key.removeprefix("base_model.model.").rpartition(".lora_")[0] for key in adapter_shapes(adapter) if ".lora_" in key}
    if not layers:
        raise InputError(f"adapter {adapter} holds no LoRA matrices", expected=f"those of a LoRA adapter in {ADAPTER_WEIGHTS}")
    wanted, found = record.get("base_fingerprint"), base_fingerprint(model.config, len(tokenizer))
    missing = sorted(layers - {name for name, _ in model.named_modules()})  # peft would leave them out in silence
    if wanted not in (None, found) or missing:
        why = f"it has no layer {missing[0]}" if missing else f"fingerprints {str(wanted)[:12]} and {found[:12]}"
        what = f"adapter {adapter} belongs to another base: it was trained on {theirs}, and the model given is {base} ({why})"
        raise InputError(what, fix="give the adapter's own base as the model, or train an adapter on this one (`memalpha warmup`)")
    ours, made_with = model_record(base).get("weights_sha256"), record.get("base_weights_sha256")
    if ours and made_with and ours != made_with:
        log.warning("adapter %s was trained on other weights of the same model (%s) than %s", adapter, theirs, base)
    elif wanted is None and Path(theirs).name.lower() != Path(str(base)).name.lower():
        log.warning("adapter %s names its base %s, and nothing says that %s is the same model", adapter, theirs, base)


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
    """Raise InputError unless the folder is an adapter."""
    if not (adapter / "adapter_config.json").is_file():
        wrong = "has no adapter_config.json" if adapter.is_dir() else "does not exist"
        fix = "give the folder that `memalpha warmup` or `memalpha train` wrote, or one of its checkpoint-N folders"
        raise InputError(f"adapter folder {adapter} {wrong}", fix=fix)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}", expected="a JSON object") from error
    if not isinstance(data, dict):
        raise InputError(f"{path} holds a {type(data).__name__}", expected="a JSON object")
    return data


def agent_folder(trained: str | Path) -> Path:
    """Return the folder of an agent's files: the given one, or ``adapter`` in a run; InputError if there is none."""
    folder = Path(trained)
    if not folder.is_dir():
        expected = "a run folder, or the folder of an adapter or a whole model that memalpha trained"
        raise InputError(f"no folder {str(trained)!r}", expected=expected)
    inside = folder / "adapter"
    return inside if (inside / AGENT_FILE).is_file() and not (folder / AGENT_FILE).is_file() else folder
