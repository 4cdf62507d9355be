"""Token counters: a tokenizer's, or a word count (``memalpha.memory.memory.count_words``) without one.

If signs of scripts without spaces (Chinese, Japanese, Thai, Lao, Burmese, Khmer, Tibetan) outnumber the words, each such sign
is a word. Other text without white space is one word, whatever its length.
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
    """Return a text with spaces around each sign of a script without spaces."""
    return text if text.isascii() else _UNSPACED.sub(r" \g<0> ", text)


def count_words_and_signs(text: str) -> int:
    """Count words; also each sign of scripts without spaces, if these outnumber the words."""
    words = count_words(text)
    if text.isascii() or len(_UNSPACED.findall(text)) <= words:
        return words
    return len(apart(text).split())


def tokenizer_counter(name_or_path: str) -> TokenCounter:
    """Return a token counter (no special tokens) for a tokenizer folder or Hub name; InputError if it cannot be loaded."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"the tokenizer of {name_or_path} cannot be loaded: {error}",
            expected="a folder with a transformers tokenizer, or a model's name on the Hub",
            fix="leave the tokenizer out to count words",
        ) from error

    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids) if text else 0

    return count
