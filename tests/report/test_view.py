from __future__ import annotations

import math
from typing import Any

import pytest

from memalpha.memory.schema import MemorySchema
from memalpha.report.view import Call, Tone, calls, known, mean, number, printable, retrieved, rollout_accuracy, rollout_reward
from memalpha.runs import RunFolder


def rollout_of(run: RunFolder, name: str, instance: str) -> dict[str, Any]:
    return next(row["rollout"] for row in run.read_lines(f"held_out/{name}.jsonl") if row["result"]["instance"] == instance)


def test_calls_stand_with_the_change_they_made(finished_run: RunFolder) -> None:
    first, second = rollout_of(finished_run, "after", "ann")["steps"]
    evil = "Ann lives in Rome <script>alert(1)</script>"
    assert calls(first) == [Call(Tone.INSERT, "insert facts 1", evil, "", "")]
    update, refused = calls(second)
    assert update == Call(Tone.UPDATE, "update facts 1", "Ann lives in Oslo [bold red]x[/bold red] [/] \x1b[2J", evil, "")
    assert (refused.tone, refused.sign, refused.was) == (Tone.FAILED, "x", "")
    assert refused.note.startswith("unknown_id: ")
    (unread,) = calls(rollout_of(finished_run, "before", "ann")["steps"][1])
    assert (unread.tone, unread.head) == (Tone.FAILED, "no call")
    assert unread.note.startswith("unparsed: ")


def test_a_refused_call_between_applied_ones_takes_no_change() -> None:
    from memalpha.agent.codecs import make_codec
    from memalpha.agent.step import AgentStep
    from memalpha.memory.memory import Memory
    from memalpha.training.results import _change, _result
    from memalpha.types import Chunk

    schema = MemorySchema.load("facts")
    memory = Memory(schema)
    step = AgentStep.__new__(AgentStep)
    step.codec = make_codec("compact", schema)
    outcome = step.apply(memory, 0, Chunk("x"), "+ one\n+ one\n- 7\n+ two\n- 1\n= 2 three")
    found = calls({"results": [_result(r) for r in outcome.results], "changes": [_change(c) for c in outcome.changes]})
    assert [(call.sign, call.head, call.content, call.was) for call in found] == [
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
    assert retrieved(after, after["questions"][0]) == [("1", "[2023-02-03] Ann lives in Oslo [bold red]x[/bold red] [/] \x1b[2J")]
    assert rollout_accuracy({"steps": []}) is None


def test_unknown_numbers_are_dashes_and_never_zero() -> None:
    assert [number(value) for value in (None, math.nan, "3", True)] == ["–"] * 4
    assert number(-0.0001, 3, signed=True) == "+0.000"
    assert number(1234.56, 1) == "1,234.6"
    assert number(-0.25, 2, signed=True) == "-0.25"
    assert mean([1, None, 3, math.nan]) == 2.0
    assert mean([None]) is None
    assert known(2) == 2.0


def test_control_characters_are_spelt_out() -> None:
    assert printable("a\x1b[2J\x9b\x7f\r\n\tb") == "a\\x1b[2J\\x9b\\x7f\\x0d\n\tb"
