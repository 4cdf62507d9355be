"""What the data tests share: real pieces of the sets, where they are at hand."""

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("MEMALPHA_SHARED_DATA", Path(__file__).parents[2].parent / "shared" / "data"))


@pytest.fixture
def real():
    """Give the path of a real piece, or skip."""

    def path(name):
        if not (SHARED / name).exists():
            pytest.skip(f"{SHARED / name} is not there; set MEMALPHA_SHARED_DATA to the folder of real data pieces")
        return SHARED / name

    return path
