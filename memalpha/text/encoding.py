"""From chat messages to token ids.

Text from data never becomes a special token, nor an added token with structure (``<tool_call>``). A
template is rendered once with slots; its parts and the texts are tokenised separately, so the end
of the prefix that rollouts share is exact.
"""

from __future__ import annotations

import json
import os.path
import re
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from memalpha.errors import InputError
from memalpha.sandbox import Rendering, render_in_sandbox
from memalpha.types import JsonObject, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TOKENIZING = threading.Lock()  # tokenizers keep split_special_tokens as shared state
_KEPT = 16_384  # texts up to this many characters are cached by ``count``
_SLOT = "\u27e6slot:{}\u27e7"
_SLOT_PATTERN = re.compile(_SLOT.format(r"(\w+)"))


class PromptEncoder:
    """Tokenises a chat layout, whose contents hold ``slot(name)``, with changing texts.

    InputError if the template drops one.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        messages: Sequence[Message],
        tools: list[JsonObject] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        # text, name, text, name, ..., text
        *parts, tail = _SLOT_PATTERN.split(render_chat(tokenizer, messages, tools))
        slots = zip(parts[1::2], parts[::2], strict=True)
        self._layout = [(name, self._ids(before)) for name, before in slots]
        self._tail = self._ids(tail)
        tokens = {i: str(token) for i, token in tokenizer.added_tokens_decoder.items()}
        added = {i: token for i, token in tokens.items() if token.strip()}
        self._added = frozenset(added)
        longest_first = sorted(added.values(), key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self.untrusted = lru_cache(maxsize=4096)(self._untrusted)
        contents = "".join(str(message["content"]) for message in messages)
        missing = sorted(set(_SLOT_PATTERN.findall(contents)) - {name for name, _ in self._layout})
        if missing:
            raise InputError(
                f"the chat template drops {missing} of the prompt",
                expected="a template that renders the content of system and user messages",
            )

    def _ids(self, text: str) -> tuple[int, ...]:
        if not text:
            return ()
        with _TOKENIZING:
            return tuple(self.tokenizer(text, add_special_tokens=False).input_ids)

    def _untrusted(self, text: str) -> tuple[int, ...]:
        ids = plain_ids(self.tokenizer, text)
        if self._added.isdisjoint(ids):
            return ids
        cuts = [0, *(mark.start() + 1 for mark in self._marks.finditer(text)), len(text)]
        pieces = [plain_ids(self.tokenizer, text[start:end]) for start, end in pairwise(cuts)]
        if not self._added.isdisjoint(chain.from_iterable(pieces)):
            # a mark that appears only after normalisation
            pieces = [plain_ids(self.tokenizer, character) for character in text]
        return tuple(chain.from_iterable(pieces))

    @property
    def opening(self) -> tuple[int, ...]:
        """Ids before the first text: those of the layout alone."""
        return self._layout[0][1]

    def encode(self, texts: Mapping[str, str], shared: str) -> tuple[tuple[int, ...], int]:
        """Return the ids, and how many come before the slot after ``shared``.

        It is the last that all rollouts have in common.
        """
        ids: list[int] = []
        boundary = 0
        last = ""
        for name, before in self._layout:
            ids += before
            if last and last == shared:
                boundary = len(ids)
            ids += self.untrusted(texts[name])
            last = name
        return (*ids, *self._tail), boundary

    def count(self, text: str) -> int:
        """Number of tokens of a text from data."""
        return len(self.untrusted(text) if len(text) <= _KEPT else self._untrusted(text))


def slot(name: str) -> str:
    """Return the placeholder of a text in a layout."""
    return _SLOT.format(name)


def render_chat(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: list[JsonObject] | None = None,
) -> str:
    """Render messages with the chat template, ready for the assistant's turn.

    Where the template has no system role (it fails, or drops the text), the system message stands
    before the user's, see ``without_system``. Its today is 2024-07-26, always. InputError if there
    is no template, or it fails, takes another in, or more than a few seconds or too much memory.
    """
    ways = [list(messages)]
    if messages[0]["role"] == "system" and len(messages) > 1:
        ways.append(without_system(messages))
    return _first_with(_render(tokenizer, ways, tools), str(messages[0]["content"]), tokenizer)


def _first_with(
    outcomes: Sequence[Rendering], text: str, tokenizer: PreTrainedTokenizerBase
) -> str:
    """Return the first outcome that holds a text; InputError if none does."""
    for rendered in outcomes:
        if not rendered.error and text.strip() in rendered.text:
            return rendered.text
    who = f"the chat template of {tokenizer.name_or_path!r}"
    error = outcomes[-1].error
    raise InputError(
        f"{who} {f'fails: {error}' if error else 'drops or changes the first message'}",
        expected="a template that renders the content of system and user messages "
        "without other files and fast",
        fix="save another template as chat_template.jinja in the model's folder",
    )


def without_system(messages: Sequence[Message]) -> list[Message]:
    """Return a chat with what its system message says before the text of the message after it."""
    system, first, *others = messages
    return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *others]


def _render(
    tokenizer: PreTrainedTokenizerBase,
    chats: Sequence[Sequence[Message]],
    tools: list[JsonObject] | None = None,
) -> tuple[Rendering, ...]:
    """Render chats with the chat template, ready for the assistant's turn if it has not come."""
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            f"the tokenizer of {tokenizer.name_or_path!r} has no chat template",
            expected="an instruction-tuned model",
            fix="set tokenizer.chat_template and save the tokenizer",
        )
    if not hasattr(tokenizer, "get_chat_template"):  # it stands for a server's
        return tuple(Rendering(str(tokenizer.apply_chat_template(chat)), "") for chat in chats)
    try:
        template = tokenizer.get_chat_template(tools=tools)
    except ValueError as error:
        return (Rendering("", str(error)),) * len(chats)
    if not isinstance(template, str):
        return (Rendering("", f"it is no text: {template!r:.60}"),) * len(chats)
    common = {
        **tokenizer.special_tokens_map,
        "tools": tools,
        "documents": None,
        "enable_thinking": False,
    }
    variables = []
    for chat in chats:
        asks = chat[-1]["role"] != "assistant"
        own = {"messages": [dict(message) for message in chat], "add_generation_prompt": asks}
        variables.append(json.dumps({**common, **own}))
    return render_in_sandbox(template, *variables)


