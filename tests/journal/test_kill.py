"""kill -9 at random moments and at every write point: what was acknowledged is there, nothing is half there, indexes agree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("kill_worker.py")


def worker(*arguments: object) -> dict[str, int]:
    paths = os.pathsep.join([str(WORKER.parent), str(WORKER.parents[2])])
    command = [sys.executable, str(WORKER), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


SLOW = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(("trials", "acknowledged"), [(15, 0), pytest.param(500, 500, marks=SLOW)])
def test_kills_at_random_moments(folder, trials, acknowledged):
    counts = worker("random", folder, trials, 1)
    print(counts)
    assert counts["killed"] == trials and counts["acknowledged"] > acknowledged
    assert trials < 100 or (counts["in_flight"] > 100 and counts["in_flight_kept"] > 0)


@pytest.mark.parametrize(("stride", "points"), [(20, 8), pytest.param(1, 160, marks=SLOW)])
def test_a_kill_at_each_write_point(folder, stride, points):
    counts = worker("points", folder, stride)
    print(counts)
    assert counts["points"] > points and counts["in_flight_kept"] < counts["points"]
