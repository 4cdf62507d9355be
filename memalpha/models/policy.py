"""Load a policy: base model, tokenizer, and an adapter that belongs to the base.

The loaded tokenizer has a chat template, an end token and a padding token, and pads on the left;
the model's padding id agrees. An adapter has ``memalpha_adapter.json`` with the fingerprint of its
base (architecture and vocabulary size). Other weights of the same architecture give a warning, if
both sides recorded their sha256.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memalpha.agent.config import AGENT_FILE
from memalpha.errors import InputError
from memalpha.files import check_folder, file_sha256, inside, read_object
from memalpha.models.registry import model_record, resolve_model
from memalpha.qa.readers import UNKNOWN

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

DTYPES = ("float32", "bfloat16", "float16")
# in an adapter's folder: {base_fingerprint, base, base_weights_sha256, ...}
ADAPTER_RECORD = "memalpha_adapter.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"  # named by peft
TOKENIZER_FILES = (
    "tokenizer*.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.jinja",
)
ADAPTER_FILES = ("adapter_config.json", ADAPTER_WEIGHTS, ADAPTER_RECORD, *TOKENIZER_FILES)
READERS = {  # that ship beside the agents: name, sha256 of the weights
    "qwen2.5-0.5b-reader": "3aab2f62f399a099544756400fd22215759e934c4d3496c9e51959632616ab96",
    "smollm2-135m-reader": "f060c511f36cdde64d3e41cf214947e0e586cb35948c7f0cb4da7bab2245e100",
}
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


class PolicyModel(NamedTuple):
    """A ``PreTrainedModel``, or a ``PeftModel`` around it if there is an adapter; and its
    tokenizer.
    """

    model: Any
    tokenizer: Any


def load_policy_model(
    path: str | Path,
    *,
    adapter: str | Path | None = None,
    dtype: str | torch.dtype = "float32",
    trainable: bool = False,
    **more: Any,
) -> PolicyModel:
    """Load a causal LM (``path`` as in ``resolve_model``) and its tokenizer; ``trainable`` gives
    the adapter gradients.

    ``more`` goes to ``from_pretrained``; its ``revision`` also to the tokenizer's, by default the
    one that the adapter names.

    InputError if a file cannot be used or the adapter has another base; ServiceError if a fetch
    failed.
    """
    from transformers import AutoModelForCausalLM

    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise InputError(f"dtype {name!r} cannot be used", expected=f"one of {', '.join(DTYPES)}")
    where = resolve_model(path)
    if adapter is not None:
        more = {"revision": check_adapter_folder(Path(adapter)).get("revision"), **more}
    more["revision"] = more.get("revision") or "main"
    tokenizer = load_tokenizer(where, more["revision"])
    fix = "fetch a registered model with `memalpha model fetch NAME`, or check the folder"
    with _readable(f"model {where}", "a causal language model with safetensors weights", fix):
        model, loading = AutoModelForCausalLM.from_pretrained(
            where, dtype=name, trust_remote_code=False, output_loading_info=True, **more
        )
    if missing := sorted(
        loading["missing_keys"]
    ):  # transformers draws them at random and only warns
        raise InputError(
            f"model {where} has no weights {missing[0]} ({len(missing)} are missing)",
            expected="all of its weights",
            fix=fix,
        )
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    if adapter is not None:
        from peft import PeftModel

        check_adapter(Path(adapter), where, model, tokenizer)
        expected = "a LoRA adapter whose adapter_config.json goes with its weights"
        with _readable(
            f"adapter {adapter}", expected, "give the folder as it was saved, and its own base"
        ):
            # in training an adapter is float32; else as its base, or each layer copies its input in
            # float32
            model = PeftModel.from_pretrained(
                model, str(adapter), is_trainable=trainable, autocast_adapter_dtype=trainable
            )
    return PolicyModel(model, tokenizer)


def weightless(config: Any) -> Any:
    """Return a causal LM of a configuration on the meta device, to check adapters before
    loading.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def load_tokenizer(path: str | Path, revision: str = "main") -> Any:
    """Load only the tokenizer of a model (``resolve_model``); InputError or ServiceError if that
    fails.
    """
    from transformers import AutoTokenizer

    where = resolve_model(path)
    if isinstance(where, Path) and not (where / "config.json").is_file():
        given_adapter = (where / "adapter_config.json").is_file()
        fix = (
            "give an adapter's folder as the adapter, and its base as the model"
            if given_adapter
            else "check the path"
        )
        raise InputError(
            f"{where} is not a model folder: it has no config.json",
            expected="a folder of save_pretrained",
            fix=fix,
        )
    with _readable(f"the tokenizer of {where}", "a transformers tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(
            where, revision=revision, padding_side="left", trust_remote_code=False
        )
    if not tokenizer.chat_template:
        fix = "use the model's instruct version, or save a template as chat_template.jinja in the model's folder"
        raise InputError(
            f"the tokenizer of {where} has no chat template",
            expected="an instruction-tuned model",
            fix=fix,
        )
    if tokenizer.eos_token is None:
        raise InputError(
            f"the tokenizer of {where} has no end-of-text token",
            expected="eos_token in tokenizer_config.json",
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@contextmanager
def _readable(what: str, expected: str, fix: str = "") -> Iterator[None]:
    """Turn all errors of transformers and peft about damaged files into InputError; they have no
    common base.
    """
    try:
        yield
    except Exception as error:
        said = (
            str(error)
            if isinstance(error, OSError | ValueError)
            else f"{type(error).__name__}: {error}"
        )
        raise InputError(f"{what} cannot be loaded: {said}", expected=expected, fix=fix) from error


def base_name(adapter: str | Path) -> str:
    """Return what an adapter calls the base it was trained on, empty if it does not; InputError if
    it is no adapter.
    """
    config = check_adapter_folder(Path(adapter))
    return str(
        adapter_record(Path(adapter)).get("base") or config.get("base_model_name_or_path") or ""
    )


def base_of(adapter: str | Path) -> str:
    """Return the base of an adapter, to load it; InputError if it is no adapter, names none, or
    names a folder of this machine.
    """
    base = base_name(adapter)
    if not base or Path(base).is_dir():
        what = f"names the folder {base!r} as its base" if base else "does not name its base"
        raise InputError(
            f"adapter {adapter} {what}",
            expected="a registered or Hub name",
            fix="name it: model=, --model",
        )
    return base


def own_reader(folder: Path) -> Path | None:
    """Return the folder of the reader that an agent's record names: one inside its own, or a
    shipped one beside it.

    InputError if it is not there, is elsewhere, or a shipped one has other weights.
    """
    name = str(adapter_record(folder).get("reader") or "")
    if not name:
        return None
    shipped = READERS.get(name)
    place = folder.resolve().parent / name if shipped else inside(folder, name)
    weights, fix = (
        place / ADAPTER_WEIGHTS,
        "name another reader, or '' for none: passages are shown then",
    )
    if not weights.is_file():
        raise InputError(
            f"the reader of {folder} is not at {name!r}",
            expected="the folder of a trained reader",
            fix=fix,
        )
    if shipped and file_sha256(weights) != shipped:
        raise InputError(
            f"{weights} is not of the reader {name!r} that memalpha ships",
            expected=f"sha256 {shipped}",
            fix=fix,
        )
    check_adapter_folder(place)
    return place


def unknown_bias(adapter: str | Path, tokenizer: Any) -> dict[int, float]:
    """Return what a reader's record adds to the logit of ``unknown`` as an answer's first token, by
    id; {} if it says nothing.

    InputError if it is no number.
    """
    bias = adapter_record(Path(adapter)).get("unknown_bias", 0.0)
    if not isinstance(bias, int | float):
        raise InputError(
            f"unknown_bias of {adapter} is {bias!r}", expected="a number, such as -0.5"
        )
    return {tokenizer.encode(UNKNOWN, add_special_tokens=False)[0]: bias} if bias else {}


def base_fingerprint(config: Any, vocabulary_size: int) -> str:
    """Return the sha256 (hexadecimal) over the architecture fields of a config and the tokenizer's
    length.
    """
    fields = {field: getattr(config, field, None) for field in _ARCHITECTURE}
    return hashlib.sha256(
        json.dumps([fields, vocabulary_size], sort_keys=True).encode()
    ).hexdigest()


def name_base(model: Any, base: str) -> None:
    """Write the base's name into an adapter's config instead of a local path; no effect without
    adapters.
    """
    for config in getattr(model, "peft_config", {}).values():
        config.base_model_name_or_path = Path(base).name if Path(base).is_dir() else base


def write_adapter_record(
    adapter: str | Path, base: str | Path, config: Any, tokenizer: Any, **extra: Any
) -> Path:
    """Write the record beside an adapter, with the config and tokenizer of its base and ``extra``
    JSON, and return its path.
    """
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
    """Raise InputError unless an adapter fits this base (folder or Hub id); warn if only the
    weights differ.
    """
    record, theirs = adapter_record(adapter), base_name(adapter)
    keys = [key.removeprefix("base_model.model.") for key in adapter_shapes(adapter)]
    layers = {key.rpartition(".lora_")[0] for key in keys if ".lora_" in key}
    expected = f"those of a LoRA adapter in {ADAPTER_WEIGHTS}, and nothing else"
    if not layers:
        raise InputError(f"adapter {adapter} holds no LoRA matrices", expected=expected)
    if others := sorted(
        key for key in keys if ".lora_" not in key
    ):  # peft would put them in place of the base's own
        raise InputError(
            f"adapter {adapter} holds weights of the base, such as {others[0]}", expected=expected
        )
    wanted, found = record.get("base_fingerprint"), base_fingerprint(model.config, len(tokenizer))
    missing = sorted(
        layers - {name for name, _ in model.named_modules()}
    )  # peft would leave them out in silence
    if wanted not in (None, found) or missing:
        why = (
            f"it has no layer {missing[0]}"
            if missing
            else f"fingerprints {str(wanted)[:12]} and {found[:12]}"
        )
        what = f"adapter {adapter} belongs to another base: it was trained on {theirs}, and the model given is {base} ({why})"
        raise InputError(
            what,
            fix="give the adapter's own base as the model, or train an adapter on this one (`memalpha warmup`)",
        )
    ours, made_with = model_record(base).get("weights_sha256"), record.get("base_weights_sha256")
    if ours and made_with and ours != made_with:
        log.warning(
            "adapter %s was trained on other weights of the same model (%s) than %s",
            adapter,
            theirs,
            base,
        )
    elif wanted is None and Path(theirs).name.lower() != Path(str(base)).name.lower():
        log.warning(
            "adapter %s names its base %s, and nothing says that %s is the same model",
            adapter,
            theirs,
            base,
        )


def adapter_shapes(adapter: Path) -> Mapping[str, tuple[int, ...]]:
    """Return the shape of each matrix of an adapter; InputError if its weights cannot be read."""
    from safetensors import SafetensorError, safe_open

    path = adapter / ADAPTER_WEIGHTS
    try:
        with safe_open(path, framework="np") as tensors:
            return {key: tuple(tensors.get_slice(key).get_shape()) for key in tensors.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{path} cannot be read: {error}", expected="the safetensors file of a LoRA adapter"
        ) from error


def check_adapter_folder(adapter: Path) -> dict[str, Any]:
    """Return the configuration of an adapter; InputError unless the folder is one, of LoRA, without
    code or links out of it.
    """
    if not (adapter / "adapter_config.json").is_file():
        wrong = "has no adapter_config.json" if adapter.is_dir() else "does not exist"
        fix = "give the folder that `memalpha warmup` or `memalpha train` wrote, or one of its checkpoint-N folders"
        raise InputError(f"adapter folder {adapter} {wrong}", fix=fix)
    check_folder(adapter)
    config = read_object(adapter / "adapter_config.json")
    if config.get("peft_type") != "LORA" or config.get(
        "megatron_config"
    ):  # peft reads and imports what other types name
        raise InputError(
            f"{adapter} is of type {config.get('peft_type')!r}",
            expected="LORA, without megatron_config",
        )
    return config


def adapter_record(adapter: Path) -> dict[str, Any]:
    """Return what ``write_adapter_record`` wrote beside an adapter; {} if it wrote nothing."""
    path = adapter / ADAPTER_RECORD
    return read_object(path) if path.is_file() else {}


def copy_files(source: Path, target: Path, patterns: Sequence[str]) -> None:
    """Copy the files of a folder that fit a pattern into another, which need not exist."""
    target.mkdir(exist_ok=True)
    for path in sorted(
        {path for pattern in patterns for path in source.glob(pattern) if path.is_file()}
    ):
        shutil.copyfile(path, target / path.name)


def agent_folder(trained: str | Path) -> Path:
    """Return the folder of an agent's files: the given one, or ``adapter`` in a run; InputError if
    there is none.
    """
    folder = Path(trained)
    if not folder.is_dir():
        expected = (
            "a run folder, or the folder of an adapter or a whole model that memalpha trained"
        )
        raise InputError(f"no folder {str(trained)!r}", expected=expected)
    inside = folder / "adapter"
    return (
        inside
        if (inside / AGENT_FILE).is_file() and not (folder / AGENT_FILE).is_file()
        else folder
    )
