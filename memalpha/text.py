"""Texts: from chat messages to token ids, quoted where they are not trusted, and times in them.

Text from data never becomes a special token, nor an added token with structure (``<tool_call>``). A
template is rendered once with slots; its parts and the texts are tokenised separately, so the end
of the prefix that rollouts share is exact. ``quote``, ``one_line``
and ``quoted_json`` keep a text inside its fence, line or JSON string, also if the tokenizer
normalises; ``break_marks`` is for a server that tokenises by itself. Back from a model,
``content_of`` separates what it says from what it thinks.
"""

from __future__ import annotations

import json
import os.path
import re
import threading
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from memalpha.errors import InputError
from memalpha.sandbox import Rendered, render_in_sandbox
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
    return _whole(_rendered(tokenizer, ways, tools), str(messages[0]["content"]), tokenizer)


def _whole(outcomes: Sequence[Rendered], text: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the first outcome that holds a text; InputError if none does."""
    for rendered in outcomes:
        if not rendered.error and text.strip() in rendered.text:
            return rendered.text
    who = f"the chat template of {tokenizer.name_or_path!r}"
    error = outcomes[-1].error
    raise InputError(
        f"{who} {f'fails: {error}' if error else 'drops or changes the first message'}",
        expected="a template that renders the content of system and user messages, by itself and "
        "at once",
        fix="save another one as chat_template.jinja in the model's folder",
    )


def without_system(messages: Sequence[Message]) -> list[Message]:
    """Return a chat with what its system message says before the text of the message after it."""
    system, first, *others = messages
    return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *others]


def _rendered(
    tokenizer: PreTrainedTokenizerBase,
    chats: Sequence[Sequence[Message]],
    tools: list[JsonObject] | None = None,
) -> tuple[Rendered, ...]:
    """Render chats with the chat template, ready for the assistant's turn if it has not come."""
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            f"the tokenizer of {tokenizer.name_or_path!r} has no chat template",
            expected="an instruction-tuned model",
            fix="set tokenizer.chat_template and save it",
        )
    if not hasattr(tokenizer, "get_chat_template"):  # it stands for a server's
        return tuple(Rendered(str(tokenizer.apply_chat_template(chat)), "") for chat in chats)
    try:
        template = tokenizer.get_chat_template(tools=tools)
    except ValueError as error:
        return (Rendered("", str(error)),) * len(chats)
    if not isinstance(template, str):
        return (Rendered("", f"it is no text: {template!r:.60}"),) * len(chats)
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


def _probes(tokenizer: PreTrainedTokenizerBase) -> tuple[Rendered, ...]:
    """A chat with a system message and without, then both with what an assistant said."""
    asks = [_SYSTEM, _user(slot("asked"))]
    alone = without_system(asks)
    said = {"role": "assistant", "content": slot("said")}
    return _rendered(tokenizer, [asks, alone, [*asks, said], [*alone, said]])


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
    return _OPENING.sub(_quoted, text)


def _quoted(opening: re.Match[str]) -> str:
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


def unmarked(text: str) -> str:
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


# ------------------------------------------------------------------------------------------------
# thinking
THINK = "<think>"  # begins a completion whose prompt has opened the thinking
_TAG = r"(?:[\w-]{1,20}[:_])?(?:think|thinking|thought|reasoning)(?:[:\s][^<>\n]{0,40})?"
# opening and closing, of Qwen3, DeepSeek-R1 and most others; Magistral; Kimi; Command A; Apertus;
# OpenThinker; PLaMo
_MARKS = (
    (rf"<{_TAG}>", rf"</{_TAG}>"),
    (r"\[THINK\]", r"\[/THINK\]"),
    ("◁think▷", "◁/think▷"),
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),
    (r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),
    (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),
    (r"<\|plamo:begin_think:plamo\|>", r"<\|plamo:end_think:plamo\|>"),
    (r"<\|channel>thought", r"<channel\|>"),  # Gemma 4
    (
        r"<\|channel\|>analysis[^<\n]{0,40}<\|message\|>",
        r"<\|channel\|>final[^<\n]{0,40}<\|message\|>",
    ),  # gpt-oss
)
_OPEN = "|".join(mark for mark, _ in _MARKS)
_CLOSE = rf"(?:{'|'.join(mark for _, mark in _MARKS)})(?:\s*<(?:answer|response)>)?"
_PARTS = (  # marks in calls and in quotation are data
    rf"<tool_call>\s*[\[{{`<](?:(?!<tool_call>).)*?[\]}}`>]\s*</tool_call>|`(?:{_OPEN}|{_CLOSE})`"
    rf"|(?P<thought>(?:{_OPEN}).*?(?P<end>{_CLOSE}|\Z))|(?P<close>{_CLOSE})"
    r"|(?P<wrap></(?:answer|response)>\s*\Z)"
)
_IN_TEXT = re.compile(_PARTS, re.DOTALL | re.IGNORECASE)
# operations are data, too
_IN_LINES = re.compile(rf"(?m:^)[ \t]*[+=*>?-]\w*[ \t][^\n]*|{_PARTS}", re.DOTALL | re.IGNORECASE)


def content_of(text: str, *, in_place: bool = False, lines: bool = False) -> tuple[str, int | None]:
    """Return a completion without its thinking, and where thinking begins that never ends.

    Without any, the text as it is. A closing mark without an opening one ends thinking that the
    prompt began: all before it is thinking. Thinking without an end reaches to the end.
    ``in_place`` blanks it, so that offsets stay; ``lines``: the text has a compact operation a
    line.
    """
    pieces: list[str] = []
    end = 0
    open_at = None
    for mark in (_IN_LINES if lines else _IN_TEXT).finditer(text):
        kind = mark.lastgroup
        if kind is None or (kind == "wrap" and not end):
            continue
        start = end if kind == "close" else mark.start()
        pieces.append(text[end:start])
        if in_place:
            pieces.append(re.sub(r"\S", " ", text[start : mark.end()]))
        if kind == "thought" and not mark["end"]:
            open_at = start
        end = mark.end()
    return "".join([*pieces, text[end:]]), open_at


