"""Training data from one's own notes and chats, without labels and without a model.

A question is a sentence with a name, a number or a date masked, asked after later chunks: what
MemTrain (arXiv 2606.03197) calls masked reconstruction. Where the same sentence is said again with
another value, the newest is the answer and the older ones are stale. Nothing leaves the machine.
Departures: values are found by their form, not by a model; a masked value that the sentence gives
away, or that is not clear from the sentence alone, is not asked.
"""

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, PositiveInt

from memalpha.contrib.importing.exports import Export
from memalpha.contrib.importing.items import Chat
from memalpha.conversation.messages import Utterance
from memalpha.data.chunks import Session, Turn, dialogue_chunks
from memalpha.data.source import Draft, Loaded, SkippedItem, Source, TextOptions
from memalpha.errors import InputError
from memalpha.files import path_of
from memalpha.qa.metrics import contains, words
from memalpha.speakers import speaker_labels
from memalpha.types import Chunk, Question, Span, TokenCounter
from memalpha.units import sentences

VALUE_MASK = "___"
ASK = "What stood in the gap? {}"
_MONTH = "January February March April May June July August September October November December"
_MONTHS = "|".join(month[:3] + f"(?:{month[3:]})?" for month in _MONTH.split())
_DATE = re.compile(
    rf"\b(?:[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}|(?:[0-9]{{1,2}}(?:st|nd|rd|th)? (?:of )?)?"
    rf"(?:{_MONTHS})\b(?: [0-9]{{1,2}}(?:st|nd|rd|th)?\b)?(?:,? [0-9]{{4}})?)"
)
_NUMBER = re.compile(r"(?<![\w.,:/-])[0-9][0-9.,:]*[0-9](?![\w/-])")
# not called by name ("Thanks, Mel!"), not the second half of a longer name
_NAME = re.compile(r"(?<=[a-z] )(?<!'s )[A-Z][a-z]+(?: [A-Z][a-z]+){0,2}\b(?!['’]s [A-Z])")
_DAYS = re.compile(rf"(?:{_MONTHS}|(?:Mon|Tues?|Wed(?:nes)?|Thur?s?|Fri|Satur|Sun)(?:day)?)\b")
_NO_SENTENCE = re.compile(r"[{}|<>\\=]|https?:|^\[.*\]$|^#")
_DIGIT = re.compile("[0-9]")
_DATED = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_SUFFIXES = (".md", ".txt")
_INPUT = "a folder of notes (*.md, *.txt), or an export of chats (docs/guides/import.md)"
_TEST_SHARE = 5  # every fifth instance is kept for tests
_COMMON = 3  # a name in more of an instance's chunks than this is guessed, not remembered


@dataclass(frozen=True, slots=True)
class OwnOptions(TextOptions):
    """How one's own text becomes instances.

    Attributes:
        chunks: An instance has at most this many chunks.
        least_words: A sentence is used if it has at least this many words besides those that are
            masked.
        split: Every fifth instance belongs to ``test`` and the others to ``train``; ``all`` takes
            both.
    """

    chunks: Annotated[int, Field(ge=2)] = 12
    least_words: PositiveInt = 6
    split: Literal["train", "test", "all"] = "train"


class _MaskedSentence(NamedTuple):
    """A sentence with one value masked."""

    sentence: str
    frame: str
    value: str
    kind: str
    chunk: int

    @property
    def words(self) -> frozenset[str]:
        """The words of the frame, which say what is asked for."""
        return frozenset(words(self.frame))


# ------------------------------------------------------------------------------------------------
# what is read
def read_notes(folder: Path) -> list[Session]:
    """Return a session for each note in a folder, by date in its name, then by name; paragraphs are
    turns.
    """
    files = sorted(file for file in folder.rglob("*") if file.suffix in _SUFFIXES)
    notes = [_note(file, file.relative_to(folder).with_suffix("")) for file in files]
    return sorted(notes, key=attrgetter("time"))


def read_chats(path: Path) -> tuple[list[Session], list[SkippedItem]]:
    """Return a session for each conversation and day of an export, in order of days, and the counts
    of skipped messages. InputError if the file is not an export of chats.
    """
    export = Export(path)
    days: dict[tuple[str, int], list[Utterance]] = defaultdict(list)
    for number, item in enumerate(export):
        if isinstance(item, Chat):
            for said in item.utterances:
                days[(said.time or "")[:10], number].append(said)
    if not days:
        raise InputError(f"{path} holds no chat ({export.kind})", expected="an export of chats")
    sessions = [
        Session([Turn(said.label, said.quoted) for said in told], "Chat", day)
        for (day, _), told in sorted(days.items())
    ]
    skipped = [SkippedItem(reason, questions=0) for reason in export.skipped.elements()]
    return sessions, skipped


def _note(file: Path, name: Path) -> Session:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8: {error}", expected="notes in UTF-8") from error
    paragraphs = re.split(r"\n\s*\n", text)
    turns = [Turn("", paragraph.strip()) for paragraph in paragraphs if paragraph.strip()]
    date = _DATED.search(name.name)
    return Session(turns, str(name), date[0] if date else "")


# ------------------------------------------------------------------------------------------------
# what is masked
def _sentences_of(chunk: Chunk) -> Iterator[tuple[str, str]]:
    """Yield the sentences of a chunk, each after the label of its speaker, if anybody speaks."""
    labels = speaker_labels(chunk.text)
    for span in sentences(chunk.text):
        before = [label for label in labels if label.start <= span.start]
        label = chunk.text[slice(*before[-1])] if before else ""
        sentence = " ".join(chunk.text[slice(*span)].split())
        yield label, sentence.removeprefix(label).strip()


