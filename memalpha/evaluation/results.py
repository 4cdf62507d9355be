"""Results of an evaluation: one JSON line for each (set, system, reader, seed, instance) in ``results.jsonl``.

Lines are appended and never changed. A failed reader or judge gives a line with ``failed`` and no score; a later run retries it and
appends a new line, which replaces the old one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, TypeAdapter

from memalpha.errors import InputError
from memalpha.files import finite, known

RESULTS_FILE = "results.jsonl"

Number = Annotated[float, BeforeValidator(known)]
"""A float; NaN is null in JSON."""


class ResultKey(NamedTuple):
    """Identifies a line."""

    set: str
    system: str
    reader: str
    seed: int
    instance: str


@dataclass(frozen=True, slots=True)
class OperationCounts:
    """Operations on a memory; ``update`` includes blocks, ``failed`` unparsed text; ``duplicate``: inserts of existing entries."""

    insert: int = 0
    update: int = 0
    delete: int = 0
    failed: int = 0
    duplicate: int = 0


@dataclass(frozen=True, slots=True)
class QuestionResult:
    """One scored question; ``id`` is the question's id or index.

    ``score`` is in [0, 1], NaN if the reader or judge failed (``error`` says why). ``answer`` is None if the reader failed.
    ``passages`` is what the reader got, best first.
    """

    id: str
    kind: str
    text: str
    score: Number
    answer: str | None
    passages: tuple[str, ...]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SystemResult:
    """One system on one instance with one reader; ``failed`` says why there is no result, else None.

    ``memory_tokens`` counts what is kept between input and questions, ``reader_tokens`` the mean a question's reader saw,
    ``cut_off`` the write calls that ended at their length limit, ``cut`` the tokens left out by a budget. Seconds are wall time, a
    batch's split evenly. ``seed`` is the first of the configuration if the system does not sample. ``entries`` is empty if the
    input is kept unchanged.
    """

    set: str
    system: str
    reader: str
    seed: int
    instance: str
    chunks: int
    input_tokens: int
    memory_tokens: int = 0
    reader_tokens: Number = math.nan
    write_calls: int = 0
    cut_off: int = 0
    cut: int = 0
    seconds_write: float = 0.0
    seconds_read: float = 0.0
    operations: OperationCounts = field(default_factory=OperationCounts)
    entries: tuple[str, ...] = ()
    questions: tuple[QuestionResult, ...] = ()
    failed: str | None = None

    @property
    def key(self) -> ResultKey:
        """Key of the line."""
        return ResultKey(self.set, self.system, self.reader, self.seed, self.instance)

    @property
    def accuracy(self) -> float:
        """Mean score of the questions; NaN if a score is missing or there are no questions."""
        return sum(question.score for question in self.questions) / len(self.questions) if self.questions else math.nan

    @property
    def scored(self) -> bool:
        """Whether the instance has a score."""
        return self.failed is None and not math.isnan(self.accuracy)

    def to_json(self) -> dict[str, Any]:
        """Return the line as JSON-ready data; NaN is null."""
        found: dict[str, Any] = finite(asdict(self))
        return found


@cache
def _reader() -> TypeAdapter[SystemResult]:
    return TypeAdapter(SystemResult)


def read_results(folder: str | Path) -> list[SystemResult]:
    """Return the last line of each key, in file order; an unfinished last line is ignored; InputError if missing or damaged."""
    path = Path(folder) / RESULTS_FILE
    if not path.is_file():
        raise InputError(f"no {path}", expected="the folder of an evaluation", fix="make one: memalpha evaluate --config FILE")
    last: dict[ResultKey, SystemResult] = {}
    for result in _lines(path):
        last.pop(result.key, None)
        last[result.key] = result
    return list(last.values())


def _lines(path: Path) -> Iterator[SystemResult]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield _reader().validate_python(json.loads(line.decode("utf-8")))
            except ValueError as error:
                raise InputError(
                    f"{path}, line {number} is damaged: {error}",
                    expected="one result a line",
                    fix="take the line out; the same memalpha evaluate command makes it again",
                ) from error
