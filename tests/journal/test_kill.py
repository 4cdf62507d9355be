"""kill -9 at random moments and write points: what was acknowledged is there, nothing is half there, indexes agree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("kill_worker.py")
SLOW = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("trials", [24, pytest.param(600, marks=SLOW)])
def test_a_store_whose_writer_is_killed(folder, trials):
    paths = os.pathsep.join([str(WORKER.parent), str(WORKER.parents[2])])
    command = [sys.executable, str(WORKER), str(folder), str(trials), "1"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    counts = json.loads(done.stdout)
    assert counts["acknowledged"] > trials and 0 < counts["in_flight_kept"] < counts["in_flight"] > trials / 4
