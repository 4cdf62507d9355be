"""The folder of a LoRA adapter: what it holds, what its base is, and whether it fits a base.

An adapter has ``memalpha_adapter.json`` with the fingerprint of its base (architecture and
vocabulary size). Other weights of the same architecture give a warning, if both sides recorded
their sha256.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memalpha.errors import InputError
from memalpha.files import check_folder, read_object, write_object
from memalpha.models.registry import NANO, hub_name, model_record
from memalpha.sandbox import check_patterns
from memalpha.types import JsonObject

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_log = logging.getLogger(__name__)

# in an adapter's folder: {base_fingerprint, base, base_weights_sha256, ...}
ADAPTER_RECORD = "memalpha_adapter.json"
ADAPTER_CONFIG = "adapter_config.json"  # this and the next are named by peft
ADAPTER_WEIGHTS = "adapter_model.safetensors"
TOKENIZER_FILES = (
    "tokenizer*.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.jinja",
)
ADAPTER_FILES = (ADAPTER_CONFIG, ADAPTER_WEIGHTS, ADAPTER_RECORD, *TOKENIZER_FILES)
# Fields of adapter_config.json that plain LoRA has, and those that say nothing about it.
_SETTINGS = frozenset(
    {
        "r",
        "lora_alpha",
        "lora_dropout",
        "target_modules",
        "exclude_modules",
        "layers_to_transform",
        "layers_pattern",
        "rank_pattern",
        "alpha_pattern",
        "fan_in_fan_out",
        "peft_type",
        "use_rslora",
    }
)
_NOTES = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "inference_mode",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
    }
)
_VALUES: Mapping[str, tuple[object, ...]] = {  # others that do not make it anything else
    "bias": ("none",),
    "init_lora_weights": (True, "gaussian", "orthogonal"),
    "task_type": ("CAUSAL_LM",),
}
_FLOATS = ("F16", "BF16", "F32", "F64")  # as safetensors calls them
_MOST = 2**31  # rank or scale
_PLAIN_NAME = re.compile(r"[\w.-]*", re.ASCII)
# Config fields that decide tensor shapes; a missing one counts as null.
_ARCHITECTURE = (
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


@contextmanager
def readable(what: str, expected: str) -> Iterator[None]:
    """Turn errors of transformers and peft about damaged files, which share no base, into one."""
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
        raise InputError(f"{what} cannot be loaded: {kind}{error}", expected=expected) from error


def weightless(config: PretrainedConfig) -> PreTrainedModel:
    """Return a causal LM on the meta device, to check adapters before loading."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def check_adapter_folder(adapter: Path) -> JsonObject:
    """Return an adapter's configuration; InputError unless it is of plain LoRA.

    What else peft knows is refused by name: some of it imports code, or makes weights that the file
    need not have.
    """
    if is_whole(adapter):
        raise InputError(
            f"{adapter} holds a whole model and no adapter",
            expected="the folder of a LoRA adapter",
            fix="give the folder as the model",
        )
    if not (adapter / ADAPTER_CONFIG).is_file():
        raise InputError(
            f"the adapter folder {adapter} has no adapter_config.json"
            if adapter.is_dir()
            else f"the adapter folder {adapter} does not exist",
            fix=f"give {adapter / 'adapter'}"
            if (adapter / "adapter").is_dir()
            else "give the folder that `memalpha warmup` or `memalpha train` wrote, or one of its "
            "checkpoint-N folders",
        )
    check_folder(adapter)
    config = read_object(adapter / ADAPTER_CONFIG)
    if config.get("peft_type") != "LORA":
        raise InputError(
            f"{adapter} is an adapter of type {config.get('peft_type')!r}",
            expected="type LORA",
        )
    for name, value in config.items():
        plain = name in _SETTINGS | _NOTES or not value or value in _VALUES.get(name, ())
        problem = "" if plain else "is not supported"
        if name in _SETTINGS:
            problem = _wrong_setting(name, value)
        if problem:
            raise InputError(
                f"{name} of {adapter / ADAPTER_CONFIG} {problem}: {value!r:.200}",
                expected="an adapter of plain LoRA on linear layers",
                fix="where it was made, merge it into its base, and give the whole model",
            )
    return config


