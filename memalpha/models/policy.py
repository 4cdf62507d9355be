"""Loading a policy: base model, tokenizer, and an adapter that belongs to that base.

What always holds for what is returned: the tokenizer has a chat template, an end token, a padding token and pads on the left; the
model's config agrees on the padding id; an adapter was made for a base of this architecture and vocabulary. Everything that stands
in the way is one InputError that says what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memalpha.errors import InputError
from memalpha.models.adapters import check_adapter, check_adapter_folder
from memalpha.models.registry import resolve_model

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16", "float16")
"""Accepted names of floating-point types."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
"""A folder with none of these has no tokenizer."""


class PolicyModel(NamedTuple):
    """A loaded policy.

    Attributes:
        model: A ``PreTrainedModel``, or a ``PeftModel`` around it where an adapter was given.
        tokenizer: Its tokenizer.
    """

    model: Any
    tokenizer: Any


def load_policy_model(
    path: str | Path,
    *,
    adapter: str | Path | None = None,
    dtype: str | torch.dtype = "float32",
    trainable: bool = False,
) -> PolicyModel:
    """Load a causal LM and its tokenizer, with an adapter on top where one is given.

    Args:
        path: A folder, a registered name or a Hub id, as ``resolve_model`` takes them.
        adapter: Folder of a LoRA adapter.
        dtype: ``float32``, ``bfloat16`` or ``float16``, or the torch type.
        trainable: Whether the adapter's weights take gradients.

    Raises:
        InputError: Missing folder or file, no tokenizer, no chat template, unknown dtype, an adapter of another base; or
            what is there cannot be read.
        ServiceError: A registered model could not be fetched.
    """
    torch_dtype = _torch_dtype(dtype)
    where = resolve_model(path)
    if isinstance(where, Path):
        _check_folder(where)
    tokenizer = _load_tokenizer(where)
    if adapter is not None:
        check_adapter_folder(Path(adapter))
    model = _load_model(where, torch_dtype)
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    if adapter is None:
        return PolicyModel(model, tokenizer)
    check_adapter(Path(adapter), where, model, tokenizer)
    return PolicyModel(_with_adapter(model, adapter, trainable), tokenizer)


def weightless(config: Any) -> Any:
    """Return a causal LM of a configuration without weights, to compare adapters with before anything is loaded."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def load_tokenizer(path: str | Path) -> Any:
    """Load the tokenizer of a model alone.

    Args:
        path: A folder, a registered name or a Hub id, as ``resolve_model`` takes them.

    Raises:
        InputError: Missing folder or file, no tokenizer, no chat template.
        ServiceError: A registered model could not be fetched.
    """
    where = resolve_model(path)
    if isinstance(where, Path):
        _check_folder(where)
    return _load_tokenizer(where)


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise InputError(
            f"{folder} is not a model folder: it has no config.json",
            expected="a folder as transformers' save_pretrained writes it",
            fix="give an adapter's folder as the adapter, and its base as the model"
            if (folder / "adapter_config.json").is_file()
            else "check the path",
        )
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise InputError(
            f"model folder {folder} has no tokenizer",
            expected=f"one of {', '.join(TOKENIZER_FILES)} beside config.json",
            fix="save the tokenizer into the folder: AutoTokenizer.from_pretrained(BASE).save_pretrained(FOLDER)",
        )


def _load_tokenizer(where: Path | str) -> Any:
    from transformers import AutoTokenizer

    with _readable(f"the tokenizer of {where}", "a transformers tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(where, padding_side="left")
    if not tokenizer.chat_template:
        raise InputError(
            f"the tokenizer of {where} has no chat template",
            expected="an instruction-tuned model, whose tokenizer says how a conversation is written",
            fix="use the model's instruct version, or save a template as chat_template.jinja in the model's folder",
        )
    if tokenizer.eos_token is None:
        raise InputError(f"the tokenizer of {where} has no end-of-text token", expected="eos_token in tokenizer_config.json")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _load_model(where: Path | str, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    fix = "fetch a registered model with `memalpha model fetch NAME`, or check the folder"
    with _readable(f"model {where}", "a causal language model with safetensors weights", fix):
        return AutoModelForCausalLM.from_pretrained(where, dtype=dtype)


def _with_adapter(model: Any, adapter: str | Path, trainable: bool) -> Any:
    from peft import PeftModel

    expected = "a LoRA adapter whose adapter_config.json goes with its weights"
    with _readable(f"adapter {adapter}", expected, "give the folder as it was saved"):
        return PeftModel.from_pretrained(model, str(adapter), is_trainable=trainable)


@contextmanager
def _readable(what: str, expected: str, fix: str = "") -> Iterator[None]:
    """The boundary to transformers and peft, whose errors about damaged files have no common base: each is an InputError."""
    try:
        yield
    except Exception as error:
        said = str(error) if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {error}"
        raise InputError(f"{what} cannot be loaded: {said}", expected=expected, fix=fix) from error


def _torch_dtype(dtype: str | torch.dtype) -> torch.dtype:
    import torch

    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise InputError(f"dtype {name!r} cannot be used", expected=f"one of {', '.join(DTYPES)}")
    found: torch.dtype = getattr(torch, name)
    return found
