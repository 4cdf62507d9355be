"""A folder for stores, in memory where there is one."""

import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if Path("/dev/shm").is_dir() else None, prefix="memalpha-"
    ) as made:
        yield Path(made)
