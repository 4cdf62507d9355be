"""Calls, numbers and the growth of a memory as they are shown, against the real agent and memory that made them."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from memalpha.agent.codecs import make_codec
from memalpha.agent.step import AgentStep
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema
from memalpha.report.view import (
    SIGNS,
    Tone,
    calls,
    duration,
    entry_text,
    known,
    mean,
    memory_after_steps,
    number,
    printable,
    printable_lines,
)
from memalpha.training.results import _change, _entry, _result
from memalpha.types import Change, Chunk, Operation, OperationKind

TEXTS = st.sampled_from(["ann likes tea", "bob likes tea", "ann has a cat", "it rains", "<b>"])
CALLS = st.tuples(st.sampled_from([OperationKind.INSERT, OperationKind.UPDATE, OperationKind.DELETE]), TEXTS, st.integers(1, 6))
STEPS = st.lists(st.lists(CALLS, max_size=5), min_size=1, max_size=6)


# ---------------------------------------------------------------------------------------------------- calls and numbers
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
    return {"steps": found}, truth


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


def test_an_entry_from_before_the_record_is_known_from_its_change() -> None:
    entry = {"id": "7", "section": "facts", "content": "old", "timestamp": None}
    ((shown,),) = memory_after_steps({"steps": [{"changes": [{"before": entry, "after": {**entry, "content": "new"}}]}]})
    assert (shown.tone, shown.was, shown.text) == (Tone.UPDATE, "old", "new")
