from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema
from memalpha.report.growth import Event, histories, memory_after_steps
from memalpha.report.view import Tone, entry_text
from memalpha.runs import RunFolder
from memalpha.training.results import _change, _entry
from memalpha.types import Change, Operation, OperationKind

TEXTS = st.sampled_from(["ann likes tea", "bob likes tea", "ann has a cat", "it rains", "<b>"])
CALLS = st.tuples(st.sampled_from([OperationKind.INSERT, OperationKind.UPDATE, OperationKind.DELETE]), TEXTS, st.integers(1, 6))


def record(steps: list[list[tuple[OperationKind, str, int]]]) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """A rollout's record made by the real memory, and the memory's texts by id after each step."""
    memory = Memory(MemorySchema.load("facts"))
    found, truth = [], []
    for index, calls in enumerate(steps):
        changes = []
        for kind, text, entry in calls:
            content = None if kind is OperationKind.DELETE else text
            operation = Operation(kind, "facts", content, None if kind is OperationKind.INSERT else str(entry))
            before = {entry.id: entry for entry in memory}
            result = memory.apply(operation, chunk=index)
            after = {entry.id: entry for entry in memory}
            if result.changed:
                assert result.entry_id is not None
                changes.append(_change(Change(before.get(result.entry_id), after.get(result.entry_id))))
        found.append({"changes": changes})
        truth.append({entry.id: entry_text(_entry(entry) or {}) for entry in memory})
    return {"steps": found, "questions": [], "memory": [_entry(entry) for entry in memory]}, truth


@given(st.lists(st.lists(CALLS, max_size=5), min_size=1, max_size=6))
def test_the_memory_after_each_step_is_the_memory_that_was(steps: list[list[tuple[OperationKind, str, int]]]) -> None:
    rollout, truth = record(steps)
    before: dict[str, str] = {}
    for shown, after in zip(memory_after_steps(rollout), truth, strict=True):
        left = {entry.id: entry.text for entry in shown if entry.tone is not Tone.DELETE}
        assert left == after
        gone = {entry.id for entry in shown if entry.tone is Tone.DELETE}
        assert gone >= before.keys() - after.keys()
        assert gone.isdisjoint(after)
        for entry in shown:
            if entry.tone is Tone.INSERT:
                assert entry.id not in before
            elif entry.tone is Tone.UPDATE:
                assert entry.was == before[entry.id]
            elif entry.tone is None:
                assert before[entry.id] == after[entry.id]
        before = after


@given(st.lists(st.lists(CALLS, max_size=5), min_size=1, max_size=6))
def test_histories_hold_every_write_and_end_with_the_final_memory(steps: list[list[tuple[OperationKind, str, int]]]) -> None:
    rollout, truth = record(steps)
    found = histories(rollout)
    assert {name: history.text for name, history in found.items() if history.alive} == truth[-1]
    assert sum(len(history.events) for history in found.values()) == sum(len(step["changes"]) for step in rollout["steps"])
    assert [history.number for history in found.values()] == list(range(1, len(found) + 1))
    for history in found.values():
        assert history.events[0].tone is Tone.INSERT
        assert history.alive == (history.events[-1].tone is not Tone.DELETE)
        assert history.written is not None
        written = truth[history.written].get(history.id)
        assert written in (history.text, None)  # None: written and deleted inside that step


def test_an_entry_leads_to_its_writer_and_to_the_questions_that_used_it(finished_run: RunFolder) -> None:
    rollout = next(row["rollout"] for row in finished_run.read_lines("held_out/after.jsonl"))
    (history,) = histories(rollout).values()
    old, new = (
        "[2023-01-02] Ann lives in Rome <script>alert(1)</script>",
        "[2023-02-03] Ann lives in Oslo [bold red]x[/bold red] [/] \x1b[2J",
    )
    assert history.events == (Event(0, Tone.INSERT, old), Event(1, Tone.UPDATE, new))
    assert (history.written, history.questions, history.alive, history.text) == (1, (0,), True, new)


def test_an_entry_from_before_the_record_is_known_from_its_change() -> None:
    entry = {"id": "7", "section": "facts", "content": "old", "timestamp": None}
    change = {"before": entry, "after": {**entry, "content": "new"}}
    rollout = {
        "steps": [{"changes": [change]}],
        "questions": [{"entries": ["7", "8"]}],
        "memory": [change["after"], {**entry, "id": "8"}],
    }
    ((shown,),) = memory_after_steps(rollout)
    assert (shown.tone, shown.was, shown.text) == (Tone.UPDATE, "old", "new")
    found = histories(rollout)
    assert [(h.id, h.written, h.questions) for h in found.values()] == [("7", 0, (0,)), ("8", None, (0,))]
