"""A disk that is full: said clearly, nothing acknowledged is lost, nothing half written, and it
goes on once there is room."""

import traceback

import pytest
from stores import BY, contents, insert, opened, rebuilt

from memalpha.errors import JournalError


def test_a_full_disk(make_disk):
    small_disk, written = make_disk("600k"), {}
    journal, durable = opened(small_disk / "store.db")
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 200_000)
    with pytest.raises(JournalError, match="nothing of this write was kept") as caught:
        for i in range(1000):
            text = f"fact {i} " + "y" * 2000
            with durable.writing(BY) as memory:
                memory.apply(insert(text))
                memory.apply(insert(text + " again"))
            written |= {str(2 * i + 1): text, str(2 * i + 2): text + " again"}
    assert len(written) > 10 and "yyy" not in "".join(
        traceback.format_exception(caught.value)
    )  # a log would keep it
    assert contents(durable.memory) == contents(rebuilt(durable)) == written and journal.verify().ok
    ballast.unlink()
    assert durable.apply(insert("there is room again"), BY).changed
    assert (
        list(contents(rebuilt(durable)).values()) == [*written.values(), "there is room again"]
        and journal.verify().ok
    )
