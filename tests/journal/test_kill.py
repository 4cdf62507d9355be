"""kill -9 at random moments and write points: what was acknowledged is there, nothing is half
there. Without kills, too."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKER = ROOT / "tests" / "helpers" / "kill_worker.py"
SLOW = [pytest.mark.slow, pytest.mark.timeout(1800)]


def worked(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, WORKER, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_an_undo_that_is_killed_has_taken_back_an_entry_and_its_lines_or_nothing(folder):
    result = worked(folder)
    assert result["points"] > 20 and result["halves"] == []


@pytest.mark.parametrize("trials", [24, pytest.param(600, marks=SLOW)])
def test_a_store_whose_writer_is_killed(folder, trials):
    counts = worked(folder, trials, 1)
    assert (
        counts["acknowledged"] > trials
        and 0 < counts["in_flight_kept"] < counts["in_flight"] > trials / 4
    )
