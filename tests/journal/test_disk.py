"""A disk that is full: said clearly, nothing acknowledged is lost, nothing half written, and it
goes on once there is room."""

import shutil
import traceback

import pytest
from stores import BY, MARTA, SCHEMA, contents, files_with, insert, opened, rebuilt

from memalpha.errors import JournalError
from memalpha.store.exchange import export_journal, import_journal
from memalpha.store.journal import Journal


def test_a_full_disk(make_disk, tmp_path):
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
    export_journal(journal, tmp_path / "rescue.jsonl")  # to another disk
    with Journal.open(tmp_path / "copy.db") as other:
        import_journal(other, tmp_path / "rescue.jsonl")
        assert contents(other.memory(MARTA, SCHEMA).memory) == written
    with pytest.raises(JournalError, match="no-room"):
        export_journal(journal, small_disk / "no-room")
    assert not (small_disk / "no-room").exists()
    ballast.unlink()
    assert durable.apply(insert("there is room again"), BY).changed
    assert (
        list(contents(rebuilt(durable)).values()) == [*written.values(), "there is room again"]
        and journal.verify().ok
    )


def test_forgetting_on_a_disk_that_is_nearly_full(make_disk, caplog):
    """There is room for the erasure in the log, not for writing the file anew: the message says so,
    the store can be used."""
    disk = make_disk("2m")
    journal, durable = opened(disk / "store.db")
    with durable.writing(BY) as memory:
        memory.apply(insert("Zaphod " * 20))
        for i in range(200):
            memory.apply(insert(f"fact {i} " + "y" * 2000))
    ballast = disk / "ballast"
    ballast.write_bytes(b"x" * (shutil.disk_usage(disk).free - 250_000))
    receipt = durable.forget("1")
    assert (receipt.operations, receipt.scrubbed) == (
        1,
        False,
    ) and "erased from the log, but old bytes" in caplog.text
    assert "nothing of this write was kept" not in caplog.text
    assert "1" not in contents(durable.memory) and durable.history("1")[-1].kind == "forget"
    journal.close()
    with Journal.open(
        disk / "store.db"
    ) as again:  # still no room: a warning, and the store can be used
        assert "1" not in contents(again.memory(MARTA, SCHEMA).memory)
    ballast.unlink()
    with Journal.open(disk / "store.db") as last:
        assert last.verify().ok and not last.database.to_scrub()
    assert files_with(disk, "Zaphod") == []
