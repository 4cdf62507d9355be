"""Small instances and results, for the tests of evaluations."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from memalpha.record.measure import IngestedMemory
from memalpha.record.rows import RESULTS_FILE, InstanceRow, QuestionRow
from memalpha.types import Answer, Chunk, Fact, FactAction, Instance, Question

STATE, CHANGE, RETRACT = FactAction.STATE, FactAction.CHANGE, FactAction.RETRACT

MARTA = Instance(  # three sessions: Marta moves, Hugo loses his job and a pet
    id="marta",
    source="synthetic",
    chunks=(
        Chunk(
            "Marta: I live in Oslo.\nHugo: I work as a baker.\nMarta: I drive a Ford.", "2024-01-01"
        ),
        Chunk(
            "Marta: I moved to Rome.\nHugo: I am no longer a baker.\nHugo: I have a pony as a pet.",
            "2024-02-01",
        ),
        Chunk("Hugo: I have a goat as a pet.\nHugo: I gave my pony away.", "2024-03-01"),
    ),
    questions=(
        Question("City of Marta?", ("Rome",), "bound", "latest", "Marta", ("Oslo",), (1,), "q0"),
        Question("Job of Hugo?", ("none",), "absent", "removed", "Hugo", ("baker",), (1,), "q1"),
        Question("Pets of Hugo?", ("goat",), "bound_all", "count", "Hugo", ("pony",), (2,), "q2"),
        Question("Car of Marta?", ("Ford",), "bound", "single", "Marta", (), (0,), "q3"),
        Question("City of Hugo?", ("Rome",), "bound", "cascade", "Hugo", ("Oslo",), (1,), "q4"),
        Question("Job of Marta?", ("none",), "absent", "absence", "Marta", (), (), "q5"),
    ),
    facts=(
        Fact(0, STATE, "Marta", "city", "Oslo"),
        Fact(0, STATE, "Hugo", "job", "baker"),
        Fact(0, STATE, "Marta", "car", "Ford"),
        Fact(1, CHANGE, "Marta", "city", "Rome", "Oslo"),
        Fact(1, RETRACT, "Hugo", "job", "baker"),
        Fact(1, STATE, "Hugo", "pet", "pony"),
        Fact(2, STATE, "Hugo", "pet", "goat"),
        Fact(2, RETRACT, "Hugo", "pet", "pony"),
    ),
)


def said(
    question: Question, answer: str | None, passages: Sequence[str] = (), score: float = 0.0
) -> QuestionRow:
    return QuestionRow(question.id, question.kind, question.text, score, answer, tuple(passages))


def recalled(question: Question, *passages: str, score: float = 0.0) -> QuestionRow:
    return said(question, Answer("\n".join(passages), passages).text, passages, score)


def counts(failed: int = 0, duplicate: int = 0, **applied: int) -> dict[str, int]:
    """Applied operations by kind, in one section."""
    named = {f"facts/{kind}": number for kind, number in applied.items()}
    calls = failed + duplicate + sum(applied.values())
    return {"calls": calls, "failed": failed, "duplicate": duplicate, **named}


def told(memory: IngestedMemory) -> tuple[int, ...]:
    """Inserts, updates, deletes, failures and duplicates."""
    row = result(operations=memory.operations)
    return tuple(map(row.count, ("insert", "update", "delete", "failed", "duplicate")))


def result(
    instance: str = "a",
    scores: Sequence[float] = (1.0, 0.0),
    kinds: Sequence[str] = (),
    *,
    system: str = "agent",
    **values: object,
) -> InstanceRow:
    """A result with made-up questions of the given scores and kinds."""
    kinds = kinds or ["single"] * len(scores)
    questions = tuple(
        QuestionRow(str(i), kind, f"question {i}?", score, "text", ("text",))
        for i, (score, kind) in enumerate(zip(scores, kinds, strict=True))
    )
    filled = {
        "set": "synthetic",
        "system": system,
        "reader": "recall",
        "seed": 0,
        "instance": instance,
        "chunks": 3,
        "input_tokens": 100,
        "memory_tokens": 40,
        "reader_tokens": 30.0,
        "write_calls": 3,
        "cut": 0,
        "seconds_write": 2.0,
        "seconds_read": 1.0,
        "operations": counts(insert=2),
        "entries": ("text",),
        "questions": questions,
    }
    return InstanceRow(**{**filled, **values})


def write_results(folder: Path, rows: Iterable[InstanceRow]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / RESULTS_FILE).open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row.to_json()) + "\n")
    return folder
