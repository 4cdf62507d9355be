"""The results of an evaluation: one line of JSON for each (set, system, reader, seed, instance), in ``results.jsonl``.

A line is written once its instance is done and is never changed. If a reader or judge failed, the line says why (``failed``) and
has no score; a later run tries it again and appends another line, which then counts.
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
"""A float that JSON holds as null where it is NaN."""


class ResultKey(NamedTuple):
    """What identifies a line."""

    set: str
    system: str
    reader: str
    seed: int
    instance: str


@dataclass(frozen=True, slots=True)
class OperationCounts:
    """What was done to a memory over an instance; all zero for a system without operations.

    Attributes:
        insert: Applied inserts.
        update: Applied updates, replacements of a block included.
        delete: Applied deletes.
        failed: Calls that did not succeed, unparsed stretches included.
        duplicate: Inserts of what was there already; they succeed and change nothing.
    """

    insert: int = 0
    update: int = 0
    delete: int = 0
    failed: int = 0
    duplicate: int = 0


@dataclass(frozen=True, slots=True)
class QuestionResult:
    """One scored question.

    Attributes:
        id: The question's id, or its index in the instance.
        kind: ``Question.kind``.
        text: The question.
        score: In [0, 1]; NaN if the reader or judge failed.
        answer: What the reader said; None if it failed.
        passages: What the reader was given, inside its budget, best first.
        error: Why it has no score, else None.
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
    """One system on one instance with one reader.

    Attributes:
        set: Name of the set.
        system: Name of the system.
        reader: Name of the reader.
        seed: Sampling seed; the first of the configuration where the system draws nothing.
        instance: Id of the instance.
        chunks: Chunks of the input.
        input_tokens: Tokens of the chunks, by the model's tokenizer.
        memory_tokens: Tokens kept between the input and the questions.
        reader_tokens: Mean tokens of what a question's reader saw.
        write_calls: Model calls made to write.
        cut_off: How many of those ended at their length limit.
        cut: Tokens that a budget left out of what is kept or read.
        seconds_write: Wall time of reading the input; a batch's, shared evenly by its instances.
        seconds_read: Wall time of the questions; a batch's, shared evenly by its questions.
        operations: What was done to the memory.
        entries: Texts of the final memory as the reader sees them; empty for a system that keeps the input as it is.
        questions: The scored questions, in order.
        failed: Why there is no result (a reader or judge failed), else None.
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
        """What identifies the line."""
        return ResultKey(self.set, self.system, self.reader, self.seed, self.instance)

    @property
    def accuracy(self) -> float:
        """Mean score of the questions; NaN if any has none, or there are none."""
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
    """Return the results of an evaluation's folder, in the order they were written; of each key the last line alone.

    Raises:
        InputError: If the file is missing or a line is damaged. A last line without its line break (its writer was killed) is left
            out.
    """
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