def is_whole(folder: Path) -> bool:
    """Whether a folder holds a whole model, as full fine-tuning writes it."""
    return (folder / "config.json").is_file() and not (folder / ADAPTER_CONFIG).is_file()


def _wrong_setting(name: str, value: Any) -> str:
    """What is wrong with a value of a field of plain LoRA; empty if nothing is."""
    if name in ("r", "lora_alpha"):
        return "" if _is_size(value, name == "r") else "is not a number above 0"
    if name == "use_rslora":
        return "" if isinstance(value, bool | None) else "is not true or false"
    if name == "lora_dropout":
        fits = isinstance(value, int | float) and 0 <= value < 1
        return "" if fits else "is not a share below 1"
    if name in ("rank_pattern", "alpha_pattern"):
        values = value.values() if isinstance(value, dict) else [value] * bool(value)
        whole = name == "rank_pattern"
        return (
            "" if all(_is_size(each, whole) for each in values) else "does not hold numbers above 0"
        )
    if name in ("target_modules", "exclude_modules", "layers_pattern"):
        items = value if isinstance(value, list) else [value or ""]
        return (
            "" if all(isinstance(item, str) for item in items) else "does not hold names of layers"
        )
    return ""


def _is_size(value: Any, whole: bool) -> bool:
    number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    return number and 0 < value < _MOST


def adapter_record(adapter: Path) -> JsonObject:
    """Return what ``write_adapter_record`` wrote beside an adapter; {} if it wrote nothing."""
    path = adapter / ADAPTER_RECORD
    return read_object(path) if path.is_file() else {}


def write_adapter_record(
    adapter: str | Path,
    base: str | Path,
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    **extra: str,
) -> Path:
    """Write the record beside an adapter, with its base and ``extra``, and return its path."""
    known = model_record(base)
    name = f"{known['name']}@{known['source']}" if known else str(base)
    record = {
        "base": _base_label(name),
        "base_fingerprint": base_fingerprint(config, len(tokenizer)),
        "base_weights_sha256": known.get("weights_sha256"),
        **extra,
    }
    path = Path(adapter) / ADAPTER_RECORD
    write_object(path, record)
    return path


def name_base(model: PreTrainedModel, base: str) -> None:
    """Write the base's name into an adapter's configuration instead of a path of this machine."""
    for config in getattr(model, "peft_config", {}).values():
        config.base_model_name_or_path = _base_label(base)


def _base_label(base: str) -> str:
    return Path(base).name if Path(base).is_dir() else base


def base_fingerprint(config: PretrainedConfig, vocabulary_size: int) -> str:
    """Return the sha256 of a config's architecture fields and the tokenizer's length."""
    fields = {field: getattr(config, field, None) for field in _ARCHITECTURE}
    text = json.dumps([fields, vocabulary_size], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def base_name(adapter: str | Path) -> str:
    """Return what an adapter calls its base, "" if nothing; InputError if it is no adapter."""
    config = check_adapter_folder(Path(adapter))
    record = adapter_record(Path(adapter))
    return str(record.get("base") or config.get("base_model_name_or_path") or "")


def base_of(adapter: str | Path) -> str:
    """Return the base of an adapter, to load it; InputError if it names none, or a folder."""
    base = base_name(adapter)
    known = hub_name(base) is not None or base.partition("@")[0] == NANO
    if not known or Path(base).is_dir():
        raise InputError(
            f"the adapter {adapter} names {base!r} as its base",
            expected="a registered or Hub name",
            fix="name the base with model= or --model",
        )
    return base


def adapter_keys(adapter: Path) -> list[str]:
    """Return the names of an adapter's matrices; InputError if its weights cannot be read."""
    from safetensors import SafetensorError, safe_open

    path = adapter / ADAPTER_WEIGHTS
    pickles = sorted(adapter.glob("adapter_model.*")) if not path.is_file() else []
    if pickles:
        raise InputError(
            f"the adapter {adapter} has its weights only in {pickles[0].name if pickles else ''}",
            expected=f"the file {ADAPTER_WEIGHTS}, since a pickle can run code and is not read",
            fix="save the adapter again with safetensors, where it was made",
        )
    try:
        with safe_open(path, framework="np") as tensors:
            return list(tensors.keys())
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{path} cannot be read: {error}", expected="the safetensors file of a LoRA adapter"
        ) from error


