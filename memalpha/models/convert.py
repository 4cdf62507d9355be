"""SmolLM2's GGUF file to an ordinary transformers folder with float32 safetensors.

transformers reads GGUF itself and de-quantises it, but refuses to save a model that still carries its quantisation config, so the
model is rebuilt from a clean config. The tokenizer comes from the same file; GGUF only names its pre-tokenizer, and transformers
leaves out the digit splitting that ``smollm`` stands for: it is put back here. Checked: the ids of the chat markers.
Departure: the published weights are bfloat16; these were rounded to Q4_1 on the way.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from memalpha.errors import MissingExtraError, ServiceError

CHAT_MARKERS = {"<|im_start|>": 1, "<|im_end|>": 2}
"""Chat markers of SmolLM2 and their ids."""


def require_gguf() -> None:
    """Raise MissingExtraError unless the ``gguf`` package, which transformers reads GGUF files with, is installed."""
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtraError("gguf", "gguf")


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write config, float32 safetensors, tokenizer and chat template of a SmolLM2 GGUF file into ``folder``.

    Raises:
        MissingExtraError: The ``gguf`` extra is not installed.
        ServiceError: The tokenizer that comes out is not SmolLM2's.
    """
    require_gguf()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    _split_digits(tokenizer)
    check_chat_tokenizer(tokenizer)
    quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = quantised.config
    for stray in ("quantization_config", "_model_name_or_path"):
        if hasattr(config, stray):
            delattr(config, stray)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantised.state_dict())
    model.generation_config = quantised.generation_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def check_chat_tokenizer(tokenizer: Any) -> None:
    """Raise ServiceError unless the chat markers are single ids (1, 2), the end marker ends texts, and there is a template."""
    for marker, token_id in CHAT_MARKERS.items():
        found = tokenizer.encode(marker, add_special_tokens=False)
        if found != [token_id]:
            raise ServiceError(f"the converted tokenizer reads {marker} as {found}\n  expected: [{token_id}]")
    if tokenizer.eos_token != "<|im_end|>" or not tokenizer.chat_template:
        raise ServiceError(
            f"the converted tokenizer ends texts with {tokenizer.eos_token!r}\n  expected: '<|im_end|>' and a chat template"
        )


def _split_digits(tokenizer: Any) -> None:
    """Make every digit a word of its own before byte-level BPE, as the pre-tokenizer ``smollm`` does."""
    from tokenizers import pre_tokenizers

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
