"""The form of a data source, and the parts that all loaders share: options, and drafts of
instances.

A loader makes a ``Draft`` for each instance, which holds every question that the input asks there,
as a question or as ``SkippedItem`` with the reason. What it cannot read is ``SkippedItem``, too, so
nothing is lost silently; ``Tally`` counts. The same input, options, seed and token counter give the
same instances; each has a question, and ids are unique.
"""

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AfterValidator, NonNegativeInt, PositiveInt

from memalpha.config import Options, Range, make_options
from memalpha.data.chunks import count_words_and_signs
from memalpha.data.rows import Row, iter_rows
from memalpha.errors import InputError, SchemaError
from memalpha.qa.metrics import JUDGED, check_metric, find_metric
from memalpha.types import Chunk, Fact, Instance, JsonMapping, Question, TokenCounter

_log = logging.getLogger(__name__)
_S = TypeVar("_S")
_T = TypeVar("_T")
EMPTY_ANSWER = "empty answer"  # skip reason: a question without an accepted answer
MALFORMED = "malformed"  # skip reason: not of the set's form
_MAX_PROBLEMS = 20


def ascending(least: int) -> AfterValidator:
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


Bounds = Annotated[Range, ascending(1)]  # minimum and maximum, both at least 1
Metric = Annotated[str, AfterValidator(_known_metric)]


@dataclass(frozen=True, slots=True)
class CommonOptions(Options):
    """Options that every set of documents has.

    Attributes:
        max_questions: An instance has at most this many questions, which are drawn uniformly; 0 =
            all.
        max_instances: The source stops after this many instances with questions; 0 = off.
        split: This split of a data set on the Hub is read.
    """

    max_questions: NonNegativeInt = 0
    max_instances: NonNegativeInt = 0
    split: str = "train"


@dataclass(frozen=True, slots=True)
class TextOptions(CommonOptions):
    """Options of sets of long texts and dialogues.

    Attributes:
        chunk_tokens: A chunk has at most this many tokens.
        metric: Every question has this metric; an empty text takes the metric of its kind.
    """

    chunk_tokens: PositiveInt = 2048
    metric: Metric = ""


class SkippedItem(NamedTuple):
    """Questions of the input that are in no instance, with the reason. With 0 questions it is only
    a note.
    """

    reason: str
    questions: int = 1
    problem: str = ""  # place and fault


class Draft(NamedTuple):
    """An instance with all that was asked of it."""

    id: str
    source: str
    chunks: tuple[Chunk, ...]
    asked: Sequence[Question | SkippedItem] = ()
    facts: tuple[Fact, ...] = ()
    rng: random.Random | None = None  # draws questions if there are too many; None: by the id

    def ask(self, items: Iterable[_S], make: Callable[[_S], Question | SkippedItem]) -> "Draft":
        """Return the draft with the question that ``make`` reads of each item, too."""
        return self._replace(asked=[*self.asked, *read_each(items, make)])


@dataclass(slots=True)
class Tally:
    """The counts of the items that a loader left out."""

    skipped: Counter[str] = field(default_factory=Counter)  # questions by reason
    notes: Counter[str] = field(default_factory=Counter)  # other events
    problems: list[str] = field(default_factory=list)  # the first ones

    def instances(self, loaded: Iterable[Instance | SkippedItem]) -> Iterator[Instance]:
        """Yield the instances among what a source gives, and count the rest; InputError for a
        question whose metric does not exist.
        """
        for item in loaded:
            if isinstance(item, Instance):
                _check_metrics(item)
                yield item
                continue
            counts = self.skipped if item.questions else self.notes
            counts[item.reason] += item.questions or 1
            if item.problem and len(self.problems) < _MAX_PROBLEMS:
                self.problems.append(item.problem)
                _log.warning("skipped: %s", item.problem)


def _check_metrics(instance: Instance) -> None:
    """InputError, with the instance's id, for a metric that is unknown or cannot be imported."""
    for metric in {question.metric for question in instance.questions}:
        try:
            if metric not in JUDGED:
                find_metric(metric)
        except InputError as error:
            what = f"a question of the instance {instance.id!r}: {error.what}"
            raise InputError(what, expected=error.expected, fix=error.fix) from error


def read_each(
    items: Iterable[_S], make: Callable[..., _T], *arguments: object
) -> Iterator[_T | SkippedItem]:
    """Yield ``make(item, *arguments)`` of each item; one that raises a SchemaError is a malformed
    question.
    """
    for item in items:
        try:
            yield make(item, *arguments)
        except SchemaError as error:
            yield SkippedItem(MALFORMED, problem=str(error).replace("\n  ", "; "))


def by_row(make: Callable[[Row, Any, TokenCounter], Draft]) -> "Loader":
    """Return a loader of an instance a row; ``make`` takes (row, options, token counter)."""

    def load(source: str, options: Any, seed: int, count: TokenCounter) -> Iterator[Loaded]:
        return read_each(iter_rows(source, options.split), make, options, count)

    return load


def from_generator(make: Callable[[int, int, Any], Instance]) -> "Loader":
    """Return a loader of ``options.n`` instances; ``make`` takes (index, seed, options)."""

    def load(source: str, options: Any, seed: int, count: TokenCounter) -> Iterator[Instance]:
        return (make(index, seed, options) for index in range(options.n))

    return load


Loaded = Draft | Instance | SkippedItem
Loader = Callable[[str, Any, int, TokenCounter], Iterable[Loaded]]
"""(path, Hub name or "" for generated data; options; seed; token counter) to what was read."""


def finish(loaded: Iterable[Loaded], options: Any, seed: int) -> Iterator[Instance | SkippedItem]:
    """Make instances of the drafts that have questions, with unique ids, within the limits of
    ``options``.
    """
    ids: dict[str, int] = {}
    number = 0
    for draft in loaded:
        if not isinstance(draft, Draft):
            yield draft
            continue
        asked = [_with_an_answer(item) for item in draft.asked]
        yield from (item for item in asked if isinstance(item, SkippedItem))
        questions = _number_questions(asked)
        if not questions:
            yield SkippedItem("instances without questions dropped", questions=0)
        elif options.max_instances and number >= options.max_instances:
            yield SkippedItem("over max_instances", len(questions))
        else:
            number += 1
            name = free_id(draft.id, ids)
            rng = draft.rng or random.Random(f"{draft.source}:{seed}:{name}")
            over = len(questions) - (options.max_questions or len(questions))
            if over > 0:
                yield SkippedItem("over max_questions", over)
                drawn = rng.sample(range(len(questions)), options.max_questions)
                questions = [questions[i] for i in sorted(drawn)]
            taken: dict[str, int] = {}
            named = tuple(replace(each, id=free_id(each.id, taken)) for each in questions)
            yield Instance(name, draft.source, draft.chunks, named, draft.facts)


def _with_an_answer(item: Question | SkippedItem) -> Question | SkippedItem:
    return SkippedItem(EMPTY_ANSWER) if isinstance(item, Question) and not item.answers else item


def _number_questions(asked: Iterable[Question | SkippedItem]) -> list[Question]:
    """Return the questions, those without an id under their place among all that was asked."""
    placed = [each for each in asked if isinstance(each, Question) or each.questions]
    return [
        replace(each, id=each.id or str(number), kind=each.kind or "single")
        for number, each in enumerate(placed)
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
        return make_options(self.options, options, f"source {self.name!r}")

    def load(
        self,
        path_or_hub_name: str | Path | None = None,
        options: JsonMapping | None = None,
        seed: int = 0,
        count_tokens: TokenCounter = count_words_and_signs,
    ) -> Iterable[Instance | SkippedItem]:
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
