"""What a data source is, and what all loaders share: counted tokens, chunks, drafts of instances.

A loader makes a ``Draft`` for each instance, which holds every question that the input asks there,
as a question or as ``Skipped`` with the reason. What it cannot read is ``Skipped``, too, so nothing
is lost silently; ``Tally`` counts. The same input, options, seed and token counter give the same
instances; each has a question, and ids are unique.
"""

import logging
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AfterValidator, NonNegativeInt, PositiveInt

from memalpha.config import Options, Range, read
from memalpha.data.rows import Row, iter_rows
from memalpha.errors import InputError, SchemaError
from memalpha.memory.memory import count_words
from memalpha.qa.metrics import check_metric
from memalpha.text.encoding import plain_ids
from memalpha.text.times import to_iso
from memalpha.types import Chunk, Fact, Instance, JsonMapping, Question, Span, TokenCounter
from memalpha.units import UNSPACED, cut

# ------------------------------------------------------------------------------------------------
# chunks
# Texts and dialogues are joined to chunks of a limited length, with the places of their parts. No
# chunk exceeds its limit; texts and turns keep their order, none lost or repeated. Chunk lengths
# are drawn as in Mem-alpha (arXiv 2509.25911), but long texts are cut, not kept as over-long
# chunks.

_UNSPACED = re.compile(f"[{UNSPACED}]")


def apart(text: str) -> str:
    """Return a text with spaces around each sign of a script without spaces."""
    return text if text.isascii() else _UNSPACED.sub(r" \g<0> ", text)


def count_words_and_signs(text: str) -> int:
    """Count words; also each sign of scripts without spaces, if these outnumber the words."""
    words = count_words(text)
    if text.isascii() or len(_UNSPACED.findall(text)) <= words:
        return words
    return len(apart(text).split())


