"""Every benchmark runs and ends in one JSON object; how ratios are computed, by hand. No test here looks at speed."""

import importlib
import json
import os
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
NAMES = ("rollout", "update", "overhead", "growth", "retrieval", "agent", "prepare")


@pytest.fixture
def bench(monkeypatch):
    """The script as a module; the threads it asks for end with the test."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setattr(os, "environ", os.environ.copy())
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else None
    yield importlib.import_module("bench")
    if torch and threads:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", NAMES)
def test_a_quick_run_ends_in_one_json_object(bench, capsys, name):
    assert bench.NAMES == NAMES
    more = ["--modes", "lexical"] if name == "growth" else ["--entries", "100"] if name == "retrieval" else []
    assert bench.main([name, "--quick", "--json", *more]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert list(found) == ["name", "ratios", "details"] and found["name"] == name
    assert found["ratios"] and all(isinstance(value, int | float) for value in found["ratios"].values())
    details = found["details"]
    assert {"command", "date", "machine", "versions", "sizes", "table"} <= set(details)
    assert details["command"].startswith(f"python scripts/bench.py {name} --quick --json") and details["machine"]["threads"] == 1
    assert len({tuple(row) for row in details["table"]}) == 1


def test_ratios_by_hand(bench):
    common = bench.common
    slow = common.Series((2.0, 4.0, 6.0, 8.0, 40.0), (1.0,) * 5)
    fast = common.Series((1.0, 1.0, 2.0, 2.0, 4.0), (2.0,) * 5)
    assert common.ratio(slow, fast) == (6.0 / 2.0, 3.0, 4.0)  # single rounds: 2, 4, 3, 4, 10
    assert common.ratio(slow, fast, "cpu") == (0.5, 0.5, 0.5)
    assert common.ratio(common.Series((1.0, 3.0), ()), common.Series((1.0, 1.0), ())) == (2.0, 1.0, 3.0)
