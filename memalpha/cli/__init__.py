"""The command line: heavy imports are inside the verbs.

Exit codes: 0 done, 1 an error of this package or of the file system, 2 wrong usage, 130
interrupted. A training that was stopped and saved ends with 0 under a launcher (accelerate,
torchrun), which reports any other code as a crash. ``launch`` shows the errors of its processes.
Tracebacks need ``--debug``.
"""

import io
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from typer import Typer
from typer.exceptions import TyperException

from memalpha import __version__
from memalpha.cli import chat, evaluate, journal, launch, quickstart, serve, training
from memalpha.cli.console import (
    LAUNCHED,
    SafeFormatter,
    complain,
    is_launched,
    is_main_process,
    leave_group,
    out,
    tell_launcher,
    with_notes,
)
from memalpha.cli.options import TAKES_OPTIONS
from memalpha.errors import ImportStopped, MemAlphaError, TrainingStopped
from memalpha.plugins import load_plugins
from memalpha.threads import prepare_threads

app = Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Train a language model to build and keep a memory, and use that memory. "
    "--version shows the version, and --debug, at any place, shows tracebacks.",
)
VERBS: Mapping[str, tuple[Callable[..., int | None], Mapping[str, bool]]] = {
    "quickstart": (quickstart.quickstart, TAKES_OPTIONS),
    "fetch": (quickstart.fetch_verb, {}),
    "prepare": (training.prepare_verb, {}),
    "warmup": (training.warmup, TAKES_OPTIONS),
    "train": (training.train_verb, TAKES_OPTIONS),
    "launch": (launch.launch, {**TAKES_OPTIONS, "allow_interspersed_args": False}),
    "rollout": (training.rollout, TAKES_OPTIONS),
    "evaluate": (evaluate.evaluate_verb, TAKES_OPTIONS),
    "report": (evaluate.report, {}),
    "compare": (evaluate.compare, {}),
    "inspect": (evaluate.inspect, {}),
    "ask": (chat.ask, TAKES_OPTIONS),
    "chat": (chat.chat, TAKES_OPTIONS),
    "serve": (serve.serve, TAKES_OPTIONS),
    "token": (serve.token, {}),
    "export": (serve.export_verb, {}),
}
for name, (verb, settings) in VERBS.items():
    app.command(name, context_settings=dict(settings))(verb)
app.add_typer(journal.journal_app, name="journal")


@cache
def add_plugin_verbs() -> None:
    """Add the verbs of ``memalpha.contrib`` and of other packages, once."""
    for add_verbs in load_plugins("memalpha.verbs").values():
        add_verbs(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; characters that the terminal cannot encode are escaped."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    code = run(list(sys.argv[1:] if arguments is None else arguments))
    if code == 0:
        leave_group()
    sys.exit(code)


def _wrong_usage(message: str, words: Sequence[str]) -> str:
    """What is wrong with a command line, and where to read on."""
    first = next(iter(words), "")
    commands = journal.journal_app.registered_commands
    verbs = [each.name or each.callback.__name__ for each in commands if each.callback]
    if "No such command" in message and first in verbs:
        return f"{message}; it is a part of journal: see memalpha journal {first} --help"
    known = first and not first.startswith("-") and "No such command" not in message
    return f"{message}; see memalpha {f'{first} ' if known else ''}--help"


def _short_message(error: Exception) -> str:
    """The message of an error that is no fault of the program; an empty text for others."""
    if isinstance(error, MemAlphaError):
        return with_notes(error)
    if isinstance(error, OSError) and error.filename is not None:
        # a folder or file that cannot be made, read or written
        return f"{str(error.filename)[:200]!r} cannot be used: {error.strerror}"
    return ""


def _rank() -> str:
    return f"[rank {os.environ['RANK']}] " if os.environ.get("WORLD_SIZE", "1") != "1" else ""


def run(arguments: list[str]) -> int:
    """Run the command line and return its exit code."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    debug = "--debug" in arguments
    words = [word for word in arguments if word != "--debug"]
    if words[:1] != ["launch"]:  # whose processes share the processors
        prepare_threads()
    log = logging.StreamHandler()
    log.setFormatter(SafeFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[log])
    if words == ["--version"]:
        out(f"memalpha {__version__}")
        return 0
    try:
        add_plugin_verbs()
        settings = {"debug": debug}
        code = int(app(words, prog_name="memalpha", standalone_mode=False, obj=settings) or 0)
    except TyperException as error:
        complain(_wrong_usage(error.format_message().rstrip(".?"), words))
        return 2
    except (TrainingStopped, ImportStopped) as stop:
        if is_main_process():
            complain(str(stop))
        return 0 if isinstance(stop, TrainingStopped) and is_launched() else 130
    except Exception as error:
        told = tell_launcher(error)
        text = _short_message(error)
        if debug or not (told or text):
            raise
        if not told:
            complain(f"{_rank()}error: {text}")
        return 1
    if code == 130 and LAUNCHED not in os.environ:
        complain(
            "interrupted; a training run continues from its last checkpoint with "
            "--resume, and an evaluation when the same command is run again"
        )
    return code
