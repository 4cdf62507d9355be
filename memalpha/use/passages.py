"""What was said that fits a question, as a person reads it: whole turns with what stands around
them, their day, their source, and whether something newer is known.

A search finds lines, which are cut to be found. Here the lines of a turn are put together again. A
short turn has the turns before and after it, and one that only asks has what came after it. Lines
of another text are of the same conversation if their sources are, up to the last ``/``, and their
days: an import names each message ``PROGRAM/CONVERSATION/MESSAGE``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from memalpha.memory.memory import LINE_ID
from memalpha.memory.schema import ARCHIVE
from memalpha.retrieval import RetrievalConfig
from memalpha.retrieval.archive import only_asks
from memalpha.retrieval.lexical import tokenize, word_cosines
from memalpha.retrieval.ranking import RankedSearch, ReadableMemory
from memalpha.speakers import speaker_of, split_speaker
from memalpha.store.journal import Event
from memalpha.types import Entry, Hit, Retriever, Span
from memalpha.units import sentences

SHOWN = 3  # passages of an answer
FOUND = 10  # entries and lines, each, that they are made of, at least
_SHORT = 240  # characters of a turn that is shown with the turns around it
_LONGEST = 600  # characters of a passage,
_CONTEXT = 300  # and of a turn before or after it, unless one line has more
_AROUND = 16  # operations before and after a line among which its neighbours are looked for
# the least nearness of the best hit of a question that the memory answers, by embedder; measured by
# scripts/measure_unknown.py, as docs/results.md tells. Of other searches nothing was measured:
# there the memory does not know what nothing is found for.
LEAST_NEARNESS = {"minilm": 0.27}
READER_NEARNESS = {"minilm": 0.36}  # the least of a question that a reader answers

EventsOf = Callable[[Sequence[int]], Mapping[int, Event]]
"""Returns events by their numbers."""


@dataclass(frozen=True, slots=True)
class Passage:
    """An entry, or the turn of a line, that fits a question.

    ``fits`` is the sentence of ``text`` that fits best; ``before`` and ``after`` are empty where
    there is nothing, or ``text`` says enough. ``time`` is when it was said, else the day it was
    written. ``source`` is the name of the text that it is from (``MemoryAgent.add``), ``chunk`` the
    number of that text. ``newer`` is the newer statement among what was found that resembles it.
    """

    entry: Entry
    score: float
    text: str
    fits: Span
    before: str = ""
    after: str = ""
    time: str = ""
    source: str = ""
    chunk: int | None = None
    newer: Entry | None = None


def nearness(retriever: Retriever, question: str, hits: Sequence[Hit]) -> float:
    """Return the nearness of the best result to the question: the cosine of the entry or of its
    fitting sentence, whichever is greater. It is -inf without a result, and inf, which always
    suffices, if the search has no embeddings.
    """
    if not hits:
        return -math.inf
    best = hits[0].entry
    texts = list(dict.fromkeys((best.content, _fitting(best, question))))
    cosines = retriever.nearness(question, texts) if isinstance(retriever, RankedSearch) else []
    return max(cosines, default=math.inf)


def is_known(
    config: RetrievalConfig, near: float, least: Mapping[str, float] = LEAST_NEARNESS
) -> bool:
    """Whether the ``nearness`` of the results says that they may hold the answer; ``least`` gives
    the limit by embedder.
    """
    return near >= least.get(config.embedder, -math.inf) and near > -math.inf


def says_all(answer: str, texts: Iterable[str]) -> bool:
    """Whether one of the texts has all words of an answer."""
    words = set(tokenize(answer))
    return any(words <= set(tokenize(text)) for text in texts)


def is_outdated(answer: str, passages: Iterable[Passage]) -> bool:
    """Whether each passage that says an answer has a newer one, which does not say it."""
    saying = [passage for passage in passages if says_all(answer, [passage.text])]
    newer = [passage.newer for passage in saying if passage.newer is not None]
    is_newer = 0 < len(saying) == len(newer)
    return is_newer and not says_all(answer, [entry.content for entry in newer])


def find_turns(
    memory: ReadableMemory,
    retriever: Retriever,
    question: str,
    hits: Sequence[Hit],
    events_of: EventsOf,
) -> tuple[Passage, ...]:
    """Return the best ``SHOWN`` passages among the results, best first, each newer statement right
    behind the older one; no line stands in two passages.
    """
    newer = _newer_of(retriever, question, hits)
    passages: list[Passage] = []
    shown: set[str] = set()
    for hit in _with_newer(hits, newer):
        said = [passage.entry.content for passage in passages]
        if len(passages) == SHOWN:
            break
        if hit.entry.id in shown or hit.entry.content in said:
            continue
        passage = _Turns(memory, hit.entry, events_of, shown).passage(question, hit.score)
        passages.append(replace(passage, newer=newer.get(hit.entry.id)))
    return tuple(passages)


def _newer_of(retriever: Retriever, question: str, hits: Sequence[Hit]) -> dict[str, Entry]:
    """What is newer than each hit that has a newer one, by id. Lines are compared by the sentences
    that fit the question: what else is said beside them hides that two resemble each other. A block
    is one text without a time, so nothing of it is newer.
    """
    if not isinstance(retriever, RankedSearch):
        return {}
    entries = {hit.entry.id: hit.entry for hit in hits}
    searched = [hit for hit in hits if hit.entry.section in retriever.sections]
    said = [Hit(_sentence_of(hit.entry, question), hit.score) for hit in searched]
    found = retriever.newer_of(question, [hit for hit in said if not only_asks(hit.entry)])
    return {key: entries[entry.id] for key, entry in found.items()}


def _with_newer(hits: Sequence[Hit], newer: Mapping[str, Entry]) -> list[Hit]:
    """The hits, best first, each with its newer one right behind it, unless that is before it."""
    by_id = {hit.entry.id: hit for hit in hits}
    ordered: dict[str, Hit] = {}
    for hit in hits:
        ordered.setdefault(hit.entry.id, hit)
        if hit.entry.id in newer:
            other = by_id[newer[hit.entry.id].id]
            ordered.setdefault(other.entry.id, other)
    return list(ordered.values())


class _Turns:
    """The turns around a line of the archive; an entry of a list is a turn of its own."""

    def __init__(
        self, memory: ReadableMemory, found: Entry, events_of: EventsOf, shown: set[str]
    ) -> None:
        self._found = found
        self._lines = {found.created: found}
        if found.section == ARCHIVE.name:
            numbers = range(found.created - _AROUND, found.created + _AROUND + 1)
            there = memory.several(f"{LINE_ID}{number}" for number in numbers)
            self._lines.update((line.created, line) for line in there)
        self._numbers = sorted(self._lines)
        self._events_of = events_of
        self._sources: dict[str, str] = {}
        self._shown = shown  # ids of lines that stand in a passage

    def passage(self, question: str, score: float) -> Passage:
        """Return the turn of the line with its context."""
        found = self._found
        turn = self._turn_of(found)
        text, fits = self._whole(turn, question)
        is_short = len(text) <= _SHORT and found.section == ARCHIVE.name
        asks = only_asks(replace(found, content=text))
        event = self._events_of([found.updated]).get(found.updated)
        return Passage(
            found,
            score,
            text,
            fits,
            self._context(turn[0], back=True) if is_short else "",
            self._context(turn[-1], back=False) if is_short or asks else "",
            found.timestamp or (event.time.date().isoformat() if event else ""),
            self._source(found),
            found.source_chunk,
        )

    def _source(self, line: Entry) -> str:
        if line.id not in self._sources:
            event = self._events_of([line.updated]).get(line.updated)
            self._sources[line.id] = event.origin.source if event and event.origin else ""
        return self._sources[line.id]

    def _turn_of(self, line: Entry) -> list[Entry]:
        """The lines of a turn, in order; those of a speaker that stand in a row in one text."""
        speaker = speaker_of(line.content)
        turn = [line]
        if line.section != ARCHIVE.name or not speaker:
            return turn
        for step in (-1, 1):
            number = line.created + step
            while number in self._lines and self._is_of(self._lines[number], line, speaker):
                turn.append(self._lines[number])
                number += step
        return sorted(turn, key=lambda each: each.created)

    def _is_of(self, line: Entry, other: Entry, speaker: str) -> bool:
        same_text = line.source_chunk == other.source_chunk
        return same_text and speaker_of(line.content) == speaker

    def _whole(self, turn: list[Entry], question: str) -> tuple[str, Span]:
        """The text of a turn, as much as has room around the line that was found, and its sentence
        that fits the question. ``turn`` keeps the lines that are in it.
        """
        place = turn.index(self._found)
        kept = [place]
        room = _LONGEST - len(self._found.content)
        for number in sorted(range(len(turn)), key=lambda number: abs(number - place))[1:]:
            beside = number in (kept[0] - 1, kept[-1] + 1) and turn[number].id not in self._shown
            if beside and len(turn[number].content) <= room:
                kept = sorted([*kept, number])
                room -= len(turn[number].content)
        cut = kept[0] > 0, kept[-1] + 1 < len(turn)
        turn[:] = turn[kept[0] : kept[-1] + 1]
        self._shown.update(line.id for line in turn)
        text = _text_of(turn)
        head = _text_of(turn[: place - kept[0]])
        fits = _fitting(self._found, question)
        start = text.find(fits, len(head))
        span = Span(start, start + len(fits)) if start >= 0 else Span(0, len(text))
        marks = "… " * cut[0], " …" * cut[1]
        return f"{marks[0]}{text}{marks[1]}", Span(*(end + len(marks[0]) for end in span))

    def _context(self, line: Entry, *, back: bool) -> str:
        """The turn before or after a line, from its near end, of the same conversation."""
        near = (n for n in self._numbers if (n < line.created if back else n > line.created))
        numbers = sorted(near, reverse=back)
        others = (self._lines[number] for number in numbers)
        neighbour = next((other for other in others if self._together(other, line)), None)
        if neighbour is None:
            return ""
        turn = self._turn_of(neighbour)
        if back:
            turn.reverse()
        kept = list(_within(turn, _CONTEXT))
        self._shown.update(line.id for line in kept)
        more = len(kept) < len(turn)
        if back:
            return "… " * more + _text_of(kept[::-1])
        return _text_of(kept) + " …" * more

    def _together(self, line: Entry, other: Entry) -> bool:
        """Whether two lines are of one conversation."""
        if line.source_chunk == other.source_chunk:
            return True
        sources = [self._source(each) for each in (line, other)]
        names = {source.rpartition("/")[0] or source for source in sources}
        days = {(each.timestamp or "")[: len("2024-03-05")] for each in (line, other)}
        return all(sources) and len(names) == len(days) == 1


def _within(turn: Iterable[Entry], room: int) -> Iterator[Entry]:
    """Yield the first line of a turn, and those after it that fit ``room`` characters with it."""
    for number, line in enumerate(turn):
        room -= len(line.content)
        if number and room < 0:
            return
        yield line


def _text_of(turn: Sequence[Entry]) -> str:
    """The text of lines of one speaker, whose label stands once."""
    text = ""
    for line in turn:
        said = split_speaker(line.content)[1] if text else line.content
        gap = "\n" if "\n" in said or "\n" in text[-_SHORT:] else " "
        text += gap * bool(text) + said
    return text


def _sentence_of(entry: Entry, question: str) -> Entry:
    """A line with its sentence that fits a question alone; another entry as it is."""
    if entry.section != ARCHIVE.name:
        return entry
    speaker = speaker_of(entry.content)
    label = f"{speaker}: " if speaker else ""
    return replace(entry, content=label + _fitting(entry, question))


def _fitting(line: Entry, question: str) -> str:
    """The sentence of a line that has most of a question's words, before those that only ask."""
    said = split_speaker(line.content)[1] if line.section == ARCHIVE.name else line.content
    parts = [said[slice(*span)] for span in sentences(said)] or [said]
    alike = word_cosines([question, *parts])[0, 1:].tolist()
    states = [not only_asks(replace(line, content=part)) for part in parts]
    best = max(range(len(parts)), key=lambda place: (states[place], alike[place], -place))
    return parts[best]
