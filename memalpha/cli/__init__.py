"""The command line: one verb per module; heavy imports are inside the verbs.

Exit codes: 0 done, 1 an error of this package, 2 wrong usage, 130 interrupted. Tracebacks need
``--debug``.
"""

import argparse
import io
import logging
import os
import sys
from collections.abc import Sequence

from memalpha import __version__
from memalpha.cli import chat, data, evaluate, journal, router, runs, serve, training
from memalpha.cli.console import SafeFormatter, complain, printable_lines, tell_launcher, with_notes
from memalpha.config import nearest
from memalpha.errors import MemAlphaError, TrainingStopped


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs."""
    parser = argparse.ArgumentParser(
        prog="memalpha",
        description="Train a language model to build and keep a memory, and use it.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"memalpha {__version__}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for module in (data, training, runs, evaluate, router, journal, chat, serve):
        module.add_verbs(verbs)
    for verb in verbs.choices.values():
        verb.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks"
        )
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; characters that the terminal cannot encode are escaped."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Run the command line and return its exit code."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    log = logging.StreamHandler()
    log.setFormatter(SafeFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[log])
    known, rest = build_parser().parse_known_args(arguments)
    if rest and not known.takes_more:
        flags = [flag for action in known.parser._actions for flag in action.option_strings]
        near = f"perhaps {', '.join(nearest(rest[0], flags))}; " if rest[0].startswith("-") else ""
        known.parser.error(
            printable_lines(
                f"unknown arguments: {' '.join(rest)}; {near}see {known.parser.prog} --help"
            )
        )
    try:
        return int(known.run(known, rest) or 0)
    except TrainingStopped as stop:
        complain(str(stop))
        return 130
    except MemAlphaError as error:
        if known.debug:
            raise
        tell_launcher(error)
        rank = f"[rank {os.environ['RANK']}] " if os.environ.get("WORLD_SIZE", "1") != "1" else ""
        complain(f"{rank}error: {with_notes(error)}")
        return 1
    except KeyboardInterrupt:
        complain(
            "interrupted; a training run goes on from its last checkpoint with --resume, an evaluation by itself"
        )
        return 130
    except Exception as error:  # the launcher names the failed rank and the error
        tell_launcher(error)
        raise
