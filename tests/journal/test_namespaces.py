"""Namespaces under concurrent writers, in threads and in processes: nothing lost, nothing of one in
another."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from memalpha.errors import InputError, JournalBusyError, JournalError
from memalpha.memory.schema import ARCHIVE, MemorySchema
from memalpha.store.exchange import export_journal, import_journal
from memalpha.store.journal import Journal, Namespace
from memalpha.types import Operation, OperationKind
from tests.helpers.stores import (
    BY,
    IVAN,
    MARTA,
    agrees,
    apply,
    contents,
    delete,
    durable_of,
    indexed,
    insert,
    memory_of,
    opened,
    rebuilt,
    search,
    state,
    update,
)

# would run into each other if they were joined, cased or cut carelessly
NAMES = [
    Namespace("a", "b", "c"),
    Namespace("a/b", "c"),
    Namespace("a", "b/c"),
    Namespace("A", "b", "c"),
    Namespace("a", "b", "d"),
]


def mark_of(name):
    return f"mark{NAMES.index(name)}"


def write(store, who):
    for n in range(4):
        for name in NAMES:
            with store.writing(BY, namespace=name) as memory:
                memory.apply(insert(f"tea {who} {n} {mark_of(name)}"))
                memory.apply(update(str(n), f"rain {who} {mark_of(name)}"))
                memory.apply(delete(str(3 * n + 2)))
            hits = search(store, name, "tea rain", 50)
            assert hits and all(hit.entry.content.endswith(mark_of(name)) for hit in hits)


@pytest.mark.parametrize("shared", [True, False])
def test_threads_of_processes_that_make_the_store_at_once(folder, shared):
    path, children = folder / "store.db", []
    for process in range(3):
        if (child := os.fork()) == 0:
            try:
                one = indexed(path)
                stores = [one, one if shared else indexed(path)]
                with ThreadPoolExecutor(2) as pool:
                    list(pool.map(write, stores, [f"{process}-0", f"{process}-1"]))
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    store = indexed(path)
    assert store.journal.verify().ok
    for name in NAMES:
        done = [event.operation for event in durable_of(store, name).history()]
        assert sum(operation.kind == "insert" for operation in done) == 24
        assert agrees(store, name)  # with the log carried out anew


def test_a_second_writer_waits_then_says_so_and_readers_read_on(folder):
    path = folder / "store.db"
    if (holder := os.fork()) == 0:
        with opened(path, IVAN)[1].writing(BY) as memory:
            memory.apply(insert("in the works"))
            (folder / "held").touch()
            time.sleep(60)
    while not (folder / "held").exists():
        time.sleep(0.01)
    threading.Timer(0.3, lambda: os.kill(holder, signal.SIGKILL)).start()
    journal, durable = opened(path)
    assert durable.apply(insert("waited"), BY).entry_id == "1"
    os.waitpid(holder, 0)
    assert journal.namespaces() == (MARTA,) and journal.verify().ok
    _, impatient = opened(path, wait=0.1)
    with durable.writing(BY) as memory:
        memory.apply(insert("half done"))
        assert contents(impatient.memory) == {"1": "waited"}  # readers do not wait
        with pytest.raises(JournalBusyError):
            impatient.apply(insert("not now"), BY)


def test_readers_see_acknowledged_writes_of_others_at_once(folder):
    (_, writer), (_, reader) = opened(folder / "s.db"), opened(folder / "s.db")
    for i in range(5):
        writer.apply(insert(f"n{i}"), BY)
        assert len(reader.memory) == i + 1
    writer.undo(5, BY)
    writer.forget("1")
    assert contents(reader.memory) == {"2": "n1", "3": "n2", "4": "n3"}
    assert state(reader.memory) == state(rebuilt(reader)) == state(writer.memory)


def test_a_memory_from_another_namespace_is_never_handed_out(folder):
    store = indexed(folder / "s.db", in_memory=1)
    for name in NAMES:
        apply(store, name, insert(f"tea {mark_of(name)}"), BY)
    for name in [*NAMES, *reversed(NAMES)]:  # each evicts the one before
        assert [hit.entry.content for hit in search(store, name, "tea", 9)] == [
            f"tea {mark_of(name)}"
        ]
    assert search(store, MARTA, "tea", 9) == []
    with pytest.raises(JournalError):
        memory_of(store, NAMES[0]).apply(insert("around"))


def test_a_memory_of_lines_alone_takes_the_schema_of_its_first_entry(folder):
    place = folder / "m.db"
    facts, core = (MemorySchema.load(name) for name in ("facts", "small_core"))
    line = Operation(OperationKind.INSERT, ARCHIVE.name, "User: I live in Oslo.")
    with Journal.open(place) as journal, Journal.open(place) as other:
        read = journal.memory(MARTA, core)
        assert read.apply(line, BY, chunk=1).changed
        written = other.memory(MARTA, facts)
        assert written.apply(replace(line, content="User: Hi."), BY, chunk=2).changed
        assert journal.schema(MARTA).name == "small_core"  # a line fits any
        assert len(read.memory.entries(ARCHIVE.name)) == 2
        entry = Operation(OperationKind.INSERT, "facts", "Marta lives in Oslo")
        assert written.apply(entry, BY, chunk=2).changed
        assert journal.schema(MARTA).name == "facts"
        assert [each.content for each in written.memory] == ["Marta lives in Oslo"]
        with pytest.raises(InputError, match="has the schema"):
            _ = read.memory
        with pytest.raises(InputError, match="has the schema"):
            journal.memory(MARTA, core).apply(line, BY)
        assert journal.memory(MARTA, facts).as_of(2).entries(ARCHIVE.name)
        assert journal.verify().ok
        export_journal(journal, folder / "m.jsonl")
    with Journal.open(folder / "copy.db") as copy:
        import_journal(copy, folder / "m.jsonl")
        assert len(list(copy.memory(MARTA, facts).memory)) == 1
    with Journal.open(place) as journal:
        journal.forget(MARTA)
        assert journal.verify().ok and not journal.namespaces()
    assert b"marta" not in place.read_bytes()


def test_of_two_that_have_read_lines_alone_the_first_to_write_an_entry_decides(folder):
    place = folder / "m.db"
    facts, core = (MemorySchema.load(name) for name in ("facts", "small_core"))
    with Journal.open(place) as journal, Journal.open(place) as other:
        first = journal.memory(MARTA, facts)
        first.apply(Operation(OperationKind.INSERT, ARCHIVE.name, "User: Hi."), BY, chunk=1)
        second = other.memory(MARTA, core)
        assert len(second.memory) == 0
        first.apply(insert("Marta lives in Oslo"), BY)
        for section in core.lists:
            with pytest.raises(InputError, match="has the schema"):
                second.apply(Operation(OperationKind.INSERT, section.name, "tea"), BY)
        assert journal.schema(MARTA).name == "facts" and journal.verify().ok
        assert [entry.content for entry in first.memory] == ["Marta lives in Oslo"]
