"""A run folder in which one value was changed is shown, or refused in one message; no traceback."""

import random
import shutil
from pathlib import Path

import pytest

from memalpha.cli import run as memalpha
from memalpha.record.folder import RunFolder
from tests.helpers.changed_values import change_one

SEEDS = range(24)
COMMANDS = (
    lambda run, out: ["inspect", run],
    lambda run, out: ["inspect", run, "--list"],
    lambda run, out: ["inspect", run, "--held-out", "after"],
    lambda run, out: ["report", run, "--output", f"{out}/report"],
    lambda run, out: ["compare", run, "--output", f"{out}/compare"],
)


def try_seed(run: Path, tmp_path: Path, seed: int) -> list[str]:
    folder = tmp_path / f"run-{seed}"
    shutil.copytree(run, folder)
    what = change_one(folder, random.Random(seed))
    wrong = []
    for command in COMMANDS:
        words = command(str(folder), str(tmp_path / f"out-{seed}"))
        try:
            assert memalpha(words) in (0, 1)
        except Exception as error:  # noqa: BLE001
            wrong.append(f"{seed}: {what}: {words[0]}: {type(error).__name__}: {error}")
    return wrong


def test_a_changed_value_is_shown_or_refused(finished_run: RunFolder, tmp_path: Path) -> None:
    wrong = [line for seed in SEEDS for line in try_seed(finished_run.path, tmp_path, seed)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_many_changed_values_are_shown_or_refused(finished_run: RunFolder, tmp_path: Path) -> None:
    seeds = range(1000, 1150)
    wrong = [line for seed in seeds for line in try_seed(finished_run.path, tmp_path, seed)]
    assert not wrong, "\n".join(wrong)
