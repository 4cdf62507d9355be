"""What the loaders of documents share: rows to instances and items to questions, with nothing lost between.

What always holds: a row that cannot be read is skipped whole, with as many questions as it shows to hold (at least one), and
nothing it had counted before stays counted; a question that cannot be read is skipped alone; after ``finish`` no instance is
without a question or with a blank kind, and no id of an instance or of a question in one comes twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from memalpha.data.rows import Row
from memalpha.data.source import LoadResult
from memalpha.errors import InputError, SchemaError
from memalpha.types import Instance, Question

_T = TypeVar("_T")

NO_KIND = "single"
"""Kind of a question whose source names none, or a blank one."""

OVER_QUESTIONS = "over max_questions"
"""Reason of a question that was not drawn."""

NO_QUESTIONS = "instances without questions dropped"
"""Note of the instances that have no question, or none that could be kept."""

OVER_INSTANCES = "over max_instances"
"""Reason of the questions of an instance that is not wanted any more."""


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """Options that every set of documents has.

    Attributes:
        max_questions: Most questions of an instance, drawn evenly (0 = all).
        max_instances: Stop after so many instances that have questions (0 = off).
        split: Split of a data set on the Hub.
    """

    max_questions: int = 0
    max_instances: int = 0
    split: str = "train"

    def __post_init__(self) -> None:
        """Check the bounds; InputError names the first that cannot be."""
        check_at_least(self, 0, "max_questions", "max_instances")


def check_at_least(options: Any, least: int, *names: str) -> None:
    """Raise InputError for the first of the named options that is below ``least``."""
    for name in names:
        if (value := getattr(options, name)) < least:
            expected = f"at least {least}" + (" (0 = off)" if least == 0 else "")
            raise InputError(f"option {name!r} is {value}", expected=expected)


def read_rows(rows: Iterable[Row], result: LoadResult, held: Callable[[Any], int], make: Callable[[Row], _T]) -> Iterator[_T]:
    """Yield what ``make`` gives for each row; a row for which it raises SchemaError is counted as malformed.

    Args:
        rows: Read lazily.
        result: Keeps the counts.
        held: How many questions a row's data show to hold; must take anything and never raise.
        make: Makes something of a row, counting in ``result`` each question that it leaves out.
    """
    for row in rows:
        questions, before = held(row.data), result.skipped.copy()
        try:
            made = make(row)
        except SchemaError as error:
            result.skipped = before
            result.saw(max(questions, 1))
            result.malformed(str(error), questions)
            continue
        result.saw(questions)
        yield made


def read_questions(
    asked: Sequence[Any], where: str, result: LoadResult, make: Callable[[Any, str], Question | str]
) -> Iterator[Question]:
    """Yield the questions of one row.

    Args:
        asked: Their data.
        where: The row's place.
        result: Keeps the counts.
        make: Takes one question's data and place; gives it, or the reason to leave it out, or raises SchemaError.
    """
    for index, item in enumerate(asked):
        try:
            made = make(item, f"{where} question {index}")
        except SchemaError as error:
            result.malformed(str(error))
            continue
        if isinstance(made, str):
            result.skip(made)
        else:
            yield made if made.id else replace(made, id=str(index))


def finish(instances: Iterable[Instance], options: CommonOptions, seed: int, result: LoadResult) -> Iterator[Instance]:
    """Yield the instances that have questions, at most so many and each with at most so many questions, under ids that differ."""
    ids, made = dict[str, int](), 0
    for instance in instances:
        if not instance.questions:
            result.notes[NO_QUESTIONS] += 1
            continue
        if options.max_instances and made >= options.max_instances:
            result.skip(OVER_INSTANCES, len(instance.questions))
            continue
        made += 1
        name = free_id(instance.id, ids)
        if name != instance.id:
            result.notes["repeated ids numbered"] += 1
            instance = replace(instance, id=name)
        rng = random.Random(f"{instance.source}:{seed}:{instance.id}")
        drawn = draw_questions(instance.questions, options.max_questions, rng, result)
        kinds = (question if question.kind.strip() else replace(question, kind=NO_KIND) for question in drawn)
        yield replace(instance, questions=tuple(number_repeats(kinds, result)))


def free_id(name: str, taken: dict[str, int]) -> str:
    """Return an id that nothing has yet: the name, or the name with the next number that is free (``x``, ``x#2``).

    Args:
        name: The id wanted.
        taken: Ids given so far, each with the last number tried for it; the one given is added.
    """
    if name not in taken:
        taken[name] = 1
        return name
    while True:
        taken[name] += 1
        if (free := f"{name}#{taken[name]}") not in taken:
            taken[free] = 1
            return free


def number_repeats(questions: Iterable[Question], result: LoadResult) -> Iterator[Question]:
    """Yield questions under ids that differ; what comes again gets a number (``x``, ``x#2``)."""
    taken = dict[str, int]()
    for question in questions:
        name = free_id(question.id, taken)
        result.notes["repeated question ids numbered"] += name != question.id
        yield question if name == question.id else replace(question, id=name)


def load_rows(
    rows: Iterable[Row],
    options: CommonOptions,
    seed: int,
    held: Callable[[Any], int],
    make: Callable[[Row, LoadResult], Instance],
) -> LoadResult:
    """Return what a source of one instance a row gives; rows are read as the instances are taken.

    Args:
        rows: Read lazily.
        options: How many instances and questions to keep.
        seed: Draws the questions.
        held: As for ``read_rows``.
        make: Makes the instance of a row, counting in the result each question that it leaves out.
    """
    result = LoadResult()
    result.instances = finish(read_rows(rows, result, held, lambda row: make(row, result)), options, seed, result)
    return result


def draw_questions(questions: Sequence[Question], limit: int, rng: random.Random, result: LoadResult) -> tuple[Question, ...]:
    """Return at most ``limit`` questions (0 = all), drawn evenly and in their order; the others are counted."""
    if not limit or len(questions) <= limit:
        return tuple(questions)
    result.skip(OVER_QUESTIONS, len(questions) - limit)
    return tuple(questions[i] for i in sorted(rng.sample(range(len(questions)), limit)))
