"""What an evaluation writes down: one line of JSON for each (set, system, reader, seed, instance), in ``results.jsonl``.

What always holds: a line is written once its instance is done, in one piece, and is never changed; an infrastructure failure is a
line with ``failed`` (its message) and without a score, and a resumed evaluation tries it again; nothing that a budget left out is
silent (``cut``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.errors import InputError
from memalpha.files import finite, known

RESULTS_FILE = "results.jsonl"
"""Name of the file inside an evaluation's folder."""


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
        duplicate: Inserts of what was there already: successes that changed nothing.
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
        id: Index of the question in its instance, as text, where the source gives none.
        kind: What is asked for (``Question.kind``).
        text: The question.
        score: In [0, 1]; NaN if the reader or judge failed (never a zero).
        answer: What the reader said; None if it failed.
        passages: What the reader was given, inside its budget, best first.
        error: Why it has no score, else None.
    """

    id: str
    kind: str
    text: str
    score: float
    answer: str | None
    passages: tuple[str, ...]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SystemResult:
    """One system on one instance with one reader.

    Attributes:
        set: Name of the set in the configuration.
        system: Name of the system in the configuration.
        reader: Name of the reader in the configuration.
        seed: Sampling seed; the first of the configuration where the system draws nothing.
        instance: Id of the instance.
        chunks: Chunks of the input.
        input_tokens: Tokens of the chunks, by the model's tokenizer.
        memory_tokens: Tokens that the system keeps between the input and the questions.
        reader_tokens: Mean tokens of what a question's reader saw.
        write_calls: Model calls made to write.
        cut_off: How many of those ended at their length limit.
        cut: Tokens that a budget left out of what the system would have kept or its reader would have read; what is counted is said
            in each system's module.
        seconds_write: Wall time of reading the input; shared evenly by the instances of a batch.
        seconds_read: Wall time of the questions; shared evenly by the questions of a batch.
        operations: What was done to the memory.
        entries: Texts of the final memory as the reader would see them; empty for a system that keeps the input as it is.
        questions: The scored questions, in order.
        failed: Why there is no result (an infrastructure failure), else None.
    """

    set: str
    system: str
    reader: str
    seed: int
    instance: str
    chunks: int
    input_tokens: int
    memory_tokens: int = 0
    reader_tokens: float = math.nan
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

    def to_json(self) -> dict[str, Any]:
        """Return the line as JSON-ready data; NaN is null."""
        found: dict[str, Any] = finite(asdict(self))
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SystemResult:
        """Read what ``to_json`` gave.

        Raises:
            InputError: If a field is missing, unknown or no such value.
        """
        try:
            found = dict(data)
            found["operations"] = OperationCounts(**found["operations"])
            found["questions"] = tuple(_question(question) for question in found["questions"])
            found["entries"] = tuple(found["entries"])
            found["reader_tokens"] = known(found["reader_tokens"])
            return cls(**found)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"a line of results does not fit: {error!r}", expected=f"the fields {[f.name for f in fields(cls)]}"
            ) from error


def read_results(folder: str | Path, *, latest: bool = True) -> Iterator[SystemResult]:
    """Iterate over the lines of an evaluation's folder, in the order they were written.

    Args:
        folder: The evaluation's folder, with ``results.jsonl``.
        latest: Give the last line of each key alone: one that failed and was tried again counts by its last attempt.

    Raises:
        InputError: If the file is missing or a line is damaged; names the line. A last line without its line break (its writer
            was killed) is left out.
    """
    path = Path(folder) / RESULTS_FILE
    if not path.is_file():
        raise InputError(f"no {path}", expected="the folder of an evaluation", fix="make one: memalpha evaluate --config FILE")
    if not latest:
        yield from _lines(path)
        return
    last = {result.key: number for number, result in enumerate(_lines(path))}
    for number, result in enumerate(_lines(path)):
        if last[result.key] == number:
            yield result


def _lines(path: Path) -> Iterator[SystemResult]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield SystemResult.from_json(json.loads(line.decode("utf-8")))
            except ValueError as error:
                raise InputError(
                    f"{path}, line {number} is damaged: {error}",
                    expected="one result a line",
                    fix="take the line out; the same memalpha evaluate command makes it again",
                ) from error


def _question(data: Mapping[str, Any]) -> QuestionResult:
    return QuestionResult(**{**data, "score": known(data["score"]), "passages": tuple(data["passages"])})


__all__ = [
    "OperationCounts", "QuestionResult", "RESULTS_FILE", "ResultKey", "SystemResult", "read_results",
]  # fmt: skip
