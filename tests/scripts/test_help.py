"""Every script of Python that takes a command line answers --help with help, and writes nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.mark.parametrize("name", ["ablations", "cost_arithmetic", "recipe_curves", "results_table", "right_calls", "router_table"])
def test_help_is_help(name, tmp_path):
    docs = SCRIPTS.parent / "docs"
    before = {path: path.stat().st_mtime_ns for path in docs.rglob("*") if path.is_file()}
    done = subprocess.run([sys.executable, str(SCRIPTS / f"{name}.py"), "--help"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stdout.startswith("usage: "), done.stderr
    assert {path: path.stat().st_mtime_ns for path in docs.rglob("*") if path.is_file()} == before
