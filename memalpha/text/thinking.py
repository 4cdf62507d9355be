"""Back from a model: ``content_of`` separates what it says from what it thinks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memalpha.text.encoding import more_ends, opening_of_answer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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


def decode_completion(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
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
    return content_of(opening_of_answer(tokenizer))[1] is not None
