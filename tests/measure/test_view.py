"""Calls, numbers and the growth of a memory as they are shown, against the real agent and memory
that made them; the terminal."""

import math
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from memalpha.agent.step import AgentStep
from memalpha.measure import view
from memalpha.measure.site import rollouts_table
from memalpha.measure.tables import terminal
from memalpha.measure.view import (
    SIGNS,
    Tone,
    calls,
    duration,
    mean,
    memory_after_steps,
    number,
    numeric,
    printable,
    show_rollout,
)
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema
from memalpha.record.folder import RunFolder
from memalpha.record.rows import _change, _result
from memalpha.types import Chunk, Operation, OperationKind

TEXTS = st.sampled_from(["ann likes tea", "bob likes tea", "ann has a cat", "it rains", "<b>"])
CALLS = st.tuples(
    st.sampled_from([OperationKind.INSERT, OperationKind.UPDATE, OperationKind.DELETE]),
    TEXTS,
    st.integers(1, 6),
)
STEPS = st.lists(st.lists(CALLS, max_size=5), min_size=1, max_size=6)


def test_a_refused_call_between_applied_ones_takes_no_change(agent: AgentStep) -> None:
    schema, step = MemorySchema.load("facts"), agent
    outcome = step.apply(Memory(schema), 0, Chunk("x"), "+ one\n+ one\n- 7\n+ two\n- 1\n= 2 three")
    found = calls(
        {
            "results": [_result(r) for r in outcome.results],
            "changes": [_change(c) for c in outcome.changes],
        }
    )
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
    cases = {
        "+.000": number(-0.0001, signed=True),
        "1,234.6": number(1234.56, 1),
        "-0.25": number(-0.25, 2, signed=True),
        "-.250": number(-0.25, signed=True),
        ".412": number(0.4125),
        "1.000": number(1.0),
        "100.500": number(100.5),
        "0.5": number(0.5, 1),
    }
    assert list(cases) == list(cases.values())
    assert [mean([1, None, 3, math.nan]), mean([None]), numeric(2)] == [2.0, None, 2.0]
    assert [duration(value) for value in (1.25, 119.96, 600, 7200, None)] == [
        "1.2 s",
        "120.0 s",
        "10.0 min",
        "2.0 h",
        "– s",
    ]


def test_what_would_steer_a_terminal_is_escaped() -> None:
    assert printable("é 世 👩\u200d💻 [b]") == "é 世 👩\u200d💻 [b]"
    assert (
        printable("a\nb\tc\x1b\x07\u202e\u200b\u2028\x9b")
        == "a\\nb\\tc\\x1b\\x07\\u202e\\u200b\\u2028\\x9b"
    )
    assert (
        view.printable_lines("a\x1b[2J\x9b\x7f\r\n\tb\u2066")
        == "a\\x1b[2J\\x9b\\x7f\\r\n\tb\\u2066"
    )


@given(STEPS)
def test_the_memory_after_each_step_is_the_memory_that_was(
    steps: list[list[tuple[OperationKind, str, int]]],
) -> None:
    memory = Memory(MemorySchema.load("facts"))
    for text in ("a", "b"):  # what a rollout began with
        memory.apply(Operation(OperationKind.INSERT, "facts", text))
    states = [{entry.id: view.entry_text(asdict(entry)) for entry in memory}]
    recorded = []
    for index, step in enumerate(steps):
        start = len(memory.changes)
        for kind, text, key in step:
            entry = None if kind is OperationKind.INSERT else str(key)
            content = None if kind is OperationKind.DELETE else text
            memory.apply(Operation(kind, "facts", content, entry), chunk=index)
        recorded.append({"changes": [_change(change) for change in memory.changes[start:]]})
        states.append({entry.id: view.entry_text(asdict(entry)) for entry in memory})
    rollout = {"steps": recorded, "memory": [asdict(entry) for entry in memory]}
    for shown, (before, after) in zip(memory_after_steps(rollout), pairwise(states), strict=True):
        tones = {entry.id: entry.tone for entry in shown}
        assert {e.id: e.text for e in shown if e.tone is not Tone.DELETE} == after
        assert before.keys() <= tones.keys()
        for entry in shown:
            if entry.tone is not Tone.DELETE:
                changed = before.get(entry.id) != entry.text
                assert (entry.tone is Tone.INSERT) is (entry.id not in before)
                assert entry.tone or not changed
                assert entry.was == (before[entry.id] if entry.tone is Tone.UPDATE else "")


def rollout_of(run: RunFolder, name: str, instance: str) -> dict[str, Any]:
    return next(
        row["rollout"]
        for row in run.read_lines(f"held_out/{name}.jsonl")
        if row["instance"] == instance
    )