def turn_end(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the id that the chat template writes after what an assistant said.

    The tokenizer's end token if the template ends a turn with none, or there is no template.
    """
    end: int | None = tokenizer.eos_token_id
    if not hasattr(tokenizer, "get_chat_template") or not tokenizer.chat_template:
        return end
    return _turn_end(tokenizer, str(tokenizer.chat_template), end)


@lru_cache(maxsize=8)
def _turn_end(tokenizer: PreTrainedTokenizerBase, template: str, end: int | None) -> int | None:
    """``turn_end`` of a tokenizer with this template and end token, asked once."""
    after = ""
    for rendered in _probes(tokenizer)[2:]:
        after = after or rendered.text.partition(slot("said"))[2].lstrip()
    tokens = tokenizer.added_tokens_decoder.items()
    ends = [(len(str(token)), i) for i, token in tokens if after.startswith(str(token))]
    return max(ends)[1] if ends else end


def more_ends(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return what ends a turn beside the tokenizer's end token, which engines know."""
    end = turn_end(tokenizer)
    return [] if end is None or end == tokenizer.eos_token_id else [end]


def _probes(tokenizer: PreTrainedTokenizerBase) -> tuple[Rendering, ...]:
    """A chat with a system message and without, then both with what an assistant said."""
    asks = [_SYSTEM, _user(slot("asked"))]
    alone = without_system(asks)
    said = {"role": "assistant", "content": slot("said")}
    return _render(tokenizer, [asks, alone, [*asks, said], [*alone, said]])


def opening_of_answer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return what the chat template writes behind the user's message, ready for an answer."""
    prompt = _first_with(_probes(tokenizer)[:2], slot("system"), tokenizer)
    return prompt.rpartition(slot("asked"))[2]


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


_SYSTEM: Message = {"role": "system", "content": slot("system")}


def in_common(sequences: Sequence[tuple[int, ...]]) -> int:
    """Return how many leading ids all sequences (at least one) have in common."""
    return len(os.path.commonprefix(sequences))  # noqa: RUF071


def chat_ids(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> tuple[int, ...]:
    """Return the ids of a chat, ready for the assistant; contents count as data.

    InputError if the template drops a message.
    """
    texts = {f"message_{i}": str(message["content"]) for i, message in enumerate(messages)}
    layout = [
        {**message, "content": slot(name)} for name, message in zip(texts, messages, strict=True)
    ]
    return PromptEncoder(tokenizer, layout).encode(texts, shared="")[0]


def plain_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    """Return the ids of a text alone, none of them special."""
    with _TOKENIZING:
        ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids
    return tuple(ids)


def takes_tools(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the chat template shows the tools given as ``tools=``."""
    name = "probe_tool_7f3a"
    tool = {
        "type": "function",
        "function": {
            "name": name,
            "description": "",
            "parameters": {"type": "object", "properties": {}},
        },
    }
    try:
        return name in render_chat(tokenizer, [_SYSTEM, _user("x")], [tool])
    except InputError:  # it is one without tools, or there is none that works
        return False
