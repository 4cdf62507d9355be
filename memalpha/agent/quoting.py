"""Keeps text from data inside its place in a prompt: fences it cannot close, a line it cannot leave, JSON it cannot end.

What always holds: ``quote`` leaves no ``<`` before the name of a fence, ``one_line`` no line break, ``quoted_json`` no quotation
mark that ends a string; also after a tokenizer's normalisation (NFKC, case, invisible characters left out). Ordinary text is
returned as it is.

It does not cover what a text says: a model may obey it all the same, which is measured and not prevented
(``memalpha.evaluation.poisoning``). Special tokens are the business of ``memalpha.agent.encoding``.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

_FENCES = ("chunk", "/chunk", "memory", "/memory")
_OPENING = re.compile("[<\ufe64\uff1c]")  # the characters that NFKC makes a "<"
_SKIPPED = frozenset({"Cc", "Cf", "Mn", "Me"})  # characters nobody sees
_LINE_BREAK = re.compile("\r\n|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_JSON_ESCAPES = str.maketrans({char: f"\\u{ord(char):04x}" for char in "\uff02\uff3c\ufe68"})  # NFKC: a quotation mark, backslashes


def quote(text: str) -> str:
    """Keep a text from closing (or opening) the fences it stands between; ``<`` before a fence's name becomes ``&lt;``."""
    return _OPENING.sub(lambda found: "&lt;" if _names_a_fence(text, found.end()) else found[0], text)


def _names_a_fence(text: str, start: int) -> bool:
    """Whether a fence's name begins at a place of a text, read as a person or a normalising tokenizer might."""
    read = ""
    for index in range(start, len(text)):
        char = text[index]
        if char.isspace() or unicodedata.category(char) in _SKIPPED:
            continue
        read += unicodedata.normalize("NFKC", char).casefold()
        if read in _FENCES:
            after = text[index + 1 : index + 2]
            return not (after.isalnum() or after == "_")
        if not any(name.startswith(read) for name in _FENCES):
            return False
    return False


def one_line(text: str) -> str:
    r"""Write every line break of a text as the two characters ``\n``, so that it stays on its line."""
    return _LINE_BREAK.sub(r"\\n", text)


def quoted_json(data: Any) -> str:
    """Return data as JSON on one line, readable (not all ASCII), whose strings end where they should."""
    return json.dumps(data, ensure_ascii=False).translate(_JSON_ESCAPES)


__all__ = ["one_line", "quote", "quoted_json"]
