"""Stems of English words: rules without a model, by which live, lives and living are one word."""

import re
from functools import lru_cache

_NUMBERS = {
    name: str(number)
    for number, name in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve".split()
    )
}
_ORDINAL = re.compile(r"^(\d+)(?:st|nd|rd|th)$")
_SUFFIXES = ("ingly", "ings", "ing", "edly", "ied", "ies", "ed", "ers", "er", "es", "s", "ly")
_LEAST_STEM = 3  # letters that stay when a suffix goes


@lru_cache(maxsize=65536)
def english_stem(word: str) -> str:
    """Return a lower-case word without its ending: live, lives and living are one."""
    if not word.isalpha():
        return _ORDINAL.sub(r"\1", word)
    if word in _NUMBERS:
        return _NUMBERS[word]
    for suffix in _SUFFIXES if word.endswith(_SUFFIXES) else ():
        kept = word[: -len(suffix)]
        if word.endswith(suffix) and len(kept) >= _LEAST_STEM and not word.endswith("ss"):
            word = kept + ("y" if suffix in ("ied", "ies") else "")
            break
    if len(word) > _LEAST_STEM and word[-1] == word[-2]:
        word = word[:-1]
    if len(word) > _LEAST_STEM and word.endswith("e"):
        word = word[:-1]
    return f"{word[:-1]}i" if word.endswith("y") and len(word) >= _LEAST_STEM else word
