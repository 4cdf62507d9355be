"""What a run shows of itself, and what others wrote: text in data, errors and logs never steers the
terminal."""

import io
import logging
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from memalpha.cli import run
from memalpha.cli.console import Reporter, SafeConsole
from memalpha.errors import InputError

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b2J\u202egpj.exe\u2066\r"


@pytest.mark.parametrize("first", [1, 3])
def test_the_pace_of_steps_by_hand(first: int) -> None:
    console, times = (
        Console(file=io.StringIO(), width=200, highlight=False),
        iter([0.0, 10.0, 15.0, 25.0, 26.0]),
    )
    reporter = Reporter(target=console, clock=lambda: next(times))
    reporter("load", {"what": "nano [bold]and[/bold] toy"})  # a step is timed from here
    for number in (first, first + 1):
        more = (
            {}
            if number == first
            else {"loss": None, "rewards/accuracy/mean": 0.25, "rewards/content/mean": float("nan")}
        )
        reporter(
            "step",
            {"step": number, "max_steps": 4, "reward": 0.5, "num_tokens": 1000.0 * number, **more},
        )
    reporter("unheard of", {})
    rate = (
        "tokens/s 200  " if first == 1 else ""
    )  # 1,000 tokens in 5 s; a resumed run's first step knows no rate
    left = "20.0 s left" if first == 1 else "0.0 s left"
    assert console.file.getvalue().splitlines() == [
        "[    10 s] loading nano [bold]and[/bold] toy",
        f"[    15 s] step {first}/4  reward .500  {rate}s/step 5.0",
        f"[    25 s] step {first + 1}/4  reward .500  accuracy .250  tokens/s 100  s/step 10.0  {left}",
    ]


def harmless(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


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
    assert (
        harmless(said)
        and "error: the value is \\x1b]0;owned\\x07\\x1b[2J\\x9b2J\\u202egpj.exe\\u2066\\r" in said
    )
    assert "WARNING x: about \\x1b]0;owned" in said


def test_a_real_terminal_gets_no_escape_of_a_path_or_an_error(tmp_path: Path) -> None:
    folder = tmp_path / f"run{HOSTILE}"
    folder.mkdir()
    for verb, code in ((["inspect", str(folder)], 1), (["report", str(folder)], 0)):
        main, other = pty.openpty()
        command = [sys.executable, "-m", "memalpha", *verb]
        process = subprocess.Popen(
            command,
            stdout=other,
            stderr=other,
            env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"},
        )
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
