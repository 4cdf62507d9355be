"""Calls, numbers and the growth of a memory as they are shown, against the real agent and memory that made them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.agent.codecs import make_codec
from memalpha.agent.step import AgentStep
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema
from memalpha.report.view import (
    SIGNS,
    Call,
    Event,
    Tone,
    calls,
    duration,
    entry_text,
    histories,
    known,
    mean,
    memory_after_steps,
    number,
    printable,
    printable_lines,
    rollout_accuracy,
    rollout_reward,
)
from memalpha.runs import RunFolder
from memalpha.training.results import _change, _entry, _result
from memalpha.types import Change, Chunk, Operation, OperationKind

TEXTS = st.sampled_from(["ann likes tea", "bob likes tea", "ann has a cat", "it rains", "<b>"])
CALLS = st.tuples(st.sampled_from([OperationKind.INSERT, OperationKind.UPDATE, OperationKind.DELETE]), TEXTS, st.integers(1, 6))
STEPS = st.lists(st.lists(CALLS, max_size=5), min_size=1, max_size=6)
ROME = "Ann lives in Rome <script>alert(1)</script>"
OSLO = "Ann lives in Oslo [bold red]x[/bold red] [/] \x1b[2J"


def rollout_of(run: RunFolder, name: str, instance: str) -> dict[str, Any]:
    return next(row["rollout"] for row in run.read_lines(f"held_out/{name}.jsonl") if row["result"]["instance"] == instance)


# ---------------------------------------------------------------------------------------------------- calls and numbers
def test_calls_stand_with_the_change_they_made(finished_run: RunFolder) -> None:
    first, second = rollout_of(finished_run, "after", "ann")["steps"]
    assert calls(first) == [Call(Tone.INSERT, "insert facts 1", ROME, "", "")]
    update, refused = calls(second)
    assert update == Call(Tone.UPDATE, "update facts 1", OSLO, ROME, "")
    assert (refused.tone, refused.was) == (Tone.FAILED, "")
    assert refused.note.startswith("unknown_id: ")
    (unread,) = calls(rollout_of(finished_run, "before", "ann")["steps"][1])
    assert (unread.tone, unread.head) == (Tone.FAILED, "no call")
    assert unread.note.startswith("unparsed: ")


def test_a_refused_call_between_applied_ones_takes_no_change() -> None:
    schema = MemorySchema.load("facts")
    step = AgentStep.__new__(AgentStep)
    step.codec = make_codec("compact", schema)
    outcome = step.apply(Memory(schema), 0, Chunk("x"), "+ one\n+ one\n- 7\n+ two\n- 1\n= 2 three")
    found = calls({"results": [_result(r) for r in outcome.results], "changes": [_change(c) for c in outcome.changes]})
    assert [(SIGNS[call.tone], call.head, call.content, call.was) for call in found] == [
        ("+", "insert facts 1", "one", ""),
        ("=", "insert facts 1", "one", ""),
        ("x", found[2].head, "", ""),
        ("+", "insert facts 2", "two", ""),
        ("-", "delete facts 1", "", "one"),
        ("~", "update facts 2", "three", "two"),
    ]
    assert found[1].note == "duplicate: 1 says so already"


def test_rollout_numbers_are_hand_worked(finished_run: RunFolder) -> None:
    after = rollout_of(finished_run, "after", "ann")
    assert rollout_accuracy(after) == 1.0
    # 1 accuracy + 0.5 tool: both calls of the first chunk's one succeed, one of the second's two does
    assert rollout_reward(after) == pytest.approx((1.5 + 1.25) / 2)
    assert rollout_reward({"steps": [{"total": 1.0}, {"total": None}]}) is None
    assert rollout_accuracy({"steps": []}) is None


def test_unknown_numbers_are_dashes_and_never_zero() -> None:
    assert [number(value) for value in (None, math.nan, "3", True)] == ["–"] * 4
    assert [number(-0.0001, 3, signed=True), number(1234.56, 1), number(-0.25, 2, signed=True)] == ["+0.000", "1,234.6", "-0.25"]
    assert [mean([1, None, 3, math.nan]), mean([None]), known(2)] == [2.0, None, 2.0]
    assert [duration(value) for value in (1.25, 119.96, 600, 7200, None)] == ["1.2 s", "120.0 s", "10.0 min", "2.0 h", "– s"]


def test_what_would_steer_a_terminal_is_escaped() -> None:
    assert printable("é 世 👩\u200d💻 [b]") == "é 世 👩\u200d💻 [b]"
    assert printable("a\nb\tc\x1b\x07\u202e\u200b\u2028\x9b") == "a\\nb\\tc\\x1b\\x07\\u202e\\u200b\\u2028\\x9b"
    assert printable_lines("a\x1b[2J\x9b\x7f\r\n\tb\u2066") == "a\\x1b[2J\\x9b\\x7f\\r\n\tb\\u2066"


# ---------------------------------------------------------------------------------------------------- the memory
def record(steps: list[list[tuple[OperationKind, str, int]]]) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """A rollout's record made by the real memory, and the memory's texts by id after each step."""
    memory = Memory(MemorySchema.load("facts"))
    found, truth = [], []
    for index, made in enumerate(steps):
        changes = []
        for kind, text, entry in made:
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


@given(STEPS)
def test_the_memory_after_each_step_is_the_memory_that_was(steps: list[list[tuple[OperationKind, str, int]]]) -> None:
    rollout, truth = record(steps)
    before: dict[str, str] = {}
    for shown, after in zip(memory_after_steps(rollout), truth, strict=True):
        assert {entry.id: entry.text for entry in shown if entry.tone is not Tone.DELETE} == after
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


@given(STEPS)
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
        assert truth[history.written].get(history.id) in (history.text, None)  # None: written and deleted inside that step


def test_an_entry_leads_to_its_writer_and_to_the_questions_that_used_it(finished_run: RunFolder) -> None:
    (history,) = histories(rollout_of(finished_run, "after", "ann")).values()
    old, new = f"[2023-01-02] {ROME}", f"[2023-02-03] {OSLO}"
    assert history.events == [Event(0, Tone.INSERT, old), Event(1, Tone.UPDATE, new)]
    assert (history.written, history.questions, history.alive, history.text) == (1, [0], True, new)


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
    assert [(h.id, h.written, h.questions) for h in histories(rollout).values()] == [("7", 0, [0]), ("8", None, [0])]
