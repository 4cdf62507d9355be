"""Texts that are not trusted: ``quote``, ``one_line`` and ``quoted_json`` keep a text inside its
fence, line or JSON string, also if the tokenizer normalises; ``break_marks`` is for a server that
tokenises by itself.
"""

import json
import re
import unicodedata


def is_text(text: str) -> bool:
    """Whether a string is Unicode text without lone surrogates, which tokenizers reject."""
    return re.search("[\ud800-\udfff]", text) is None


_FENCES = ("chunk", "/chunk", "memory", "/memory")
_OPENING = re.compile("[<\ufe64\uff1c]")  # NFKC maps these to "<"
_SKIPPED = frozenset({"Cc", "Cf", "Mn", "Me"})  # invisible characters
_LINE_BREAK = re.compile("\r\n|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# NFKC: a quotation mark, backslashes
_JSON_ESCAPES = str.maketrans({char: f"\\u{ord(char):04x}" for char in "\uff02\uff3c\ufe68"})


def quote(text: str) -> str:
    """Write ``<`` before a fence's name as ``&lt;``: no text can close or open a fence."""
    return _OPENING.sub(_quote_opening, text)


def _quote_opening(opening: re.Match[str]) -> str:
    return "&lt;" if _names_a_fence(opening.string, opening.end()) else opening[0]


def _names_a_fence(text: str, start: int) -> bool:
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


def strip_marks(text: str) -> str:
    """Return a text as a normalising tokenizer might read it.

    NFKC, case-folded, without invisible characters.
    """
    if text.isascii() and text.isprintable():
        return text.lower()
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(char for char in folded if unicodedata.category(char) not in _SKIPPED)


def one_line(text: str) -> str:
    r"""Write every line break as the two characters ``\n``."""
    return _LINE_BREAK.sub(r"\\n", text)


def quoted_json(data: object) -> str:
    """Return data as JSON on one line, not limited to ASCII, safe under NFKC normalisation."""
    return json.dumps(data, ensure_ascii=False).translate(_JSON_ESCAPES)


# ------------------------------------------------------------------------------------------------
# marks of chat templates, in texts for a server that tokenises by itself
_NAMED_MARKS = (
    "s",
    "/s",
    "bos",
    "eos",
    "pad",
    "unk",
    "mask",
    "sop",
    "eop",
    "start_of_turn",
    "end_of_turn",
    "start_of_image",
    "end_of_image",
    "BOS_TOKEN",
    "EOS_TOKEN",
    "PAD_TOKEN",
    "end_of_utterance",
)
_BRACKETED_MARKS = (
    "INST",
    "/INST",
    "SYSTEM_PROMPT",
    "/SYSTEM_PROMPT",
    "AVAILABLE_TOOLS",
    "/AVAILABLE_TOOLS",
    "TOOL_CALLS",
    "TOOL_RESULTS",
    "/TOOL_RESULTS",
    "TOOL_CONTENT",
    "CALL_ID",
    "ARGS",
    "THINK",
    "/THINK",
    "IMG",
    "IMG_BREAK",
    "IMG_END",
    "PREFIX",
    "MIDDLE",
    "SUFFIX",
    "BOS",
    "EOS",
    "EOT",
    "PAD",
    "UNK",
    "gMASK",
    "sMASK",
)

_MARK = re.compile(
    r"<(?=[|｜][^\s|｜<>]{1,64}[|｜]>)"  # <|im_start|>, <|eot_id|>, <|channel|>; with wide bars too
    r"|\[(?=\|[^\s|\[\]]{1,64}\|\])"  # [|assistant|]
    rf"|<(?=(?:{'|'.join(_NAMED_MARKS)}|unused\d+|extra_id_\d+)>)"  # <s>, <end_of_turn>
    rf"|\[(?=(?:{'|'.join(_BRACKETED_MARKS)})\])"  # [INST]
    r"|<(?=</?SYS>>)"  # <<SYS>>
)


def break_marks(text: str) -> str:
    """Put a space into every mark that a server may read as a special token; ``<think>`` and
    ``<tool_call>`` stay.
    """
    return _MARK.sub(lambda found: f"{found[0]} ", text)
