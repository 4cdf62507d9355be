"""What the scripts share that record runs under labels, as in ``"healthy=runs/mixed-1" "as before"``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def read_labels(description: str | None, count: str) -> list[str]:
    """Read the command line: as many labels, with or without runs, as argparse's ``nargs`` says."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("labels", nargs=count, metavar="LABEL[=RUN]", help="a run to record, or, alone, one recorded before")
    labels: list[str] = parser.parse_args().labels
    return labels


def record_runs(path: Path, arguments: Sequence[str], read: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Write the record anew from ``LABEL=RUN`` (read now) and ``LABEL`` (as it was recorded before), in that order; return it."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    named = [argument.partition("=") for argument in arguments]
    if unknown := [label for label, _, run in named if not run and label not in before]:
        sys.exit(f"error: no run is recorded as {unknown[0]!r}\n  expected: LABEL=RUN, or one of {list(before)}")
    record = {label: read(run) if run else before[label] for label, _, run in named}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return record
