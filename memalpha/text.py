"""Chat messages to token ids, so that text from data can never become a special token.

The chat template is rendered once with placeholders; its own parts are tokenised with special tokens, the texts put in their place
without (``<|im_end|>`` inside a chunk is a few ordinary tokens). Parts are tokenised apart and joined, so the boundary between
what the rollouts of a step share and what is each one's own is exact.

Tokenizers also know added tokens that are not called special and yet carry structure (``<tool_call>``, ``<think>``): text from data
gives none of those either. Added tokens of white space alone are ordinary text.

Templates that can switch thinking off (Qwen3) are told to, as in the published system: a completion is the calls alone.

Keeps text from data inside its place in a prompt: fences it cannot close, a line it cannot leave, JSON it cannot end.

What always holds: ``quote`` leaves no ``<`` before the name of a fence, ``one_line`` no line break, ``quoted_json`` no quotation
mark that ends a string; also after a tokenizer's normalisation (NFKC, case, invisible characters left out). Ordinary text is
returned as it is.

It does not cover what a text says: a model may obey it all the same, which is measured and not prevented
(``memalpha.evaluation.poisoning``). Special tokens are the business of ``memalpha.text``.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from memalpha.errors import InputError
from memalpha.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
import json
import unicodedata

_TOKENIZING = threading.Lock()  # a tokenizer keeps the treatment of special tokens as its own state between threads
_KEPT = 16_384
"""Characters of the longest text whose tokens are kept after counting."""
_SLOT = "\u27e6slot:{}\u27e7"
_SLOT_PATTERN = re.compile(_SLOT.format(r"(\w+)"))


class PromptEncoder:
    """Tokenises one fixed chat layout with changing texts in it.

    Args:
        tokenizer: A tokenizer with a chat template.
        messages: The layout: chat messages whose contents hold slots written ``slot(name)``.
        tools: Tool schemas for a chat template that takes them.

    Raises:
        InputError: If the tokenizer has no chat template, or the template drops a slot.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: list[dict[str, Any]] | None = None
    ) -> None:
        self.tokenizer = tokenizer
        *parts, tail = _SLOT_PATTERN.split(render_chat(tokenizer, messages, tools))  # text, name, text, name, ..., text
        self._layout = [(name, self._trusted(before)) for before, name in zip(parts[::2], parts[1::2], strict=True)]
        self._tail = self._trusted(tail)
        added = {i: str(token) for i, token in tokenizer.added_tokens_decoder.items() if str(token).strip()}
        self._added = frozenset(added)
        self._marks = re.compile("|".join(re.escape(mark) for mark in sorted(added.values(), key=len, reverse=True)) or r"(?!)")
        self.untrusted = lru_cache(maxsize=4096)(self._untrusted)
        wanted = {name for message in messages for name in slots(str(message["content"]))}
        if missing := wanted - {name for name, _ in self._layout}:
            raise InputError(
                f"the chat template drops {sorted(missing)} of the prompt",
                expected="a template that renders the content of system and user messages",
                fix="set tokenizer.chat_template",
            )

    def _trusted(self, text: str) -> list[int]:
        with _TOKENIZING:
            return list(self.tokenizer(text, add_special_tokens=False).input_ids) if text else []

    def _untrusted(self, text: str) -> tuple[int, ...]:
        """Token ids of a text from data, none of them an added token; a mark of one is cut after its first character."""
        ids = self._plain(text)
        if self._added.isdisjoint(ids):
            return ids
        cuts = [0, *(found.start() + 1 for found in self._marks.finditer(text)), len(text)]
        pieces = [self._plain(text[start:end]) for start, end in pairwise(cuts)]
        if self._added.isdisjoint(chain.from_iterable(pieces)):
            return tuple(chain.from_iterable(pieces))
        return tuple(chain.from_iterable(self._plain(char) for char in text))  # a mark that only normalising makes one

    def _plain(self, text: str) -> tuple[int, ...]:
        with _TOKENIZING:
            return tuple(self.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids) if text else ()

    def encode(self, texts: Mapping[str, str], shared: str) -> tuple[tuple[int, ...], int]:
        """Return the token ids with ``texts`` in their slots, and how many of them end where the slot after ``shared`` begins.

        Args:
            texts: Text of every slot.
            shared: Name of the last slot whose text all rollouts of a step have in common; another slot must follow it.
        """
        ids: list[int] = []
        boundary, passed = 0, False
        for name, before in self._layout:
            ids += before
            if passed:
                boundary, passed = len(ids), False
            ids += self.untrusted(texts[name])
            passed = passed or name == shared
        return tuple(ids + self._tail), boundary

    def count(self, text: str) -> int:
        """Number of tokens of a text from data; a long text is not kept for the next time."""
        return len(self.untrusted(text) if len(text) <= _KEPT else self._untrusted(text))


def slot(name: str) -> str:
    """Return the mark that stands for a text in a layout."""
    return _SLOT.format(name)


def slots(text: str) -> list[str]:
    """Return the names of the slots in a text, in order."""
    return _SLOT_PATTERN.findall(text)


def render_chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: list[dict[str, Any]] | None = None) -> str:
    """Render messages through the tokenizer's chat template, ready for the assistant's turn.

    Raises:
        InputError: If the tokenizer has no chat template.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            f"the tokenizer of {tokenizer.name_or_path!r} has no chat template",
            expected="an instruction-tuned model",
            fix="use one, or set tokenizer.chat_template and save the tokenizer",
        )
    rendered = tokenizer.apply_chat_template(
        [dict(message) for message in messages], tools=tools, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    return str(rendered)


def chat_ids(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> tuple[int, ...]:
    """Return the token ids of a chat, ready for the assistant's turn, with every message's content as text from data.

    Raises:
        InputError: If the tokenizer has no chat template, or the template drops a message.
    """
    texts = {f"message_{i}": str(message["content"]) for i, message in enumerate(messages)}
    layout = [{**message, "content": slot(name)} for name, message in zip(texts, messages, strict=True)]
    return PromptEncoder(tokenizer, layout).encode(texts, shared="")[0]


def takes_tools(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the chat template announces tools given as ``tools=``."""
    probe = {
        "type": "function",
        "function": {"name": "probe_tool_7f3a", "description": "", "parameters": {"type": "object", "properties": {}}},
    }
    return "probe_tool_7f3a" in render_chat(tokenizer, [{"role": "user", "content": "x"}], [probe])


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