def tokenizer_counter(name_or_path: str) -> TokenCounter:
    """Return a token counter (no special tokens) for a tokenizer folder or Hub name; InputError if
    it cannot be loaded.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"no tokenizer of {name_or_path}: {error}",
            expected="a folder with a tokenizer, or a Hub name",
        ) from error

    return lambda text: len(plain_ids(tokenizer, text))


class Packed(NamedTuple):
    """One chunk: the joined texts and their ascending indices."""

    text: str
    parts: tuple[int, ...]


class Chunked(NamedTuple):
    """Chunks, and the ascending chunk indices of each key."""

    chunks: tuple[Chunk, ...]
    places: Mapping[Hashable, tuple[int, ...]]

    def evidence(self, keys: Iterable[Hashable]) -> tuple[int, ...] | None:
        """Return the ascending chunks that hold any of the keys; None if none is there."""
        return tuple(sorted({place for key in keys for place in self.places.get(key, ())})) or None


def chunked(chunks: Iterable[tuple[Chunk, Iterable[Hashable]]]) -> Chunked:
    """Return chunks, each given with the keys that it holds, and the places of the keys."""
    given = [(chunk, set(keys)) for chunk, keys in chunks]
    places: dict[Hashable, tuple[int, ...]] = defaultdict(tuple)
    for index, (_, keys) in enumerate(given):
        for key in keys:
            places[key] += (index,)
    return Chunked(tuple(chunk for chunk, _ in given), dict(places))


def chunk_texts(
    texts: Iterable[tuple[Hashable, str]],
    bounds: tuple[int, int],
    count: TokenCounter,
    rng: random.Random,
    separator: str = "\n\n",
) -> Chunked:
    """Cut texts, each given with its key, to pieces that fit, and join them as ``pack_texts``
    does.
    """
    pieces = [(key, piece) for key, text in texts for piece in cut(text, bounds[1], count)]
    packed = pack_texts((piece for _, piece in pieces), bounds, count, rng, separator)
    keys = [key for key, _ in pieces]
    return chunked((Chunk(text), map(keys.__getitem__, parts)) for text, parts in packed)


def pack_texts(
    texts: Iterable[str],
    bounds: tuple[int, int],
    count: TokenCounter,
    rng: random.Random,
    separator: str = "\n\n",
) -> Iterator[Packed]:
    """Join consecutive texts, none above the upper bound, to chunks of lengths in tokens drawn
    uniformly from ``bounds``.
    """
    low, high = bounds
    gap = count(separator)
    held: list[str] = []
    index, tokens, target = 0, 0, rng.randint(low, high)
    for index, text in enumerate(texts, start=1):
        added = count(text)
        if held and tokens + gap + added > (target if tokens >= low else high):
            yield from _joined(held, index - 1, high, count, separator)
            held, tokens, target = [], 0, rng.randint(low, high)
        tokens += added + gap * bool(held)
        held.append(text)
    yield from _joined(held, index, high, count, separator)


def _joined(
    texts: Sequence[str], last: int, limit: int, count: TokenCounter, separator: str
) -> Iterator[Packed]:
    """Join the texts before the number ``last`` to one chunk, or to more if the joined text counts
    more than the sum of its parts.
    """
    start = 0
    while start < len(texts):
        end = len(texts)
        while end > start + 1 and count(separator.join(texts[start:end])) > limit:
            end -= 1
        first = last - len(texts)
        parts = tuple(range(first + start, first + end))
        yield Packed(separator.join(texts[start:end]), parts)
        start = end


class Turn(NamedTuple):
    """What one person says, and its key for evidence; a blank one is left out of chunks."""

    speaker: str
    text: str
    key: str = ""


class Session(NamedTuple):
    """Turns of one session, its title, its date as the set writes it ("" for none), and its key for
    evidence.
    """

    turns: Sequence[Turn]
    title: str
    time: str = ""
    key: str = ""


def dialogue_chunks(
    sessions: Iterable[Session],
    limit: int,
    count: TokenCounter,
    *,
    join: bool = False,
    turns: bool = False,
) -> Chunked:
    """Make chunks of at most ``limit`` tokens, with ``join`` of sessions of one day; SchemaError if
    there is no turn.

    With ``turns`` each turn has its own chunk, or several if it is longer, without headers, so that
    evidence is counted turn by turn.
    """
    made: list[tuple[Chunk, set[str]]] = []
    tokens = 0
    pieces_of = _lines if turns else _parts
    for session in sessions:
        time = to_iso(session.time)
        for text, keys in pieces_of(session, limit, count):
            added = count(f"{text}\n")
            last = made[-1][0] if join and made and not turns else None
            if last and (last.time or "")[:10] == (time or "")[:10] and tokens + added <= limit:
                made[-1] = (Chunk(f"{last.text}\n\n{text}", last.time), made[-1][1] | keys)
                tokens += added
            else:
                made.append((Chunk(text, time), keys))
                tokens = added
    if not made:
        raise SchemaError("no session has a turn")
    return chunked(made)


def _parts(session: Session, limit: int, count: TokenCounter) -> Iterator[tuple[str, set[str]]]:
    """Yield the pieces of a session, each under its header, and the keys of what is in them."""
    written = to_iso(session.time) or session.time
    dated = f"{session.title}, {written}" if session.time else session.title
    again = count(f"[{dated}, continued]\n")
    held, tokens = [f"[{dated}]"], count(f"[{dated}]\n")
    keys: set[str] = set()
    for line, own in _lines(session, max(1, limit - again), count):
        added = count(f"{line}\n")
        if len(held) > 1 and tokens + added > limit:
            yield "\n".join(held), keys
            held, keys, tokens = [f"[{dated}, continued]"], set(), again
        held.append(line)
        keys |= own
        tokens += added
    if len(held) > 1:
        yield "\n".join(held), keys


def _lines(session: Session, limit: int, count: TokenCounter) -> Iterator[tuple[str, set[str]]]:
    """Yield the pieces of a session's turns, and the keys of each."""
    for turn in session.turns:
        if not turn.text:
            continue
        labels = [Span(0, len(turn.speaker) + 1)] if turn.speaker else None
        line = f"{turn.speaker}: {turn.text}" if turn.speaker else turn.text
        keys = {turn.key, session.key} - {""}
        yield from ((piece, keys) for piece in cut(line, limit, count, labels))


# ------------------------------------------------------------------------------------------------
# sources

log = logging.getLogger(__name__)
_S = TypeVar("_S")
_T = TypeVar("_T")
EMPTY_ANSWER = "empty answer"  # skip reason: all answers are blank or missing
MALFORMED = "malformed"  # skip reason: not of the set's form
_MAX_PROBLEMS = 20

