"""Token counters for preparing data that fit a policy's prompts: a tokenizer's, and words where none is at hand.

Words are those of ``memalpha.memory.memory.count_words``. In a text with more signs of scripts that are written without spaces
(Chinese, Japanese, Thai, Lao, Burmese, Khmer, Tibetan) than words, each of these signs counts as a word of its own. A run of other
signs without white space is one word, however long it is.
"""

from __future__ import annotations

import re

from memalpha.errors import InputError
from memalpha.memory.memory import count_words
from memalpha.protocols import TokenCounter

_UNSPACED = re.compile(
    "[\u0e01-\u0e3a\u0e40-\u0e4e\u0e80-\u0edf\u0f40-\u0fbc\u1000-\u109f\u1780-\u17d3\u3005-\u3007\u3040-\u30ff"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)


def apart(text: str) -> str:
    """Return a text with each sign of a script without spaces standing alone, as words do in others."""
    return text if text.isascii() else _UNSPACED.sub(r" \g<0> ", text)


def count_words_and_signs(text: str) -> int:
    """Count whitespace-separated words, and each sign as one where signs of scripts without spaces outnumber the words."""
    words = count_words(text)
    if text.isascii() or len(_UNSPACED.findall(text)) <= words:
        return words
    return len(apart(text).split())


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
