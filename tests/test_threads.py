"""How threads wait and how many there are: what is set before torch, and what a user's own setting
wins."""

import json
import math
import os
import subprocess
import sys

import pytest

from memalpha.threads import (
    WAITING,
    describe_threads,
    prepare_threads,
    processors,
    quota,
)

AS_A_PROCESS = """
import json, os, sys
from memalpha.cli import run
run(["--version"])
assert "torch" not in sys.modules
import torch
names = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY")
print(json.dumps([torch.get_num_threads(), *map(os.environ.get, names)]))
"""


@pytest.fixture
def no_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def result(code: str, **variables: str) -> subprocess.CompletedProcess:
    """Run a program with these variables and no others of OpenMP."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMP", "KMP", "GOMP"))
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        env=kept | variables,
        capture_output=True,
        text=True,
        check=True,
    )


def started(**variables: str) -> list:
    """What a process of the command line has."""
    return json.loads(result(AS_A_PROCESS, **variables).stdout.splitlines()[-1])


def test_the_command_line_settles_the_threads_before_torch():
    assert started() == [processors(), "20000", "1", None]


def test_a_setting_of_the_user_wins():
    assert started(OMP_WAIT_POLICY="PASSIVE") == [processors(), None, None, "PASSIVE"]
    assert started(GOMP_SPINCOUNT="7", OMP_NUM_THREADS="1") == [1, "7", None, None]


def test_the_runtime_reads_what_is_set():
    """libgomp itself says its settings when it is loaded."""
    program = "from memalpha.cli import run; run(['--version']); import torch; torch.ones(9).sum()"
    done = result(program, OMP_DISPLAY_ENV="VERBOSE")
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("torch has another OpenMP runtime here")
    assert "GOMP_SPINCOUNT = '20000'" in done.stderr


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_threads_are_no_more_than_the_processors_that_the_process_may_use():
    code = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})\n{AS_A_PROCESS}"
    assert json.loads(result(code).stdout.splitlines()[-1])[0] == 1


def groups(folder, own: str, limits: dict[str, str]):
    for name, text in limits.items():
        path = folder / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "own").write_text(own)
    return folder / "fs", folder / "own"


@pytest.mark.parametrize(
    ("own", "limits", "expected"),
    [
        ("0::/\n", {}, math.inf),
        ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("nonsense\n0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3.0),
        ("0::/seen/from/outside\n", {"cpu.max": "50000 100000\n"}, 0.5),
        (
            "3:cpuset:/\n1:cpu,cpuacct:/job\n0::/\n",
            {"cpu/job/cpu.cfs_quota_us": "200000\n", "cpu/job/cpu.cfs_period_us": "100000\n"},
            2.0,
        ),
        (
            "1:cpu:/job\n",
            {"cpu/job/cpu.cfs_quota_us": "-1\n", "cpu/job/cpu.cfs_period_us": "100000\n"},
            math.inf,
        ),
    ],
)
def test_the_limit_of_control_groups_by_hand(tmp_path, own, limits, expected):
    assert quota(*groups(tmp_path, own, limits)) == expected


@pytest.mark.parametrize(
    ("share", "threads"), [(math.inf, None), (1.9, "1"), (0.5, "1"), (64.0, None)]
)
def test_fewer_threads_where_a_control_group_allows_less(no_torch, monkeypatch, share, threads):
    monkeypatch.setattr("memalpha.threads.quota", lambda: share)
    monkeypatch.setattr("memalpha.threads.processors", lambda: 64)
    variables: dict[str, str] = {}
    prepare_threads(variables)
    assert variables.get("OMP_NUM_THREADS") == threads
    assert variables.items() >= WAITING.items()
    mine = {"OMP_NUM_THREADS": "5"}
    prepare_threads(mine)
    assert mine["OMP_NUM_THREADS"] == "5"


def test_after_torch_nothing_is_set():
    variables: dict[str, str] = {}
    pytest.importorskip("torch")
    prepare_threads(variables)
    assert not variables


def test_a_line_says_what_holds(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    said = describe_threads({"OMP_NUM_THREADS": "4", "GOMP_SPINCOUNT": "20000"})
    assert said == "4 on 8 processors; waiting: GOMP_SPINCOUNT=20000"
    assert (
        describe_threads({"OMP_NUM_THREADS": "4"}) == "4 on 8 processors; waiting: as OpenMP does"
    )
