"""Real pieces of the sets, where they are at hand."""

import os
from pathlib import Path

import pytest

SHARED = Path(
    os.environ.get("MEMALPHA_SHARED_DATA", Path(__file__).parents[2].parent / "shared" / "data")
)


@pytest.fixture
def real():
    """Give the path of a real piece, or skip."""
    if not SHARED.exists():
        pytest.skip(
            f"{SHARED} is not there; set MEMALPHA_SHARED_DATA to the folder of real data pieces"
        )
    return SHARED.joinpath
