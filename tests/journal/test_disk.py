"""A disk that is full: said clearly, nothing acknowledged is lost, nothing half written, and it goes on once there is room."""

from __future__ import annotations

import errno

import pytest
from stores import BY, MARTA, SCHEMA, contents, insert, opened

from memalpha.errors import JournalError
from memalpha.store.journal import Journal
from memalpha.store.witness import Witness


def test_a_full_disk(make_disk, tmp_path):
    small_disk = make_disk("600k")
    journal, durable = opened(small_disk / "store.db")
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 200_000)
    written = {}
    with pytest.raises(JournalError, match=r"(?s)nothing of this write was kept.*make room"):
        for i in range(1000):
            text = f"fact {i} " + "y" * 2000
            with durable.writing(BY) as memory:
                memory.apply(insert(text))
                memory.apply(insert(text + " again"))
            written |= {str(2 * i + 1): text, str(2 * i + 2): text + " again"}
    assert len(written) > 10
    assert contents(durable.memory) == contents(durable.rebuilt()) == written
    assert journal.verify().ok
    copy = tmp_path / "copy.db"
    journal.export(tmp_path / "rescue.jsonl")  # to another disk
    with Journal.open(copy) as other:
        other.import_(tmp_path / "rescue.jsonl")
        assert contents(other.memory(MARTA, SCHEMA).memory) == written
    with pytest.raises(JournalError, match="could not be written"):
        journal.export(small_disk / "no-room.jsonl")
    assert not list(small_disk.glob("no-room*"))
    ballast.unlink()
    assert durable.apply(insert("there is room again"), BY).changed
    journal.close()
    journal, durable = opened(small_disk / "store.db")
    assert list(contents(durable.memory).values()) == [*written.values(), "there is room again"] and journal.verify().ok
    journal.close()


def test_a_witness_that_cannot_be_written_is_no_acknowledgement(folder, monkeypatch):
    """The write is in the log then: it is not acknowledged, and not lost either."""
    journal, durable = opened(folder / "s.db")
    durable.apply(insert("first"), BY)

    def full(self, state, both=False):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Witness, "write", full)
        with pytest.raises(JournalError, match="in the log but was not acknowledged"):
            durable.apply(insert("second"), BY)
    assert contents(durable.memory) == {"1": "first", "2": "second"}
    durable.apply(insert("third"), BY)
    journal.close()
    with Journal.open(folder / "s.db") as journal:
        assert journal.verify().ok
