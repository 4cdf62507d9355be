"""What a data source is, and what its loader shares with the others: rows to instances with nothing lost between.

What always holds for a loader: every question of its input is in an instance or counted in ``skipped`` under its reason (each
loader counts in ``asked`` what it reads, apart from what becomes of it, and ``memalpha.data.prepare`` compares); the same input,
options, seed and token counter give the same instances. A row that cannot be read is skipped whole as ``malformed``, with as many
questions as it shows to hold (at least one) and its place in ``problems``; a question that cannot be read is skipped alone; a file
that cannot be read at all is one InputError. After ``finish`` no instance is without a question or with a blank kind, and no id of
an instance or of a question in one comes twice.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, NonNegativeInt

from memalpha.config import Options, Range, read
from memalpha.data.counting import count_words_and_signs
from memalpha.data.rows import Row, iter_rows
from memalpha.errors import InputError, SchemaError
from memalpha.protocols import TokenCounter
from memalpha.qa.metrics import check_metric
from memalpha.types import Instance, Question

log = logging.getLogger(__name__)

_T = TypeVar("_T")

MALFORMED = "malformed"
"""Reason of a question, or a row that may hold questions, that does not have the published form."""

NO_QUESTIONS = "instances without questions dropped"
"""Note of the instances that have no question, or none that could be kept."""

_MAX_PROBLEMS = 20


# ------------------------------------------------------------------------------------------------ options
def _in_order(bounds: tuple[int, int]) -> tuple[int, int]:
    if not 1 <= bounds[0] <= bounds[1]:
        raise ValueError("expected two numbers, fewest and most, with 1 <= fewest <= most")
    return bounds


def _known_metric(name: str) -> str:
    if name:
        check_metric(name, judged=True)
    return name


Bounds = Annotated[Range, AfterValidator(_in_order)]
"""Fewest and most, both at least 1."""
Metric = Annotated[str, AfterValidator(_known_metric)]
"""Name of a metric, "" where the set has its own."""


@dataclass(frozen=True, slots=True)
class CommonOptions(Options):
    """Options that every set of documents has.

    Attributes:
        max_questions: Most questions of an instance, drawn evenly (0 = all).
        max_instances: Stop after so many instances that have questions (0 = off).
        split: Split of a data set on the Hub.
    """

    max_questions: NonNegativeInt = 0
    max_instances: NonNegativeInt = 0
    split: str = "train"


# ------------------------------------------------------------------------------------------------ the ledger
@dataclass(slots=True)
class LoadResult:
    """Instances being made, and what was left out; the counts are complete once ``instances`` is used up.

    Attributes:
        instances: Made as they are asked for.
        skipped: Questions left out, by reason.
        notes: What else was done, by kind, e.g. contexts cut in pieces; counts no question.
        problems: Place and fault of the first malformed rows.
        asked: Questions of the input read so far; stays 0 for generated data.
        total: How many instances there will be, where that is known beforehand.
    """

    instances: Iterator[Instance] = field(default_factory=lambda: iter(()))
    skipped: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    asked: int = 0
    total: int | None = None

    def skip(self, reason: str, questions: int = 1) -> None:
        """Count questions left out."""
        if questions:
            self.skipped[reason] += questions

    def malformed(self, problem: object, questions: int = 1) -> None:
        """Count a row that cannot be read, as the number of questions it holds or 1 where that cannot be told."""
        self.skipped[MALFORMED] += max(questions, 1)
        self.problem(problem)

    def unreadable(self, problem: object, questions: int = 1) -> None:
        """Count a malformed row whose questions were not counted as read before."""
        self.asked += max(questions, 1)
        self.malformed(problem, questions)

    def problem(self, problem: object) -> None:
        """Keep and log a place and its fault, unless many were kept already."""
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(str(problem).replace("\n  ", "; "))
            log.warning("skipped: %s", self.problems[-1])

    def draw(self, questions: Sequence[Question], limit: int, rng: random.Random) -> tuple[Question, ...]:
        """Return at most ``limit`` questions (0 = all), drawn evenly and in their order; the others are counted."""
        if not limit or len(questions) <= limit:
            return tuple(questions)
        self.skip("over max_questions", len(questions) - limit)
        return tuple(questions[i] for i in sorted(rng.sample(range(len(questions)), limit)))


def read_rows(rows: Iterable[Row], result: LoadResult, count: Callable[[Any], int], make: Callable[[Row], _T]) -> Iterator[_T]:
    """Yield what ``make`` gives for each row; a row for which it raises SchemaError is counted as malformed.

    ``count`` says how many questions a row's data show to hold; it must take anything and never raise. ``make`` counts in
    ``result`` each question that it leaves out.
    """
    for row in rows:
        questions, before = count(row.data), result.skipped.copy()
        try:
            made = make(row)
        except SchemaError as error:
            result.skipped = before
            result.unreadable(error, questions)
            continue
        result.asked += questions
        yield made


def read_questions(
    asked: Iterable[Any], where: str, result: LoadResult, make: Callable[[Any, str], Question | str]
) -> tuple[Question, ...]:
    """Return the questions of one row. ``make`` gives one of its data and place, or a reason to leave it out, or a SchemaError."""
    questions = []
    for index, item in enumerate(asked):
        try:
            made = make(item, f"{where} question {index}")
        except SchemaError as error:
            result.malformed(error)
            continue
        if isinstance(made, str):
            result.skip(made)
        else:
            questions.append(made if made.id else replace(made, id=str(index)))
    return tuple(questions)


def finish(instances: Iterable[Instance], options: CommonOptions, seed: int, result: LoadResult) -> Iterator[Instance]:
    """Yield the instances that have questions, at most so many and each with at most so many questions, under ids that differ."""
    ids, made = dict[str, int](), 0
    for instance in instances:
        if not instance.questions:
            result.notes[NO_QUESTIONS] += 1
            continue
        if options.max_instances and made >= options.max_instances:
            result.skip("over max_instances", len(instance.questions))
            continue
        made += 1
        name = free_id(instance.id, ids)
        result.notes["repeated ids numbered"] += name != instance.id
        drawn = result.draw(instance.questions, options.max_questions, random.Random(f"{instance.source}:{seed}:{name}"))
        kinds = (question if question.kind.strip() else replace(question, kind="single") for question in drawn)
        yield replace(instance, id=name, questions=number_repeats(kinds, result))


def free_id(name: str, taken: dict[str, int]) -> str:
    """Return an id that nothing has yet: the name, or the name with the next number that is free (``x``, ``x#2``).

    ``taken`` holds the ids given so far, each with the last number tried for it; the one given is added.
    """
    free = name
    while free in taken:
        taken[name] += 1
        free = f"{name}#{taken[name]}"
    taken[free] = 1
    return free


def number_repeats(questions: Iterable[Question], result: LoadResult) -> tuple[Question, ...]:
    """Return questions under ids that differ; what comes again gets a number (``x``, ``x#2``)."""
    taken, numbered = dict[str, int](), []
    for question in questions:
        name = free_id(question.id, taken)
        result.notes["repeated question ids numbered"] += name != question.id
        numbered.append(replace(question, id=name))
    return tuple(numbered)


# ------------------------------------------------------------------------------------------------ sources
Loader = Callable[[str, Any, int, TokenCounter], LoadResult]
"""Reads (a path, a Hub name or "" for generated data; options; seed; token counter); InputError if it cannot be read at all."""

Maker = Callable[[Row, Any, TokenCounter, LoadResult], Instance]
"""Makes the instance of (row, options, token counter), counting in the result each question that it leaves out."""


def by_row(
    make: Maker, count: Callable[[Any], int] = lambda data: 1, rows: Callable[[str, Any], Iterable[Row]] | None = None
) -> Loader:
    """Return the loader of a set of one instance a row; ``count`` as for ``read_rows``, ``rows`` reads (source, options)."""

    def load(source: str, options: Any, seed: int, count_tokens: TokenCounter) -> LoadResult:
        result = LoadResult()
        given = rows(source, options) if rows else iter_rows(source, options.split)
        made = read_rows(given, result, count, lambda row: make(row, options, count_tokens, result))
        result.instances = finish(made, options, seed, result)
        return result

    return load


@dataclass(frozen=True, slots=True)
class Source:
    """One entry of the registry.

    Attributes:
        name: What users call it.
        description: One line: what it reads and what it makes.
        loader: Reads it.
        options: Dataclass of its options, every field with a default.
        needs_input: Whether it reads a path or Hub name; generated data do not.
    """

    name: str
    description: str
    loader: Loader
    options: type[Any]
    needs_input: bool = True

    def parse(self, options: Mapping[str, Any] | None) -> Any:
        """Return the source's options dataclass; InputError for an unknown option or a value that does not fit."""
        return read(self.options, options, f"source {self.name!r}")

    def load(
        self,
        path_or_hub_name: str | Path | None = None,
        options: Mapping[str, Any] | None = None,
        seed: int = 0,
        count_tokens: TokenCounter = count_words_and_signs,
    ) -> LoadResult:
        """Load instances.

        Args:
            path_or_hub_name: Original file or folder, or a data set's name on the Hugging Face Hub; None for generated data.
            options: See the source's options dataclass.
            seed: Decides every random choice.
            count_tokens: Measures chunks and answers; whitespace-separated words unless a tokenizer's counter is given.

        Raises:
            InputError: If the input is missing, cannot be read or is not wanted, or an option does not fit.
        """
        given = "" if path_or_hub_name is None else str(path_or_hub_name)
        if bool(given) is not self.needs_input:
            what = "reads a file and none was given" if self.needs_input else f"is generated and was given {given!r}"
            fix = "give its path or its name on the Hub as input" if self.needs_input else "leave the input out"
            raise InputError(f"source {self.name!r} {what}", expected=self.description, fix=fix)
        return self.loader(given, self.parse(options), seed, count_tokens)