_OF_THINKING = re.compile("think|thought|channel|message|inner_", re.IGNORECASE)


def decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Return the text of a completion without special tokens, those that mark thinking aside, and
    without what ends a turn.
    """
    if ids and ids[-1] in more_ends(tokenizer):
        ids = ids[:-1]
    added = tokenizer.added_tokens_decoder.items()
    special = {i: str(token) for i, token in added if token.special}
    marks = {i for i, name in special.items() if _OF_THINKING.search(name)}
    if marks.isdisjoint(ids):
        return str(tokenizer.decode(ids, skip_special_tokens=True))
    shown = [token for token in ids if token in marks or token not in special]
    return str(tokenizer.decode(shown, skip_special_tokens=False))


def opens_thinking(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the chat template opens the thinking in the prompt."""
    prompt = _whole(_probes(tokenizer)[:2], slot("system"), tokenizer)
    return content_of(prompt.rpartition(slot("asked"))[2])[1] is not None


# ------------------------------------------------------------------------------------------------
# times
# ISO 8601, checked where they enter; other forms of data sets are converted by the loaders.

ISO_8601 = "ISO 8601, such as 2024-03-05 or 2024-03-05T14:30:00+01:00"
_DAY = r"[0-9]{4}(?:-?[0-9]{2}-?[0-9]{2}|-?W[0-9]{2}(?:-?[0-9])?)"
# at most 35 characters, so that a time stores no facts
_ISO = re.compile(rf"{_DAY}(?:[Tt ][0-9:.,Z+-]{{2,24}})?")
_REDUCED = re.compile(r"[0-9]{4}(?:-[0-9]{2})?")  # a year, or a year and a month
_DAY_DIGITS = len("2024-03-05")
_DAY_AHEAD = timedelta(days=1)
_WEEKDAY = re.compile(r"\s*\([A-Za-z]{2,9}\)\s*")
_FORMS = (  # LongMemEval, LoCoMo, PerLTQA, BEAM
    "%Y/%m/%d %H:%M",
    "%I:%M %p on %d %B, %Y",
    "%I:%M %p on %d %B %Y",
    "%Y/%m/%d",
    "%B %d, %Y",
    "%d %B, %Y",
    "%d %B %Y",
    "%B-%d-%Y",
)


@lru_cache(maxsize=4096)
def moment(text: str) -> datetime | None:
    """Return the begin of an ISO 8601 time (UTC if it names no offset), or None if it is none.

    Read are a date, a week or a day of a week, each with or without a clock time, and a month
    (``2024-03``) or a year (``2024``).
    """
    whole = f"{text}-01-01"[:10] if _REDUCED.fullmatch(text) else text
    try:
        read = datetime.fromisoformat(whole)
    except ValueError:
        return None
    zoned = read if read.tzinfo else read.replace(tzinfo=UTC)
    # fromisoformat takes any sign before the clock time
    return zoned if _ISO.fullmatch(whole) else None


def check_time(time: Any, what: str = "the time") -> str:
    """Return a time in ISO 8601; InputError, naming ``what``, if ``moment`` does not read it."""
    if not isinstance(time, str) or moment(time) is None:
        raise InputError(
            f"{what} is {time!r:.60}", expected=ISO_8601, fix="write it so, or leave it out"
        )
    return time


def is_to_come(time: str | None, now: datetime) -> bool:
    """Whether a time is more than a day after the clock: zones differ, and clocks do."""
    read = moment(time or "")
    return read is not None and read - now > _DAY_AHEAD


def check_said(time: str | None, now: datetime, what: str = "the time") -> None:
    """Raise InputError, naming ``what``, for a time when nothing can have been said yet: it would
    be newer than whatever is said until then.
    """
    if is_to_come(time, now):
        raise InputError(
            f"{what} is {time!r:.60}, and it is {now.isoformat(timespec='minutes')}",
            expected="a time that has come, or is less than a day away",
            fix="write when it was said, or leave it out",
        )


def to_iso(written: str) -> str | None:
    """Return a time as a data set writes it in ISO 8601, to the minute.

    None if its form is unknown.
    """
    text = " ".join(_WEEKDAY.sub(" ", written).split())
    if moment(text):
        has_clock = re.search("[Tt ]", text)
        return datetime.fromisoformat(text).isoformat(timespec="minutes") if has_clock else text
    for form in _FORMS:
        try:
            read = datetime.strptime(text, form)
        except ValueError:
            continue
        return read.isoformat(timespec="minutes") if "%M" in form else read.date().isoformat()
    return None


def later(first: str | None, second: str | None) -> bool | None:
    """Return whether the first time is after the second; None if one is no time or they are equal.

    The coarser of the two decides how far they are compared: 2024-03-05 equals 2024-03-05T14:30.
    """
    one = moment(first or "")
    other = moment(second or "")
    if one is None or other is None:
        return None
    digits = min(_digits(first or ""), _digits(second or ""))
    if digits > _DAY_DIGITS:
        return None if one == other else one > other
    days = [time.date().isoformat()[:digits] for time in (one, other)]
    return None if days[0] == days[1] else days[0] > days[1]


def _digits(time: str) -> int:
    """Characters of an ISO 8601 text that a time determines.

    More than a day's where it names a clock time.
    """
    return len(time) if _REDUCED.fullmatch(time) or len(time) > _DAY_DIGITS else _DAY_DIGITS