def shown(item: Any, *, width: int = 100) -> str:
    console = Console(width=width, soft_wrap=True, highlight=False, color_system=None)
    with console.capture() as capture:
        if isinstance(item, dict):
            show_rollout(item, console)
        else:
            console.print(item)
    return capture.get()


def lines_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_rollout_is_shown_by_value(finished_run: RunFolder, agent: AgentStep) -> None:
    count = agent.encoder.count
    first, last = (
        "Ann lives in Rome <script>alert(1)</script>",
        "Ann lives in Oslo [bold red]x[/bold red] [/] \x1b[2J",
    )
    chunks = (
        "Ann: I live in Rome. <script>alert(1)</script>",
        "Ann: I live in Oslo now. [bold red]x[/bold red] [/] \x1b[2J",
    )
    read = sum(map(count, chunks))
    lines = lines_of(shown(rollout_of(finished_run, "after", "ann"), width=160))
    for line in (
        f"ann from hand, 2 chunks, {read} tokens read",
        "Ann: I live in Rome. <script>alert(1)</script>",
        f"memory (1 entry, {count(first)} tokens afterwards)",
        "+ insert facts 1 Ann lives in Rome <script>alert(1)</script>",
        f"reward accuracy 1.000 tool 1.000 compression {number(1 - count(last) / read)} content – "
        "total 1.500",
        "~ facts 1 [2023-01-02] Ann lives in Rome <script>alert(1)</script> → [2023-02-03] Ann lives in Oslo",
        "x delete facts 9 unknown_id:",
        "question 1 Where does Ann live? latest",
        "gold Oslo",
        "stale Rome",
        "score 1.00",
        "answer [2023-02-03] Ann lives in Oslo [bold red]x[/bold red] [/] \\x1b[2J",
        "retrieved 1 [2023-02-03] Ann lives in Oslo [bold red]x[/bold red] [/] \\x1b[2J",
        f"accuracy 1.000 mean reward 1.375 memory 1 entry, {count(last)} tokens",
    ):
        assert any(found.startswith(line) for found in lines), line


def test_markup_and_control_characters_of_the_data_stay_text(finished_run: RunFolder) -> None:
    evil = rollout_of(finished_run, "after", "ann")
    hostile = "[/red] [link=x]y[/link] \x1b]0;title\x07\u202e"
    for step in evil["steps"]:
        step.update(text=hostile, time=hostile, completion=hostile)
        for result in step["results"]:
            result["message"] = hostile
            if result["operation"]:
                result["operation"].update(section=hostile, content=hostile)
        for change in step["changes"]:
            change["after"].update(section=hostile, id=hostile, content=hostile, timestamp=hostile)
    evil["questions"][0].update(
        question=hostile,
        kind=hostile,
        answer=hostile,
        answers=[hostile],
        stale=[hostile],
        error=hostile,
    )
    evil.update(instance=hostile, source=hostile)
    text = shown(evil, width=400)
    assert not [char for char in text if not char.isprintable() and char != "\n"]
    # the heading 2, each chunk's panel 2, three calls' section and text 6, one note 1, two changes
    # 4 each, the question 6
    assert (
        text.count("[/red] [link=x]y[/link] \\x1b]0;title\\x07\\u202e")
        == 2 + 2 * 2 + 6 + 1 + 2 * 4 + 6
    )


def test_silence_and_advantages_are_said_and_long_lines_wrap(finished_run: RunFolder) -> None:
    rollout = rollout_of(finished_run, "after", "train-3-0")
    narrow = shown(rollout, width=40)
    assert narrow.count("none: the policy kept silent") == 2 and narrow.count("  unchanged") == 3
    assert max(map(len, narrow.splitlines())) <= 40
    assert [word for word in rollout["steps"][0]["text"].split() if word not in narrow] == []
    worst = list(finished_run.read_lines("trajectories/step-000002-rank-0.jsonl"))[1]
    assert [
        line.split("advantage ")[1] for line in shown(worst).splitlines() if "advantage" in line
    ] == ["-.500", "-.250"]
    worst["questions"][0].update(score=None, answer=None, error="the reader is down")
    assert "score – could not be scored: the reader is down" in lines_of(shown(worst))


def test_the_list_says_how_to_show_each(finished_run: RunFolder, bare_run: RunFolder) -> None:
    lines = lines_of(shown(terminal(rollouts_table(finished_run)), width=80))
    # rewards: accuracy + tool / 2; before: ann (.5 + 0) / 2, bob 1.5, chat 0
    assert f"--held-out before --rollout N 0 to 2 {number((0.25 + 1.5 + 0) / 3)} .333" in lines
    assert "--step 1 --rollout N 0 to 1 .750 .500" in lines
    assert "--step 2 --rollout N 0 to 1 .750 .500" in lines
    assert "no rollouts yet" in shown(terminal(rollouts_table(bare_run)))