def _values(sentence: str) -> Iterator[tuple[str, Span]]:
    """Yield the kind and the place of each value in a sentence."""
    dates = [Span(*match.span()) for match in _DATE.finditer(sentence) if _DIGIT.search(match[0])]
    yield from (("date", span) for span in dates)
    for kind, pattern in (("number", _NUMBER), ("name", _NAME)):
        for match in pattern.finditer(sentence):
            span = Span(*match.span())
            dated = any(date.start < span.end and span.start < date.end for date in dates)
            if not dated and not _DAYS.match(match[0]):
                yield kind, span


def mask_values(chunks: Sequence[Chunk], least_words: int) -> list[_MaskedSentence]:
    """Return every sentence of the chunks with one value masked that it does not give away."""
    found = []
    for index, chunk in enumerate(chunks):
        for label, sentence in _sentences_of(chunk):
            for kind, (start, end) in _values(sentence):
                frame = f"{label} {sentence[:start]}{VALUE_MASK}{sentence[end:]}".strip()
                each = _MaskedSentence(sentence, frame, sentence[start:end], kind, index)
                clear = len(each.words) >= least_words and not contains(frame, each.value)
                if clear and not _NO_SENTENCE.search(sentence):
                    found.append(each)
    names = {each.value for each in found if each.kind == "name"}
    common = {
        name for name in names if sum(contains(chunk.text, name) for chunk in chunks) > _COMMON
    }
    return [each for each in found if each.value not in common]


# ------------------------------------------------------------------------------------------------
# what is asked
def questions_of(chunks: Sequence[Chunk], options: OwnOptions) -> Iterator[Question | SkippedItem]:
    """Yield a question for each frame: its value, or of several the newest. Nothing of the last
    chunk alone is asked: no chunk comes after it.
    """
    by_frame: dict[frozenset[str], list[_MaskedSentence]] = defaultdict(list)
    for each in mask_values(chunks, options.least_words):
        by_frame[each.words].append(each)
    unclear = _alike(by_frame)
    for frame, said in by_frame.items():
        latest = said[-1]
        places = sorted({each.chunk for each in said if each.value == latest.value})
        older = [each for each in said if each.value != latest.value]
        if frame in unclear:
            yield SkippedItem("masked: another sentence says nearly the same")
        elif places[0] == len(chunks) - 1 and not older:
            yield SkippedItem("masked: in the last chunk")
        elif places[-1] <= max((each.chunk for each in older), default=-1):
            yield SkippedItem("masked: two values in one chunk")
        else:
            yield Question(
                ASK.format(latest.frame),
                (latest.value,),
                options.metric or "substring",
                "latest" if older else latest.kind,
                stale=tuple(dict.fromkeys(each.value for each in older)),
                evidence=tuple(places),
            )


def _alike(by_frame: Mapping[frozenset[str], Sequence[_MaskedSentence]]) -> set[frozenset[str]]:
    """Return the frames that share four in five of their words with one of another sentence."""
    having: dict[str, list[frozenset[str]]] = defaultdict(list)
    for frame in by_frame:
        for word in frame:
            having[word].append(frame)
    found = set()
    for frame, said in by_frame.items():
        own = {each.sentence for each in said}
        rarest = sorted(frame, key=lambda word: (len(having[word]), word))
        # whatever shares four in five of the words has one of the rarest fifth, and one more
        near = {other for word in rarest[: len(frame) // 5 + 1] for other in having[word]}
        for other in near - {frame}:
            shared = 5 * len(frame & other) >= 4 * len(frame | other)
            if shared and own.isdisjoint(each.sentence for each in by_frame[other]):
                found.add(frame)
    return found


def _load_own(source: str, options: OwnOptions, seed: int, count: TokenCounter) -> Iterable[Loaded]:
    """Load notes or chats; InputError if there is nothing to read."""
    path = path_of(source, _INPUT)
    if not path.exists():
        raise InputError(f"there is no file or folder {source!r}", expected=_INPUT)
    notes = path.is_dir() and any(file.suffix in _SUFFIXES for file in path.rglob("*"))
    sessions, skipped = (read_notes(path), []) if notes else read_chats(path)
    yield from skipped
    chunks = dialogue_chunks(sessions, options.chunk_tokens, count, join=True).chunks
    starts = range(0, len(chunks), options.chunks)
    if options.split == "test" and len(starts) < _TEST_SHARE:
        raise InputError(
            f"{source!r} makes {len(starts)} instances, of which every fifth belongs to the "
            "split test",
            expected=f"at least {_TEST_SHARE}",
            fix="give more text, or lower chunks or chunk_tokens",
        )
    for number, start in enumerate(starts):
        part = chunks[start : start + options.chunks]
        is_test = number % _TEST_SHARE == _TEST_SHARE - 1
        if options.split in ("all", "test" if is_test else "train"):
            name = f"own-{number}"
            asked = list(questions_of(part, options))
            yield Draft(name, "own", part, asked, rng=random.Random(f"{seed}:{name}"))


SOURCES = [
    Source(
        "own",
        "your notes (a folder of *.md, *.txt) or an export of your chats: gaps to fill",
        _load_own,
        OwnOptions,
    )
]
