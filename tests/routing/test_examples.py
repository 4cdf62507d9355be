"""The examples of the router, run as they stand."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "least"), [("own_router_environment.py", 1.15), ("feedback_log.py", 0.6)]
)
def test_an_example_trains_a_router_close_to_the_best(tmp_path, name, least):
    """The best earn 1.2, by asking first, and .9 less the mean cost of the right routes, .733; any
    route alone less than .3."""
    place = ["--output", str(tmp_path / "run")] if name.startswith("own") else []
    command = [sys.executable, name, *([] if place else [str(tmp_path)]), *place, "--json"]
    done = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, check=True)
    summary = json.loads(done.stdout.splitlines()[-1])
    assert least < summary["reward"] < 1.3 and (tmp_path / "run" / "checkpoint.pt").is_file()
