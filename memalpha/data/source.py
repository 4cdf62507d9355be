"""What a data source is: a name, a loader, its options, and a ledger of what the loader left out and why.

What always holds for a loader: every question of its input is in an instance or counted in ``skipped`` under its reason (each
loader counts in ``asked`` what it reads, apart from what becomes of it, and ``memalpha.data.prepare`` compares); the same input,
options, seed and token counter give the same instances; a row it cannot read is counted as ``malformed`` with its place kept in
``problems``, and a file it cannot read at all is one InputError.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from memalpha.data.counting import count_words_and_signs
from memalpha.data.options import parse_options
from memalpha.errors import InputError
from memalpha.protocols import TokenCounter
from memalpha.types import Instance

log = logging.getLogger(__name__)

MALFORMED = "malformed"
"""Reason of a question, or a row that may hold questions, that does not have the published form."""

_MAX_PROBLEMS = 20


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

    def saw(self, questions: int = 1) -> None:
        """Count questions of the input, when they are read and before it is known what becomes of them."""
        self.asked += questions

    def skip(self, reason: str, questions: int = 1) -> None:
        """Count questions left out."""
        if questions:
            self.skipped[reason] += questions

    def malformed(self, problem: str, questions: int = 1) -> None:
        """Count a row that cannot be read, as the number of questions it holds or 1 where that cannot be told.

        Args:
            problem: Its place and fault; the first few are kept and logged.
            questions: How many questions are lost with it.
        """
        self.skipped[MALFORMED] += max(questions, 1)
        self.problem(problem)

    def problem(self, problem: str) -> None:
        """Keep and log a fault, unless many were kept already."""
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(problem.replace("\n  ", "; "))
            log.warning("skipped: %s", self.problems[-1])


class Loader(Protocol):
    """Reads one source."""

    def __call__(self, source: str, options: Any, seed: int, count_tokens: TokenCounter) -> LoadResult:
        """Read ``source`` (a path, a Hub name, or "" for generated data); InputError if it cannot be read at all."""
        ...


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
    options: Callable[..., Any]
    needs_input: bool = True

    def parse(self, options: Mapping[str, Any] | None) -> Any:
        """Return the source's options dataclass; InputError for an unknown option or a value that does not fit."""
        return parse_options(self.options, options, self.name)  # type: ignore[arg-type]

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