def check_adapter(
    adapter: Path, base: Path | str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Raise InputError unless an adapter fits this base: each of its matrices has a place, finite
    values and the right shape, none is of a shared weight, and no place is left. Warn if only the
    base's weights may differ.
    """
    config = check_adapter_folder(adapter)
    shapes = _shapes(adapter)
    keys = [key.removeprefix("base_model.model.") for key in shapes]
    strangers = sorted(key for key in keys if ".lora_" not in key)
    if strangers or not keys:
        raise InputError(
            f"the adapter {adapter} holds {len(keys) - len(strangers)} LoRA "
            f"matrices and {strangers[:1]}",
            expected=f"the matrices of a LoRA adapter in {ADAPTER_WEIGHTS}, and no weights "
            "of its base",
        )
    layers = {key.rpartition(".lora_")[0] for key in keys}
    record = adapter_record(adapter)
    trained_on = base_name(adapter)
    ours = base_fingerprint(model.config, len(tokenizer))
    theirs = record.get("base_fingerprint")
    names = [name for name, _ in model.named_modules()]
    # peft would leave out layers in silence
    missing = sorted(layers - set(names))
    why = f"it has no layer {missing[0]}" if missing else f"fingerprints {theirs} and {ours}"
    if missing or theirs not in (None, ours):
        raise InputError(
            f"the adapter {adapter} belongs to another base: it was trained on "
            f"{trained_on}, but the model given is {base} ({why})",
            fix="give the adapter's own base as the model, or train an adapter on this one "
            "(`memalpha warmup`)",
        )
    shared = _layers_of_shared_weights(model, layers)
    if shared:
        raise InputError(
            f"the adapter {adapter} has matrices for {shared[0]}, whose weight is "
            "shared with another module of the base",
            expected="an adapter of plain LoRA on linear layers below the head",
            fix="where it was made, merge it into a base whose head has weights of its "
            "own, and give the whole model",
        )
    _check_names(config, names, adapter / ADAPTER_CONFIG)
    _check_places(adapter, config, shapes, weightless(model.config))
    digests = {model_record(base).get("weights_sha256"), record.get("base_weights_sha256")}
    renamed = Path(trained_on).name.lower() != Path(str(base)).name.lower()
    if len(digests - {None}) > 1 or (theirs is None and renamed):
        message = "the adapter %s was trained on %s; %s may have other weights of the same model"
        _log.warning(message, adapter, trained_on, base)


def _layers_of_shared_weights(model: PreTrainedModel, layers: Collection[str]) -> list[str]:
    """Return the layers whose weight another module of a model has, too, such as a tied head."""
    # a layer of LoRA shows the weight of the layer that it wraps, and has none of its own
    own = (dict(module.named_parameters(recurse=False)).get("weight") for module in model.modules())
    times = Counter(id(weight) for weight in own if weight is not None)
    weights = {layer: getattr(model.get_submodule(layer), "weight", None) for layer in layers}
    return sorted(layer for layer, weight in weights.items() if times[id(weight)] > 1)


def _shapes(adapter: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each of an adapter's matrices; InputError unless they are numbers."""
    from safetensors import safe_open

    shapes = {}
    path = adapter / ADAPTER_WEIGHTS
    keys = adapter_keys(adapter)
    with safe_open(path, framework="pt") as tensors:
        for key in keys:
            part = tensors.get_slice(key)
            kind = part.get_dtype()
            if kind not in _FLOATS or not bool(tensors.get_tensor(key).isfinite().all()):
                raise InputError(
                    f"{key} of {path} has type {kind}"
                    if kind not in _FLOATS
                    else f"{key} of {path} holds a value that is no number",
                    expected=f"finite values, of type {', '.join(_FLOATS)}",
                )
            shapes[key] = tuple(part.get_shape())
    return shapes


def _check_names(config: JsonObject, names: Sequence[str], path: Path) -> None:
    """Raise InputError if an adapter names more layers than there are, or by an expression that
    takes for ever.
    """
    patterns = []
    for field in ("target_modules", "exclude_modules", "rank_pattern", "alpha_pattern"):
        value = config.get(field) or ()
        if not isinstance(value, str) and len(value) > len(names):
            raise InputError(
                f"{field} of {path} names {len(value)} layers, but the base has {len(names)}",
                expected="names of the base's layers",
            )
        if isinstance(value, str):
            patterns += [value] * (value != "all-linear")
        elif field.endswith("_pattern"):
            patterns += [rf"(.*\.)?({key})$" for key in value if not _PLAIN_NAME.fullmatch(key)]
    layers = config.get("layers_pattern") or ()
    for pattern in [layers] if isinstance(layers, str) else layers:
        patterns.append(rf"(?:^|.*?\.){pattern}\.(?P<idx>\d+)\.")
    if patterns:
        check_patterns(patterns, names, str(path))


def _check_places(
    adapter: Path,
    config: JsonObject,
    shapes: Mapping[str, tuple[int, ...]],
    model: PreTrainedModel,
) -> None:
    """Raise InputError unless a file's matrices are those that the configuration makes on a base,
    which ends up with the adapter; it is on the meta device.
    """
    import torch
    from peft import LoraConfig, PeftModel
    from peft.utils import get_peft_model_state_dict

    expected = "a LoRA adapter whose adapter_config.json fits its weights"
    with readable(f"adapter {adapter}", expected):
        made = LoraConfig.from_pretrained(str(adapter))
        with torch.device("meta"):  # a rank of a billion takes no memory
            policy = PeftModel(model, made)
        state = get_peft_model_state_dict(policy, save_embedding_layers=False)
    places = {key: tuple(tensor.shape) for key, tensor in state.items()}
    extra = sorted(shapes.keys() - places.keys())
    missing = sorted(places.keys() - shapes.keys())
    other = sorted(key for key in shapes.keys() & places if shapes[key] != places[key])
    problem = ""
    if extra:
        problem = f"has no place for {extra[0]} ({len(extra)} of {len(shapes)})"
    elif missing:
        problem = f"needs {missing[0]}, which is missing ({len(missing)} in all)"
    elif other:
        key = other[0]
        problem = f"has a size mismatch: {key} is {shapes[key]} and should be {places[key]}"
    elif bool(config.get("fan_in_fan_out")) != made.fan_in_fan_out:
        problem = f"says fan_in_fan_out: {config.get('fan_in_fan_out')}, unlike the base's layers"
    if problem:
        raise InputError(
            f"the adapter {adapter} cannot be loaded: its adapter_config.json {problem}",
            expected=expected,
            fix="restore both files as they were saved",
        )


def copy_files(source: Path, target: Path, patterns: Sequence[str]) -> None:
    """Copy the files of a folder that fit a pattern into another, which need not exist."""
    target.mkdir(exist_ok=True)
    for pattern in patterns:
        for path in source.glob(pattern):
            shutil.copyfile(path, target / path.name)