# Lines that loaders add to questions, so that the leak check can ignore them.
ASK_LABEL = (
    "Which label number does this have, going by the examples? Answer with the number in \\boxed{}."
)
SUMMARISE = "Summarise the text."
PERSONA = "What has {} said about themselves?"
_ASKED_ON = "Asked on {}."
_OWN_LINES = (ASK_LABEL, SUMMARISE, PERSONA, _ASKED_ON)
_OWN = re.compile("|".join(re.escape(line).replace(r"\{\}", ".+") for line in _OWN_LINES))


def asked_on(date: str, question: str) -> str:
    """Return a question under a line with its date, if one is given."""
    return f"{_ASKED_ON.format(date)}\n{question}" if date else question


def as_asked(question: str) -> str:
    """Return a question's text without lines that a loader added; may be empty."""
    return "\n".join(line for line in question.split("\n") if not _OWN.fullmatch(line.strip()))


def in_order(least: int) -> AfterValidator:
    """Return a check of a pair (fewest, most), neither below ``least``."""

    def check(bounds: tuple[int, int]) -> tuple[int, int]:
        if not least <= bounds[0] <= bounds[1]:
            raise ValueError(f"expected two numbers with {least} <= fewest <= most")
        return bounds

    return AfterValidator(check)


def _known_metric(name: str) -> str:
    if name:
        check_metric(name, judged=True)
    return name


Bounds = Annotated[Range, in_order(1)]  # minimum and maximum, both at least 1
Metric = Annotated[str, AfterValidator(_known_metric)]


@dataclass(frozen=True, slots=True)
class CommonOptions(Options):
    """Options that every set of documents has."""

    max_questions: NonNegativeInt = 0  # most questions of an instance, drawn uniformly (0 = all)
    max_instances: NonNegativeInt = 0  # stop after this many instances with questions (0 = off)
    split: str = "train"  # split of a data set on the Hub


@dataclass(frozen=True, slots=True)
class TextOptions(CommonOptions):
    """Options of sets of long texts and dialogues."""

    chunk_tokens: PositiveInt = 2048  # most tokens of a chunk
    metric: Metric = ""  # metric of every question ("" = that of its kind)


class Skipped(NamedTuple):
    """Questions of the input that are in no instance, and why; with 0 questions only a note of
    what was done.
    """

    reason: str
    questions: int = 1
    problem: str = ""  # place and fault


class Draft(NamedTuple):
    """An instance with all that was asked of it."""

    id: str
    source: str
    chunks: tuple[Chunk, ...]
    asked: Sequence[Question | Skipped]
    facts: tuple[Fact, ...] = ()
    rng: random.Random | None = None  # draws questions if there are too many; None: by the id


@dataclass(slots=True)
class Tally:
    """What a loader left out."""

    skipped: Counter[str] = field(default_factory=Counter)  # questions by reason
    notes: Counter[str] = field(default_factory=Counter)  # other events
    problems: list[str] = field(default_factory=list)  # the first ones

    def instances(self, loaded: Iterable[Instance | Skipped]) -> Iterator[Instance]:
        """Yield the instances among what a source gives, and count the rest."""
        for item in loaded:
            if isinstance(item, Instance):
                yield item
                continue
            counts = self.skipped if item.questions else self.notes
            counts[item.reason] += item.questions or 1
            if item.problem and len(self.problems) < _MAX_PROBLEMS:
                self.problems.append(item.problem)
                log.warning("skipped: %s", item.problem)


def read_each(
    items: Iterable[_S], make: Callable[..., _T], *arguments: object
) -> Iterator[_T | Skipped]:
    """Yield ``make(item, *arguments)`` of each item; one that raises a SchemaError is a malformed
    question.
    """
    for item in items:
        try:
            yield make(item, *arguments)
        except SchemaError as error:
            yield Skipped(MALFORMED, problem=str(error).replace("\n  ", "; "))


def sort_out(items: Iterable[_T | Skipped]) -> tuple[list[_T], list[Skipped]]:
    """Return what was read, and what was skipped."""
    read = list(items)
    skipped = [item for item in read if isinstance(item, Skipped)]
    return [item for item in read if not isinstance(item, Skipped)], skipped


