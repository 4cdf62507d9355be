"""The script that counts right calls, against calls judged by hand and against the keeper that makes no mistake."""

import random

import right_calls

from memalpha.data.synthetic import PRESETS, generate
from memalpha.data.teacher import teacher_operations
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema
from memalpha.types import Fact, FactAction

SAID = [Fact(0, FactAction.STATE, "Ann", "city", "Oslo"), Fact(0, FactAction.STATE, "Bo", "pet", "dog")]
THEN = [Fact(1, FactAction.CHANGE, "Ann", "city", "Rome", "Oslo"), Fact(1, FactAction.RETRACT, "Bo", "pet", "dog")]


def result(kind, entry, content=None, code="applied", ok=True):
    return {"ok": ok, "code": code, "entry": entry, "operation": {"kind": kind, "content": content}}


def test_calls_judged_by_hand():
    first = [result("insert", "1", "Ann city Oslo"), result("insert", "2", "Bo pet dog"), result("insert", "3", "Ann pet dog")]
    second = [
        result("update", "1", "Ann city Rome"),
        result("update", "3", "Ann city Rome"),  # the right words in the wrong place
        result("delete", "2"),
        result("delete", "1"),  # it says what was changed by now, and what the chunk is about
        result("insert", "3", "x", code="duplicate"),
        {"ok": False, "code": "unparsed", "entry": None, "operation": None},
    ]
    steps = [{"chunk": t, "results": results} for t, results in enumerate([first, second, [], first[:1], []])]
    counts = right_calls.count_rollout(steps, [*SAID, *THEN, Fact(4, FactAction.STATE, "Bo", "job", "cook")])
    assert counts == {
        "insert": 4, "insert_right": 2, "update": 2, "update_right": 1, "delete": 2, "delete_right": 2, "duplicate": 1, "failed": 1,
        "session_with_facts": 3, "session_with_facts_silent": 1, "session_without": 2, "session_without_silent": 1,
    }  # fmt: skip


def test_the_keeper_is_always_right():
    for dialogue in generate(5, 0, PRESETS["small"]):
        memory, steps = Memory(MemorySchema.load("facts")), []
        for chunk in range(len(dialogue.chunks)):
            results = []
            for operation in teacher_operations(dialogue, chunk, memory, random.Random(0)):
                done = memory.apply(operation, chunk=chunk)
                results.append(result(operation.kind, done.entry_id, operation.content, done.code, done.ok))
            steps.append({"chunk": chunk, "results": results})
        counts = right_calls.count_rollout(steps, dialogue.facts)
        assert counts["insert"] == counts["insert_right"] > 0
        assert all(counts[kind] == counts[f"{kind}_right"] for kind in ("update", "delete"))
