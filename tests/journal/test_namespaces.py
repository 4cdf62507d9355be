"""Namespaces under concurrent writers, in threads and in processes: nothing lost, nothing of one in another."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stores import BY, IVAN, MARTA, SCHEMA, agrees, contents, delete, indexed, insert, opened, rebuilt, state, update

from memalpha.errors import JournalBusyError, JournalError
from memalpha.memory.memory import Memory
from memalpha.store.journal import Journal, Namespace

# Names that would run into each other if they were joined, cased or cut carelessly.
NAMES = [Namespace("a", "b", "c"), Namespace("a/b", "c"), Namespace("a", "b/c"), Namespace("A", "b", "c"), Namespace("a", "b", "d")]

STEP = st.tuples(
    st.sampled_from(["insert", "insert", "update", "delete"]), st.integers(1, 4), st.sampled_from(["red", "blue", "tea"])
)
PLAN = st.lists(st.tuples(st.sampled_from(NAMES), st.lists(STEP, min_size=1, max_size=3)), min_size=1, max_size=8)


def mark_of(name):
    return f"mark{NAMES.index(name)}"


def operation(step, name):
    kind, number, word = step
    if kind == "delete":
        return delete(str(number))
    text = f"{word} {mark_of(name)}"
    return insert(text) if kind == "insert" else update(str(number), text)


def carry_out(store, plan):
    for name, steps in plan:
        with store.writing(name, BY) as memory:
            for step in steps:
                memory.apply(operation(step, name))
        hits = store.search(name, "red blue tea", 50)
        assert all(hit.entry.content.endswith(mark_of(name)) for hit in hits)


def agrees_with_plain_memories(path):
    """Each namespace is what a plain memory is after that namespace's operations in the order of its log."""
    store = indexed(path)
    assert store.journal.verify().ok
    for name in NAMES:
        plain, durable = Memory(SCHEMA), store.durable(name)
        done = [event.operation for event in durable.operations()]
        assert all(plain.apply(op).changed for op in done)
        assert contents(plain) == contents(durable.memory) and agrees(store, name)
    store.journal.close()


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plans=st.lists(PLAN, min_size=2, max_size=3), shared=st.booleans())
def test_threads(folder, plans, shared):
    path = Path(tempfile.mkdtemp(dir=folder)) / "store.db"
    one = indexed(path)
    failures: list[BaseException] = []

    def run(plan):
        try:
            carry_out(one if shared else indexed(path), plan)
        except BaseException as error:  # noqa: BLE001 - a thread's failure is the test's
            failures.append(error)

    threads = [threading.Thread(target=run, args=(plan,)) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    agrees_with_plain_memories(path)


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plans=st.lists(PLAN, min_size=3, max_size=4))
def test_processes_that_make_the_store_at_once(folder, plans):
    path = Path(tempfile.mkdtemp(dir=folder)) / "store.db"
    children = []
    for plan in plans:
        if (child := os.fork()) == 0:
            try:
                carry_out(indexed(path), plan)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
    agrees_with_plain_memories(path)


def test_a_second_writer_waits_then_says_so_and_readers_read_on(folder):
    path = folder / "store.db"
    if (holder := os.fork()) == 0:
        with opened(path, IVAN)[1].writing(BY) as memory:
            memory.apply(insert("in the works"))
            (folder / "held").touch()
            time.sleep(60)
    while not (folder / "held").exists():
        time.sleep(0.01)
    with pytest.raises(JournalBusyError, match=r"written by another for more than 0\.3 s"):
        Journal.open(path, wait=0.3)  # opening writes for a moment, too
    threading.Timer(0.3, lambda: os.kill(holder, signal.SIGKILL)).start()
    journal, durable = opened(path)
    assert durable.apply(insert("waited"), BY).entry_id == "1"
    os.waitpid(holder, 0)
    assert journal.namespaces() == (MARTA,) and journal.verify().ok
    _, impatient = opened(path, wait=0.1)
    with durable.writing(BY) as memory:
        memory.apply(insert("half done"))
        assert contents(impatient.memory) == {"1": "waited"}  # readers do not wait, and see nothing half done
        with pytest.raises(JournalBusyError):
            impatient.apply(insert("not now"), BY)


def test_readers_see_acknowledged_writes_of_others_at_once(folder):
    (_, writer), (_, reader) = opened(folder / "s.db"), opened(folder / "s.db")
    for i in range(5):
        writer.apply(insert(f"n{i}"), BY)
        assert len(reader.memory) == i + 1
    writer.undo(5, BY)
    assert len(reader.memory) == 4
    writer.forget("1")
    assert contents(reader.memory) == {"2": "n1", "3": "n2", "4": "n3"}
    assert state(reader.memory) == state(rebuilt(reader)) == state(writer.memory)


def test_a_memory_from_another_namespace_is_never_handed_out(folder):
    store = indexed(folder / "s.db", keep=1)
    for name in NAMES:
        store.apply(name, insert(f"tea {mark_of(name)}"), BY)
    for name in [*NAMES, *reversed(NAMES)]:  # each evicts the one before
        assert [hit.entry.content for hit in store.search(name, "tea", 9)] == [f"tea {mark_of(name)}"]
    assert store.search(MARTA, "tea", 9) == []
    with pytest.raises(JournalError):
        store.memory(NAMES[0]).apply(insert("around"))