def by_row(make: Callable[[Row, Any, TokenCounter], Draft]) -> "Loader":
    """Return a loader of an instance a row; ``make`` takes (row, options, token counter)."""

    def load(source: str, options: Any, seed: int, count: TokenCounter) -> Iterator[Loaded]:
        return read_each(iter_rows(source, options.split), make, options, count)

    return load


def generated(make: Callable[[int, int, Any], Instance]) -> "Loader":
    """Return a loader of ``options.n`` instances; ``make`` takes (index, seed, options)."""

    def load(source: str, options: Any, seed: int, count: TokenCounter) -> Iterator[Instance]:
        return (make(index, seed, options) for index in range(options.n))

    return load


Loaded = Draft | Instance | Skipped
Loader = Callable[[str, Any, int, TokenCounter], Iterable[Loaded]]
"""(path, Hub name or "" for generated data; options; seed; token counter) to what was read."""


def finish(loaded: Iterable[Loaded], options: Any, seed: int) -> Iterator[Instance | Skipped]:
    """Make instances of the drafts that have questions, with unique ids, within the limits of
    ``options``.
    """
    ids: dict[str, int] = {}
    number = 0
    for draft in loaded:
        if not isinstance(draft, Draft):
            yield draft
            continue
        yield from (item for item in draft.asked if not isinstance(item, Question))
        questions = _numbered(draft)
        if not questions:
            yield Skipped("instances without questions dropped", questions=0)
        elif options.max_instances and number >= options.max_instances:
            yield Skipped("over max_instances", len(questions))
        else:
            number += 1
            name = free_id(draft.id, ids)
            rng = draft.rng or random.Random(f"{draft.source}:{seed}:{name}")
            over = len(questions) - (options.max_questions or len(questions))
            if over > 0:
                yield Skipped("over max_questions", over)
                drawn = rng.sample(range(len(questions)), options.max_questions)
                questions = [questions[i] for i in sorted(drawn)]
            taken: dict[str, int] = {}
            named = tuple(replace(each, id=free_id(each.id, taken)) for each in questions)
            yield Instance(name, draft.source, draft.chunks, named, draft.facts)


def _numbered(draft: Draft) -> list[Question]:
    """Return the questions, those without an id under their place among all that was asked."""
    asked = [each for each in draft.asked if isinstance(each, Question) or each.questions]
    return [
        replace(each, id=each.id or str(number), kind=each.kind or "single")
        for number, each in enumerate(asked)
        if isinstance(each, Question)
    ]


def free_id(name: str, taken: dict[str, int]) -> str:
    """Return an unused id: ``x``, ``x#2``, ...; ``taken`` maps each used id to the last number
    tried, and gets the new one.
    """
    free = name
    while free in taken:
        taken[name] += 1
        free = f"{name}#{taken[name]}"
    taken[free] = 1
    return free


@dataclass(frozen=True, slots=True)
class Source:
    """One data set; ``needs_input`` is False for generated data. Every field of ``options`` needs
    a default.
    """

    name: str
    description: str
    loader: Loader
    options: type[Options]
    needs_input: bool = True
    presets: JsonMapping = field(default_factory=dict)  # of option ``preset``

    def parse(self, options: JsonMapping | None) -> Any:
        """Return the source's options; InputError for an unknown option or invalid value."""
        if isinstance(options, Mapping) and str(options.get("preset")) in self.presets:
            given = {name: value for name, value in options.items() if value is not None}
            options = {**asdict(self.presets[given["preset"]]), **given}
        return read(self.options, options, f"source {self.name!r}")

    def load(
        self,
        path_or_hub_name: str | Path | None = None,
        options: JsonMapping | None = None,
        seed: int = 0,
        count_tokens: TokenCounter = count_words_and_signs,
    ) -> Iterable[Instance | Skipped]:
        """Load from a file, folder or Hub name (None for generated data); InputError, also later,
        for bad input or options.
        """
        given = "" if path_or_hub_name is None else str(path_or_hub_name)
        if bool(given) is not self.needs_input:
            needs = "reads a file and none was given"
            fault = needs if self.needs_input else f"is generated and was given {given!r}"
            raise InputError(f"source {self.name!r} {fault}", expected=self.description)
        parsed = self.parse(options)
        return finish(self.loader(given, parsed, seed, count_tokens), parsed, seed)
