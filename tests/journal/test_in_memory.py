"""The store in the process: the same log as in a file, and gone with the process."""

from __future__ import annotations

import pytest
from stores import BY, MARTA, SCHEMA, contents, delete, insert, update

from memalpha.errors import JournalError
from memalpha.store.journal import Journal


def story(journal):
    durable = journal.memory(MARTA, SCHEMA)
    for operation in (insert("red tea"), insert("blue secret"), update("1", "green tea"), insert("a cup"), delete("3")):
        durable.apply(operation, BY)
    durable.undo(5, BY)
    durable.forget("2")
    return durable


def test_it_tells_the_same_story_as_a_file(tmp_path):
    told = []
    for url in (":memory:", tmp_path / "s.db"):
        with Journal.open(url) as journal:
            durable = story(journal)
            events = [(e.seq, e.kind, e.origin, e.operation, e.before, e.after, e.forgotten) for e in durable.operations()]
            told.append((events, contents(durable.memory), contents(durable.as_of(4)), journal.verify().ok))
            durable.compact()
            assert contents(durable.memory) == told[-1][1] and journal.verify().ok
    assert told[0] == told[1] and told[0][3]


def test_two_of_them_share_nothing():
    one, two = Journal.open(":memory:"), Journal.open(":memory:")
    story(one)
    assert two.namespaces() == () and one.namespaces() == (MARTA,)


def test_what_raised_inside_a_write_left_nothing():
    journal = Journal.open(":memory:")
    durable = journal.memory(MARTA, SCHEMA)
    with pytest.raises(ZeroDivisionError), durable.writing(BY) as memory:
        memory.apply(insert("tea"))
        raise ZeroDivisionError
    assert contents(durable.memory) == {}
    assert journal.namespaces() == () and journal.verify().ok


def test_forgetting_leaves_no_byte():
    journal = Journal.open(":memory:")
    durable = journal.memory(MARTA, SCHEMA)
    durable.apply(insert("blue secret"), BY)
    assert b"blue secret" in journal._log.backend._connection.serialize()
    durable.forget("1")
    assert b"blue secret" not in journal._log.backend._connection.serialize()


def test_there_is_no_backup_and_no_use_after_closing(tmp_path):
    journal = Journal.open(":memory:")
    with pytest.raises(JournalError, match=":memory: makes no backups"):
        journal.backup(tmp_path / "copy.db")
    journal.close()
    with pytest.raises(JournalError, match="cannot be used"):
        journal.namespaces()
