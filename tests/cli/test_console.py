"""What a run shows of itself, and what others wrote: text in data, errors and logs never steers the terminal."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from memalpha.cli import run
from memalpha.cli.console import Reporter, sparkline
from memalpha.cli.screen import SafeConsole, show_table
from memalpha.errors import InputError

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b2J\u202egpj.exe\u2066\r"


def step(number: int, **more: Any) -> dict[str, Any]:
    return {"step": number, "max_steps": 4, "reward": 0.5, "num_tokens": 1000.0 * number, **more}


class Clock:
    """Time that passes when told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def plain() -> Console:
    return Console(file=io.StringIO(), width=200, force_terminal=False, soft_wrap=True, highlight=False)


def terminal() -> Console:
    return Console(file=io.StringIO(), width=120, force_terminal=True, force_interactive=True, color_system=None, highlight=False)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# ---------------------------------------------------------------------------------------------------- a run
@pytest.mark.parametrize("first", [1, 3])
def test_the_pace_of_steps_by_hand(first: int) -> None:
    console, clock = plain(), Clock()
    with Reporter(target=console, clock=clock) as reporter:
        clock.now = 10
        reporter("load", {"what": "nano [bold]and[/bold] toy"})  # a step is timed from here
        clock.now = 15
        reporter("step", step(first))
        clock.now = 25
        reporter("step", step(first + 1, loss=None, **{"rewards/accuracy/mean": 0.25, "rewards/content/mean": float("nan")}))
        reporter("unheard of", {})
    lines = written(console).splitlines()
    rate = "tokens/s 200  " if first == 1 else ""  # 1,000 tokens in 5 s; a resumed run's first step knows no rate
    left = "  20 s left" if first == 1 else "  0.0 s left"
    assert lines == [
        "[    10 s] loading nano [bold]and[/bold] toy",
        f"[    15 s] step {first}/4  reward 0.500  {rate}s/step 5.0",
        f"[    25 s] step {first + 1}/4  reward 0.500  accuracy 0.250  tokens/s 100  s/step 10.0{left.replace('20 s', '20.0 s')}",
    ]


def test_a_sparkline_runs_from_the_smallest_to_the_largest() -> None:
    assert [sparkline([0.0, 1.0, None, 0.5]), sparkline([2.0, 2.0]), sparkline([None])] == ["▁█–▅", "▁▁", ""]


def test_a_rank_other_than_the_first_is_silent() -> None:
    console = plain()
    with Reporter(False, target=console) as reporter:
        reporter("load", {"what": "nano"})
        reporter("step", step(1))
    assert written(console) == ""


def test_a_terminal_gets_a_live_view_and_its_cursor_back() -> None:
    console = terminal()
    with Reporter(target=console) as reporter:
        reporter("evaluate", {"name": "before", "done": 2, "total": 3, "instances": 2})
        done = {"name": "before", "accuracy": 0.5, "stderr": 0.1, "n": 2, "tool_success": 1.0, "memory_tokens": 9, "seconds": 1}
        reporter("evaluated", done)
        for number in (1, 2, 3):
            reporter("step", step(number, reward=number / 4, **{"rewards/accuracy/mean": None}))
    text = written(console)
    assert "before: accuracy 0.500 +- 0.100 on 2 held-out instances" in text
    last = text[text.rindex("last step") :]
    # the last step, the mean of the three, the course of the three
    assert [line.split() for line in last.splitlines() if "reward" in line] == [["reward", "0.750", "0.500", "▁▅█"]]
    assert "accuracy" not in last  # never known
    assert "training" in last and "3/4" in last
    assert "evaluating before" not in last
    assert text.rstrip().endswith("\x1b[?25h")  # the cursor is shown again


def test_the_cursor_comes_back_after_an_error_too() -> None:
    console = terminal()
    with pytest.raises(RuntimeError), Reporter(target=console) as reporter:
        reporter("step", step(1))
        raise RuntimeError
    assert written(console).count("\x1b[?25l") == written(console).count("\x1b[?25h") == 1


def test_a_rollout_is_shown_every_so_often(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("{}")
    (tmp_path / "trajectories").mkdir()
    for number in (2, 4):
        empty: dict[str, Any] = {
            "source": "hand",
            "steps": [],
            "questions": [],
            "memory": [],
            "memory_tokens": 0,
            "input_tokens": 7,
        }
        path = tmp_path / "trajectories" / f"step-{number:06d}-rank-0.jsonl"
        path.write_text("".join(json.dumps({**empty, "instance": name}) + "\n" for name in (f"ann-{number}", "second")))
    console = plain()
    with Reporter(True, str(tmp_path), 2, console) as reporter:
        for number in (1, 2, 3, 4):
            reporter("step", step(number))
    text = written(console)
    assert "ann-2" in text and "ann-4" in text and "second" not in text
    assert text.count("the first rollout of step") == 2


# ---------------------------------------------------------------------------------------------------- hostile text
def harmless(text: str) -> bool:
    """Whether a text holds nothing that a terminal obeys, but line ends."""
    return all(char.isprintable() or char == "\n" for char in text)


def test_no_console_line_table_error_or_log_message_steers_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    console = SafeConsole(file=io.StringIO(), width=400, force_terminal=True, color_system=None)
    table = Table(HOSTILE)
    table.add_row(HOSTILE)
    console.print(HOSTILE, markup=False)
    console.print(table)
    assert harmless(written(console)) and "\\x1b]0;owned" in written(console) and "\\u202egpj.exe" in written(console)

    def fails(arguments: Any, rest: Any) -> int:
        logging.getLogger("x").warning("about %s", HOSTILE)
        raise InputError(f"the value is {HOSTILE}")

    monkeypatch.setattr("memalpha.cli.serve.run_token", fails)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    assert run(["token", "laptop"]) == 1
    said = capfd.readouterr().err
    assert harmless(said) and "error: the value is \\x1b]0;owned\\x07\\x1b[2J\\x9b2J\\u202egpj.exe\\u2066\\r" in said
    assert "WARNING x: about \\x1b]0;owned" in said


def test_a_real_terminal_gets_no_escape_of_a_path_or_an_error(tmp_path: Path) -> None:
    """``memalpha inspect`` and ``report`` of a folder with a hostile name, under a pseudo terminal."""
    folder = tmp_path / f"run{HOSTILE}"
    folder.mkdir()
    for verb, code in ((["inspect", str(folder)], 1), (["report", str(folder)], 0)):
        main, other = pty.openpty()
        command = [sys.executable, "-m", "memalpha", *verb]
        process = subprocess.Popen(command, stdout=other, stderr=other, env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"})
        os.close(other)
        shown = b""
        try:
            while data := os.read(main, 65536):
                shown += data
        except OSError:  # how Linux ends a pseudo terminal
            pass
        os.close(main)
        assert process.wait() == code
        text = shown.decode().replace("\r\n", "\n")
        assert harmless(text) and "\\x1b" in text
        (folder / "config.yaml").write_text("model: x")  # for the second


def test_on_a_terminal_rows_are_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    console = SafeConsole(force_terminal=True, width=40, record=True, color_system=None, file=io.StringIO())
    monkeypatch.setattr("memalpha.cli.screen.console", console)
    show_table(("a", "b"), [("x", f"[bold]y[/bold] {HOSTILE} " + "long " * 20)])
    shown = console.export_text()
    assert "[bold]y[/bold]" in shown and shown.count("long") == 20 and harmless(shown)
