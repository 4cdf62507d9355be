"""Messages of a conversation, and the dated chunks that an agent reads of them.

A line of a chunk is ``Speaker: text``; who speaks decides how much it counts. What the user said
ranks above what an assistant said (``retrieval.archive``). Instructions to a model (system and
developer messages) and output of tools are not said by anybody, and are never read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from memalpha.errors import InputError
from memalpha.speakers import label_name, quoted_labels
from memalpha.text.quoting import is_text
from memalpha.text.times import check_time
from memalpha.types import Chunk, Span, TokenCounter
from memalpha.units import cut_text

USER = "user"
ASSISTANT = "assistant"
UNREAD = frozenset({"system", "developer", "tool", "function"})
"""Roles of messages that nobody said."""
_FORM = '{"role": "user" or "assistant", "content": text, "name": optional, "time": optional}'


@dataclass(frozen=True, slots=True)
class Utterance:
    """The text of one person, or of an assistant, in one message."""

    role: str  # USER, ASSISTANT, or another word for who speaks
    text: str
    speaker: str = ""  # name that is shown; empty: the role, capitalised
    time: str | None = None  # ISO 8601
    id: str = ""  # the same in every export of the conversation; empty if there is none

    @property
    def label(self) -> str:
        """How its speaker is shown, on one line and without a colon: an assistant by its role,
        which ranks it, and nobody else by that.
        """
        name = "" if self.role == ASSISTANT else label_name(" ".join(self.speaker.split()))
        return self.role.capitalize() if name.lower() in ("", ASSISTANT) else name

    @property
    def quoted(self) -> str:
        """The text as it stands behind the label: no line of it is another label."""
        return quoted_labels(self.text)

    @property
    def labelled(self) -> tuple[str, list[Span]]:
        """The quoted text after its label, and the place of the label."""
        label = self.label
        return f"{label}: {self.quoted}", [Span(0, len(label) + 1)]


def read_messages(messages: Sequence[Any], time: str | None = None) -> list[Utterance]:
    """Return what users and assistants said in chat messages of OpenAI's form, in order.

    ``time`` holds for messages without their own. Parts of a content that are no text (images,
    calls) are not read. InputError for what is no such message.
    """
    return [
        utterance
        for number, message in enumerate(messages)
        for utterance in _read_message(message, f"message {number}", time)
    ]


def _read_message(message: Any, where: str, time: str | None) -> Iterator[Utterance]:
    fields = message if isinstance(message, Mapping) else {}
    role = fields.get("role")
    if role in UNREAD:
        return
    text = text_of(fields.get("content"))
    if role not in (USER, ASSISTANT) or text is None or not is_text(text):
        raise InputError(f"{where} is {ascii(message)[:80]}", expected=_FORM)
    when = fields.get("time") or time
    if text.strip():
        yield Utterance(
            role,
            text.strip(),
            str(fields.get("name") or ""),
            when and check_time(when, f"the time of {where}"),
            str(fields.get("id") or ""),
        )


def text_of(content: Any) -> str | None:
    """Return the text of a message's content; None if it is of no known form."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence) or not all(isinstance(each, Mapping) for each in content):
        return None
    texts = [each.get("text") for each in content]
    return "\n".join(text for text in texts if isinstance(text, str))


class JoinedChunk(NamedTuple):
    """A chunk, the pieces that it is made of (number of the utterance, number of the piece in it,
    and text), and the places of their labels.
    """

    chunk: Chunk
    pieces: tuple[tuple[int, int, str], ...]
    labels: tuple[Span, ...]


def joined_messages(
    utterances: Iterable[Utterance], limit: int, count: TokenCounter
) -> Iterator[JoinedChunk]:
    """Yield chunks of at most ``limit`` tokens, in order, with the time of what they begin with.

    Messages of one day are joined while they fit; a longer one is cut, each piece with its speaker.
    """
    held: list[tuple[int, int, str]] = []
    places: list[Span] = []
    joined = ""
    time: str | None = None
    for number, utterance in enumerate(utterances):
        text, labels = utterance.labelled
        for place, piece in enumerate(cut_text(text, limit, count, labels)):
            longer = f"{joined}\n{piece}"
            same_day = (time or "")[:10] == (utterance.time or "")[:10]
            if held and not (same_day and count(longer) <= limit):
                yield JoinedChunk(Chunk(joined, time), tuple(held), tuple(places))
                held = []
                places = []
            start = len(joined) + 1 if held else 0
            joined = longer if held else piece
            time = time if held else utterance.time
            held.append((number, place, piece))
            (label,) = labels
            shown = label.end if piece.startswith(text[slice(*label)]) else 0
            places.append(Span(start, start + shown))
    if held:
        yield JoinedChunk(Chunk(joined, time), tuple(held), tuple(places))
