"""Data sources and the helpers that their loaders share.

Every input question is in an instance or counted in ``skipped`` with a reason;
``memalpha.data.prepare`` compares with ``asked``. The same input, options, seed and token counter
give the same instances; each has a question, and ids are unique.
"""

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, NonNegativeInt, PositiveInt

from memalpha.config import Options, Range, read
from memalpha.data.packing import count_words_and_signs
from memalpha.data.rows import Row, checked, iter_rows
from memalpha.errors import InputError, SchemaError
from memalpha.protocols import TokenCounter
from memalpha.qa.metrics import check_metric
from memalpha.types import Instance, Question

log = logging.getLogger(__name__)
_S = TypeVar("_S")
_T = TypeVar("_T")
NO_QUESTIONS = "instances without questions dropped"  # a note
_MAX_PROBLEMS = 20


def in_order(least: int) -> AfterValidator:
    """Return a check of a pair (fewest, most), neither below ``least``."""

    def check(bounds: tuple[int, int]) -> tuple[int, int]:
        if not least <= bounds[0] <= bounds[1]:
            raise ValueError(
                f"expected two numbers, fewest and most, with {least} <= fewest <= most"
            )
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


@dataclass(slots=True)
class LoadResult:
    """Lazily made instances, and what was left out; counts are final once ``instances`` is
    exhausted.
    """

    instances: Iterator[Instance] = field(default_factory=lambda: iter(()))
    skipped: Counter[str] = field(default_factory=Counter)  # questions by reason
    notes: Counter[str] = field(default_factory=Counter)  # other events
    problems: list[str] = field(default_factory=list)
    asked: int = 0  # input questions read; 0 for generated data

    def malformed(self, problem: object) -> None:
        """Count a malformed question; log its place and error, and keep the first ones."""
        self.skipped["malformed"] += 1
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(str(problem).replace("\n  ", "; "))
            log.warning("skipped: %s", self.problems[-1])

    def draw(
        self, questions: Sequence[Question], limit: int, rng: random.Random
    ) -> tuple[Question, ...]:
        """Return at most ``limit`` questions (0 = all), drawn uniformly, in order, with unique ids;
        count the others.
        """
        if limit and len(questions) > limit:
            self.skipped["over max_questions"] += len(questions) - limit
            questions = [questions[i] for i in sorted(rng.sample(range(len(questions)), limit))]
        taken, numbered = dict[str, int](), []
        for question in questions:
            name = free_id(question.id, taken)
            self.notes["repeated question ids numbered"] += name != question.id
            numbered.append(replace(question, id=name))
        return tuple(numbered)


def read_rows(rows: Iterable[Row], result: LoadResult, make: Callable[[Row], _T]) -> Iterator[_T]:
    """Yield ``make(row)`` for each row; a SchemaError counts the row as one malformed question.
    ``make`` counts what it asks.
    """
    for row in rows:
        try:
            made = make(row)
        except SchemaError as error:
            result.asked += 1
            result.malformed(error if row.where in str(error) else f"{row.where}: {error}")
        else:
            yield made


def read_each(
    items: Iterable[_S], result: LoadResult, make: Callable[[_S], _T | str]
) -> Iterator[_T]:
    """Yield ``make(item)`` of each asked item; a reason to skip it (text) or a SchemaError is
    counted instead.
    """
    for item in items:
        result.asked += 1
        try:
            made = make(item)
        except SchemaError as error:
            result.malformed(error)
            continue
        if isinstance(made, str):
            result.skipped[made] += 1
        else:
            yield made


def read_questions(
    asked: Iterable[Any],
    where: str,
    result: LoadResult,
    make: Callable[[Any, str], Question | str] | None = None,
) -> tuple[Question, ...]:
    """Return the questions of one row; ``make(data, place)``, or an item itself, is a question or a
    skip reason.
    """

    def question(numbered: tuple[int, Any]) -> Question | str:
        index, item = numbered
        made: Question | str = make(item, f"{where} question {index}") if make else item
        return made if isinstance(made, str) or made.id else replace(made, id=str(index))

    return tuple(read_each(enumerate(asked), result, question))


def finish(
    instances: Iterable[Instance], options: CommonOptions, seed: int, result: LoadResult
) -> Iterator[Instance]:
    """Yield the instances that have questions, with unique ids, within the limits of
    ``options``.
    """
    ids, made = dict[str, int](), 0
    for instance in instances:
        if not instance.questions:
            result.notes[NO_QUESTIONS] += 1
            continue
        if options.max_instances and made >= options.max_instances:
            result.skipped["over max_instances"] += len(instance.questions)
            continue
        made += 1
        name = free_id(instance.id, ids)
        result.notes["repeated ids numbered"] += name != instance.id
        drawn = result.draw(
            instance.questions,
            options.max_questions,
            random.Random(f"{instance.source}:{seed}:{name}"),
        )
        kinds = tuple(
            question if question.kind.strip() else replace(question, kind="single")
            for question in drawn
        )
        yield replace(instance, id=name, questions=kinds)


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


Loader = Callable[[str, Any, int, TokenCounter, LoadResult], Iterable[Instance]]
"""(path, Hub name or "" for generated data; options; seed; token counter; result to count in) to instances."""


def by_row(
    model: type[BaseModel], make: Callable[[Any, str, Any, TokenCounter, LoadResult], Instance]
) -> Loader:
    """Return a loader of an instance a row; ``make`` takes (row of the form of ``model``, place,
    options, counter, result).
    """

    def load(
        source: str, options: Any, seed: int, count_tokens: TokenCounter, result: LoadResult
    ) -> Iterator[Instance]:
        def instance(row: Row) -> Instance:
            return make(
                checked(model, row.data, row.where), row.where, options, count_tokens, result
            )

        return read_rows(iter_rows(source, options.split), result, instance)

    return load


def generated(make: Callable[[int, int, Any], Instance]) -> Loader:
    """Return a loader of ``options.n`` generated instances; ``make`` takes (index, seed,
    options).
    """

    def load(
        source: str, options: Any, seed: int, count_tokens: TokenCounter, result: LoadResult
    ) -> Iterator[Instance]:
        return (make(index, seed, options) for index in range(options.n))

    return load


@dataclass(frozen=True, slots=True)
class Source:
    """One entry of the registry; ``needs_input`` is False for generated data. Every field of
    ``options`` needs a default.
    """

    name: str
    description: str
    loader: Loader
    options: type[Any]
    needs_input: bool = True

    def parse(self, options: Mapping[str, Any] | None) -> Any:
        """Return the source's options; InputError for an unknown option or invalid value."""
        return read(self.options, options, f"source {self.name!r}")

    def load(
        self,
        path_or_hub_name: str | Path | None = None,
        options: Mapping[str, Any] | None = None,
        seed: int = 0,
        count_tokens: TokenCounter = count_words_and_signs,
    ) -> LoadResult:
        """Load from a file, folder or Hub name (None for generated data); InputError, also later,
        for bad input or options.
        """
        given = "" if path_or_hub_name is None else str(path_or_hub_name)
        if bool(given) is not self.needs_input:
            what = (
                "reads a file and none was given"
                if self.needs_input
                else f"is generated and was given {given!r}"
            )
            raise InputError(f"source {self.name!r} {what}", expected=self.description)
        parsed, result = self.parse(options), LoadResult()
        made = self.loader(given, parsed, seed, count_tokens, result)
        result.instances = (
            finish(made, parsed, seed, result) if isinstance(parsed, CommonOptions) else iter(made)
        )
        return result
