"""A hundred thousand entries in one namespace: the same answers, and how long they take (printed with -s)."""

from __future__ import annotations

import json
import time

import pytest
from stores import BY, MARTA, SCHEMA, insert, opened

from memalpha.retrieval.two_layer import retriever_factory
from memalpha.store.indexed import IndexedStore

ENTRIES, BATCH = 100_000, 100


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_hundred_thousand_entries(tmp_path):
    seconds, sizes = {}, {}

    def timed(name, run):
        began, busy = time.perf_counter(), time.process_time()
        result = run()
        seconds[name] = (round(time.perf_counter() - began, 3), round(time.process_time() - busy, 3))
        return result

    journal, durable = opened(tmp_path / "s.db")

    def fill():
        for start in range(0, ENTRIES, BATCH):
            with durable.writing(BY) as memory:
                for i in range(start, start + BATCH):
                    memory.apply(insert(f"person{i} lives in town{i % 997} and likes thing{i % 89}"))

    timed("write, 100 operations a transaction", fill)
    sizes["database"] = (tmp_path / "s.db").stat().st_size
    timed("one more write", lambda: durable.apply(insert("the last of all"), BY))
    journal.close()
    journal, durable = opened(tmp_path / "s.db")
    memory = timed("reopen and rebuild the memory", lambda: durable.memory)
    assert len(memory) == ENTRIES + 1 and memory.get("777").content == "person776 lives in town776 and likes thing64"
    store = IndexedStore(journal, SCHEMA, retriever_factory())
    timed("rebuild memory and BM25", lambda: store.retriever(MARTA).search("nothing", 1))
    assert [h.entry.id for h in timed("search", lambda: store.search(MARTA, "person54321", 3))] == ["54322"]
    assert timed("verify", journal.verify).ok
    assert timed("check the indexes", lambda: store.check(MARTA)) == []
    assert len(timed("history", lambda: durable.history("777"))) == 1
    assert len(timed("as_of the middle", lambda: durable.as_of(50_000))) == 50_000
    assert timed("undo", lambda: durable.undo(ENTRIES + 1, BY)).after is None
    assert timed("export", lambda: journal.export(tmp_path / "e.jsonl")) == ENTRIES + 2
    sizes["export"] = (tmp_path / "e.jsonl").stat().st_size
    assert timed("forget", lambda: durable.forget("777")).operations == 1
    assert timed("compact", durable.compact) == ENTRIES + 3
    sizes["compacted database"] = (tmp_path / "s.db").stat().st_size
    assert len(durable.memory) == ENTRIES - 1 and journal.verify().ok
    journal.close()
    print(json.dumps({"seconds, and of these on the processor": seconds, "bytes": sizes}, indent=1))
