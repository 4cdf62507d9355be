"""Which checkpoints are kept."""

import pytest

from memalpha.runs import checkpoints_in
from memalpha.training.checkpoints import keep_newest


@pytest.mark.parametrize(("limit", "kept"), [(None, [1, 2, 10]), (0, [1, 2, 10]), (-1, [1, 2, 10]), (1, [10]), (2, [2, 10])])
def test_the_newest_are_kept_and_no_limit_keeps_all(tmp_path, limit, kept):
    for step in (1, 2, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
    keep_newest(checkpoints_in(tmp_path), limit)
    assert [path.name for path in checkpoints_in(tmp_path)] == [f"checkpoint-{step}" for step in kept]
