"""Each planted fault (tests/helpers/faults.py) is noticed by the tests that it names."""

import os
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest

from tests.helpers.faults import FAULTS

ROOT = Path(__file__).parents[1]


def test_every_fault_has_a_public_target_and_tests_that_exist():
    assert len(FAULTS) <= 25
    for name, fault in FAULTS.items():
        assert callable(resolve_name(fault.target)) and "._" not in fault.target, name
        assert fault.what and fault.tests, name
        for test in fault.tests:
            path, _, function = test.partition("[")[0].partition("::")
            source = (ROOT / path).read_text()
            assert f"def {function}(" in source, test
            assert test.partition("[")[2].removesuffix("]") in source, test


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_noticed(name):
    """By a test that fails (1), not by one that is missing (4), nor by a mistake in the fault."""
    command = [sys.executable, "-m", "pytest", "-x", "--tb=line", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *FAULTS[name].tests],
        cwd=ROOT,
        env=os.environ | {"MEMALPHA_FAULT": name},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1 and "tests/helpers/faults.py:" not in done.stdout, done.stdout[
        -2000:
    ]
