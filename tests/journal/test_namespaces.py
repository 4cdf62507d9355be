"""Namespaces under concurrent writers, in threads and in processes: nothing lost, nothing of one in another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stores import BY, MARTA, SCHEMA, contents, delete, insert, opened, update

from memalpha.errors import JournalBusyError, JournalError
from memalpha.memory.memory import Memory
from memalpha.retrieval.two_layer import retriever_factory
from memalpha.store.indexed import IndexedStore
from memalpha.store.journal import Journal, Namespace

# Names that would run into each other if they were joined, cased or cut carelessly.
NAMES = [Namespace("a", "b", "c"), Namespace("a/b", "c"), Namespace("a", "b/c"), Namespace("A", "b", "c"), Namespace("a", "b", "d")]

STEP = st.tuples(
    st.sampled_from(["insert", "insert", "update", "delete"]), st.integers(1, 4), st.sampled_from(["red", "blue", "tea"])
)
PLAN = st.lists(st.tuples(st.sampled_from(NAMES), st.lists(STEP, min_size=1, max_size=3)), min_size=1, max_size=8)


def operation(step, mark):
    kind, number, word = step
    if kind == "delete":
        return delete(str(number))
    return insert(f"{word} {mark}") if kind == "insert" else update(str(number), f"{word} {mark}")


def mark_of(name):
    return f"mark{NAMES.index(name)}"


def carry_out(store, plan):
    for name, steps in plan:
        with store.writing(name, BY) as memory:
            for step in steps:
                memory.apply(operation(step, mark_of(name)))
        hits = store.search(name, "red blue tea", 50)
        assert all(hit.entry.content.endswith(mark_of(name)) for hit in hits)


def agrees_with_plain_memories(path, plans):
    """Each namespace is what a plain memory is after that namespace's operations in the order of its log."""
    with Journal.open(path) as journal:
        store = IndexedStore(journal, SCHEMA, retriever_factory())
        assert journal.verify().ok
        for name in NAMES:
            plain, durable = Memory(SCHEMA), store.durable(name)
            for event in durable.operations():
                assert plain.apply(event.operation).changed
            assert contents(plain) == contents(durable.memory)
            assert all(entry.content.endswith(mark_of(name)) for entry in durable.memory)
            found = {hit.entry.id for hit in store.search(name, "red blue tea", 99)}
            assert found == {entry.id for entry in durable.memory.entries()} and store.check(name) == []
            asked = [operation(s, mark_of(name)) for plan in plans for who, steps in plan if who == name for s in steps]
            inserted = {op.content for op in asked if op.kind == "insert"}
            assert {event.operation.content for event in durable.operations() if event.operation.kind == "insert"} <= inserted
        return {name: store.memory(name).seq for name in NAMES}


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plans=st.lists(PLAN, min_size=2, max_size=3), shared=st.booleans())
def test_threads(folder, plans, shared):
    path = Path(tempfile.mkdtemp(dir=folder)) / "store.db"
    one = IndexedStore(Journal.open(path), SCHEMA, retriever_factory())
    failures: list[BaseException] = []

    def run(plan):
        try:
            carry_out(one if shared else IndexedStore(Journal.open(path), SCHEMA, retriever_factory()), plan)
        except BaseException as error:  # noqa: BLE001 - a thread's failure is the test's
            failures.append(error)

    threads = [threading.Thread(target=run, args=(plan,)) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    agrees_with_plain_memories(path, plans)


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plans=st.lists(PLAN, min_size=2, max_size=3))
def test_processes_that_were_forked(folder, plans):
    """The parent's store is open and used before and after: a child must not use its connection."""
    path = Path(tempfile.mkdtemp(dir=folder)) / "store.db"
    store = IndexedStore(Journal.open(path), SCHEMA, retriever_factory())
    carry_out(store, plans[0])
    children = []
    for plan in plans[1:]:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                carry_out(store, plan)
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    carry_out(store, plans[0])
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * len(children)
    agrees_with_plain_memories(path, plans)
    carry_out(store, plans[0])
    agrees_with_plain_memories(path, plans)


HOLDER = """
import sys, time
sys.path[:0] = {paths!r}
from stores import opened, insert, BY
journal, durable = opened({path!r})
with durable.writing(BY) as memory:
    memory.apply(insert("in the works"))
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_waits_then_says_so_and_readers_read_on(folder):
    path = folder / "store.db"
    journal, durable = opened(path, wait=0.3)
    durable.apply(insert("before"), BY)
    code = HOLDER.format(paths=sys.path, path=str(path))
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        assert contents(durable.memory) == {"1": "before"}  # readers do not wait, and see nothing half done
        with pytest.raises(JournalBusyError, match=r"written by another process for more than 0\.3 s"):
            durable.apply(insert("not now"), BY)
        journal._log.database._lock.timeout = 30
        threading.Timer(0.3, lambda: holder.send_signal(signal.SIGKILL)).start()
        assert durable.apply(insert("waited"), BY).entry_id == "2"
    finally:
        holder.kill()
        holder.wait()
    assert contents(durable.memory) == {"1": "before", "2": "waited"} and journal.verify().ok


def test_readers_see_acknowledged_writes_of_others_at_once(folder):
    (_, writer), (_, reader) = opened(folder / "s.db"), opened(folder / "s.db")
    for i in range(5):
        writer.apply(insert(f"n{i}"), BY)
        assert len(reader.memory) == i + 1
    writer.undo(5, BY)
    assert len(reader.memory) == 4
    writer.compact()
    assert contents(reader.memory) == contents(writer.memory) and reader.memory.seq == writer.memory.seq
    writer.forget("1")
    assert contents(reader.memory) == {"2": "n1", "3": "n2", "4": "n3"}
    assert reader.memory.snapshot() == reader.rebuilt().snapshot() == writer.memory.snapshot()


def test_a_memory_from_another_namespace_is_never_handed_out(folder):
    store = IndexedStore(Journal.open(folder / "s.db"), SCHEMA, retriever_factory(), keep=1)
    for name in NAMES:
        store.apply(name, insert(f"tea {mark_of(name)}"), BY)
    for name in [*NAMES, *reversed(NAMES)]:  # each evicts the one before
        assert [hit.entry.content for hit in store.search(name, "tea", 9)] == [f"tea {mark_of(name)}"]
    assert store.search(MARTA, "tea", 9) == []
    with pytest.raises(JournalError):
        store.memory(NAMES[0]).apply(insert("around"))
