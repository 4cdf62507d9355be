"""Token counters by a tokenizer's name, for preparing data that fit a policy's prompts."""

from __future__ import annotations

from memalpha.errors import InputError
from memalpha.protocols import TokenCounter


def tokenizer_counter(name_or_path: str) -> TokenCounter:
    """Return a function that counts a text's tokens, special tokens neither added nor read out of the text.

    Args:
        name_or_path: Folder of a tokenizer, or its model's name on the Hugging Face Hub.

    Raises:
        InputError: If there is no such tokenizer.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_path)
    except (OSError, ValueError) as error:
        raise InputError(
            f"the tokenizer of {name_or_path} cannot be loaded: {error}",
            expected="a folder with a transformers tokenizer, or a model's name on the Hub",
            fix="leave the tokenizer out to count words",
        ) from error

    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids) if text else 0

    return count
