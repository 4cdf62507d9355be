"""Load a policy: base model, tokenizer, and an adapter that belongs to the base.

The loaded tokenizer has a chat template, an end token and a padding token, and pads on the left;
the model's padding id agrees.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memalpha.errors import InputError
from memalpha.models.adapters import check_adapter, check_adapter_folder, readable
from memalpha.models.registry import resolve_model
from memalpha.models.shipped import resolve_adapter

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DTYPES = ("float32", "bfloat16", "float16")


class PolicyModel(NamedTuple):
    """A ``PreTrainedModel``, or a ``PeftModel`` around it if there is an adapter; its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load_policy_model(
    path: str | Path,
    *,
    adapter: str | Path | None = None,
    dtype: str | torch.dtype = "float32",
    trainable: bool = False,
    **more: Any,
) -> PolicyModel:
    """Load a causal LM (``path`` as in ``resolve_model``) and its tokenizer, with an adapter (as in
    ``resolve_adapter``).

    ``trainable`` gives the adapter gradients. ``more`` goes to ``from_pretrained``; its
    ``revision`` also to the tokenizer's, by default the one that the adapter names. InputError if a
    file cannot be used or the adapter has another base; ServiceError if a fetch failed.
    """
    from transformers import AutoModelForCausalLM

    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise InputError(
            f"the dtype {name!r} cannot be used",
            expected=f"one of {', '.join(DTYPES)}",
        )
    base = resolve_model(path)
    revision = more.pop("revision", None)
    folder = None if adapter is None else resolve_adapter(adapter)
    if folder is not None:
        revision = revision or check_adapter_folder(folder).get("revision")
    revision = revision or "main"
    tokenizer = load_tokenizer(base, revision)
    with readable(f"model {base}", "a causal language model with safetensors weights"):
        model, loading = AutoModelForCausalLM.from_pretrained(
            base,
            dtype=name,
            revision=revision,
            trust_remote_code=False,
            output_loading_info=True,
            **more,
        )
    missing = sorted(loading["missing_keys"])  # transformers draws them at random and only warns
    if missing:
        raise InputError(
            f"the model {base} lacks the weights {', '.join(missing[:1])} "
            f"({len(missing)} are missing)",
            expected="a model with all of its weights",
        )
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    if folder is not None:
        from peft import PeftModel

        check_adapter(folder, base, model, tokenizer)
        expected = "a LoRA adapter whose adapter_config.json fits its weights"
        with readable(f"adapter {adapter}", expected):
            # A trained adapter is float32; else it has the base's type, or each layer would copy
            # its input in float32.
            model = PeftModel.from_pretrained(
                model, str(folder), is_trainable=trainable, autocast_adapter_dtype=trainable
            )
    return PolicyModel(model, tokenizer)


def load_tokenizer(path: str | Path, revision: str = "main") -> PreTrainedTokenizerBase:
    """Load only the tokenizer of a model; InputError or ServiceError if that fails."""
    from transformers import AutoTokenizer

    base = resolve_model(path)
    if isinstance(base, Path) and not (base / "config.json").is_file():
        raise InputError(
            f"{base} is not a model folder: it has no config.json",
            expected="a folder that save_pretrained has written",
            fix="check the path; give an adapter's folder as the adapter, and its base as the "
            "model",
        )
    with readable(f"the tokenizer of {base}", "a transformers tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(
            base, revision=revision, padding_side="left", trust_remote_code=False
        )
    if not tokenizer.chat_template:
        raise InputError(
            f"the tokenizer of {base} has no chat template",
            expected="an instruction-tuned model",
            fix="use the model's instruct version, or save a template as chat_template.jinja in "
            "the model's folder",
        )
    if tokenizer.eos_token is None:
        raise InputError(
            f"the tokenizer of {base} has no end-of-text token",
            expected="eos_token in tokenizer_config.json",
        )
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return tokenizer
