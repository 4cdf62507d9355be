"""Every benchmark runs and ends in one JSON object; how ratios are computed, by hand. No test here
looks at speed."""

import json
import os
import sys

import bench
import pytest
from benchmarks import common


@pytest.mark.parametrize("name", bench.NAMES)
def test_a_quick_run_ends_in_one_json_object(monkeypatch, capsys, name):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    threads = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else 0
    words = [name, "--quick", "--json", *(["--entries", "100"] if name == "retrieval" else [])]
    assert bench.main(words) == 0
    if threads:
        sys.modules["torch"].set_num_threads(threads)
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert list(found) == ["name", "ratios", "details"] and found["name"] == name
    assert found["ratios"] and all(
        isinstance(value, int | float) for value in found["ratios"].values()
    )
    details = found["details"]
    assert {"command", "date", "machine", "versions", "sizes", "table"} <= set(details)
    assert (
        details["command"] == " ".join(["python scripts/bench.py", *words])
        and details["machine"]["threads"] == 1
    )
    assert len({tuple(row) for row in details["table"]}) == 1


def test_ratios_by_hand():
    slow = common.Series((2.0, 4.0, 6.0, 8.0, 40.0), (1.0,) * 5)
    fast = common.Series((1.0, 1.0, 2.0, 2.0, 4.0), (2.0,) * 5)
    assert common.ratio(slow, fast) == (6.0 / 2.0, 3.0, 4.0)  # single rounds: 2, 4, 3, 4, 10
    assert common.ratio(slow, fast, "cpu") == (0.5, 0.5, 0.5)
    assert common.ratio(common.Series((1.0, 3.0), ()), common.Series((1.0, 1.0), ())) == (
        2.0,
        1.0,
        3.0,
    )
