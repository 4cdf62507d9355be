"""What a run shows of itself, and what others wrote: text in data, errors and logs never steers the
terminal."""

import io
import logging
import time

import pytest
import torch
from rich.console import Console
from rich.table import Table

from memalpha.cli import run
from memalpha.cli.console import Reporter, SafeConsole
from memalpha.cli.evaluate import with_agent
from memalpha.errors import InputError, TrainingStopped
from memalpha.training.importance import gap_statistics

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b2J\u202egpj.exe\u2066\r"


def test_the_pace_of_steps_by_hand() -> None:
    console = Console(file=io.StringIO(), width=200, highlight=False)
    times = iter([0.0, 10.0, 15.0, 25.0, 26.0])
    reporter = Reporter(target=console, clock=lambda: next(times))
    reporter("load", {"what": "nano [bold]and[/bold] toy"})  # a step is timed from here
    step = {"step": 1, "max_steps": 4, "reward": 0.5, "num_tokens": 1000.0}
    reporter("step", step)
    more = {"loss": None, "rewards/accuracy/mean": 0.25, "rewards/content/mean": float("nan")}
    apart = gap_statistics(torch.tensor([0.0] * 98 + [0.5, 1.0]))
    more |= {**apart, "loss_scale": 32768.0}
    reporter("step", {**step, "step": 2, "num_tokens": 2000.0, **more})
    reporter("unheard of", {})
    assert console.file.getvalue().splitlines() == [
        "[    10 s] loading nano [bold]and[/bold] toy",
        "[    15 s] step 1/4  reward .500  tokens/s 200  s/step 5.0",
        "[    25 s] step 2/4  reward .500  accuracy .250  drawn apart 0.0150  p99 0.5000  KL 0.008670"
        "  loss scale 32,768  tokens/s 100  s/step 10.0  20.0 s left",
    ]


def test_the_time_left_follows_the_last_steps() -> None:
    console = Console(file=io.StringIO(), width=200)
    ends = [100.0 * step for step in range(1, 7)] + [600.0 + 10 * step for step in range(1, 6)]
    times = iter([0.0, *ends])
    reporter = Reporter(target=console, clock=lambda: next(times))
    for step in range(1, 12):  # six steps of 100 s each, then five of 10 s
        reporter("step", {"step": step, "max_steps": 21})
    left = [line.rsplit("  ", 1)[1] for line in console.file.getvalue().splitlines()[1:]]
    assert left[0] == "31.7 min left"
    # at step 8 the last five took 100, 100, 100, 10 and 10 s: 64 s each, and 13 are left
    assert left[6] == "13.9 min left"
    assert left[9] == "100.0 s left"  # ten steps of 10 s


def harmless(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


@pytest.mark.parametrize(
    ("variable", "code"), [("", 130), ("ACCELERATE_MIXED_PRECISION", 0), ("TORCHELASTIC_RUN_ID", 0)]
)
def test_a_launcher_does_not_take_a_stop_for_a_crash(monkeypatch, capsys, variable, code):
    for name in ("ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "no")

    def stopped(*_, **__):
        raise TrainingStopped("stopped after step 1 of 2")

    monkeypatch.setattr("memalpha.cli.add_plugin_verbs", lambda: None)  # once, to the real app
    monkeypatch.setattr("memalpha.cli.app", stopped)
    assert run(["train"]) == code
    assert capsys.readouterr().err == "stopped after step 1 of 2\n"


def test_one_more_agent_is_one_more_system_under_a_name_of_its_own():
    def agent(adapter):
        return {"kind": "agent", "adapter": adapter}

    systems = []
    for trained, adapter in (
        ("runs/a", "runs/a/adapter"),
        ("runs/b/adapter", "runs/b/adapter"),
        ("old/a", "old/a"),
        ("runs/a/adapter", "runs/a/adapter"),  # again
    ):
        systems = with_agent(
            [{"name": row["name"], "options": {"adapter": row["adapter"]}} for row in systems],
            agent(adapter),
            trained,
        )
        systems = [
            {"name": row["name"], "adapter": row.get("adapter") or row["options"]["adapter"]}
            for row in systems
        ]
    assert systems == [
        {"name": "a", "adapter": "runs/a/adapter"},
        {"name": "b", "adapter": "runs/b/adapter"},
        {"name": "a 2", "adapter": "old/a"},
    ]


def test_no_console_line_table_error_or_log_message_steers_the_terminal(monkeypatch, capfd):
    console = SafeConsole(file=io.StringIO(), width=400, force_terminal=True, color_system=None)
    table = Table(HOSTILE)
    table.add_row(HOSTILE)
    console.print(HOSTILE, markup=False)
    console.print(table)
    written = console.file.getvalue()
    assert harmless(written) and "\\x1b]0;owned" in written and "\\u202egpj.exe" in written

    def fails():
        logging.getLogger("x").warning("about %s", HOSTILE)
        raise InputError(f"the value is {HOSTILE}")

    monkeypatch.setattr("memalpha.use.access.make_token", fails)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    assert run(["token", "laptop"]) == 1
    said = capfd.readouterr().err
    assert harmless(said) and "error: the value is \\x1b]0;owned\\x07\\x1b[2J\\x9b2J" in said
    assert "WARNING x: about \\x1b]0;owned" in said


def test_a_line_says_what_takes_long():
    console = Console(file=io.StringIO(), width=200, highlight=False)
    step = {"step": 1, "max_steps": 2, "reward": 0.5}
    with Reporter(target=console).alive(0.05) as reporter:
        for event, data in (("load", {"what": "nano"}), ("step", step)):
            reporter(event, data)
            time.sleep(0.18)
    lines = [line.partition("] ")[2] for line in console.file.getvalue().splitlines()]
    first = next(place for place, line in enumerate(lines) if line.startswith("step 1/2"))
    assert lines[0] == "loading nano" and 2 <= first - 1 <= 3
    assert set(lines[1:first]) == {"still loading nano"}
    assert 2 <= len(lines[first + 1 :]) <= 3 and set(lines[first + 1 :]) == {"still at step 2/2"}
    written = console.file.getvalue()
    with Reporter(enabled=False, target=console).alive(0.01):
        time.sleep(0.05)
    assert console.file.getvalue() == written
