"""A disk that is full: said clearly, nothing acknowledged is lost, nothing half written, and it
goes on once there is room."""

import subprocess
import traceback
from contextlib import suppress

import pytest

from memalpha.errors import JournalError
from memalpha.store.exchange import export_journal
from tests.helpers.stores import BY, contents, insert, opened, rebuilt


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


def test_a_store_at_rest_is_read_on_a_full_and_on_a_read_only_disk(make_disk, tmp_path):
    disk = make_disk("400k")
    journal, durable = opened(disk / "store.db")
    durable.apply(insert("Marta lives in Oslo"), BY)
    journal.close()
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 512)

    def looked(name):
        journal, durable = opened(disk / "store.db")
        assert contents(durable.memory)["1"] == "Marta lives in Oslo" and journal.verify().ok
        assert export_journal(journal, tmp_path / name) == len(durable.history())
        return journal, durable

    journal, durable = looked("full.jsonl")
    with pytest.raises(JournalError, match="could not be read or written"):
        durable.apply(insert("no room"), BY)
    ballast.unlink()
    assert durable.apply(insert("room"), BY).changed and journal.verify().ok
    journal.close()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    journal, durable = looked("read_only.jsonl")
    with pytest.raises(JournalError, match="no right to write"):
        durable.apply(insert("x"), BY)
    assert len(durable.history()) == 2
    journal.close()
