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


def test_fifteen_kills_at_random_moments(folder):
    counts = worker("random", folder, 15, 1)
    assert counts["trials"] == counts["killed"] == 15 and counts["acknowledged"] > 0


def test_a_kill_at_every_twentieth_write_point(folder):
    counts = worker("points", folder, 20)
    assert counts["killed"] == counts["points"] > 15


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_five_hundred_kills_at_random_moments(tmp_path):
    counts = worker("random", tmp_path, 500, 2)
    print(counts)
    assert counts["trials"] == counts["killed"] == 500
    assert counts["acknowledged"] > 500 and counts["in_flight"] > 100 and counts["in_flight_kept"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_kill_at_every_write_point(folder):
    counts = worker("points", folder, 1)
    print(counts)
    assert counts["points"] > 200 and 0 < counts["in_flight_kept"] < counts["points"]
