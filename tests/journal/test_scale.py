"""A hundred thousand entries in one namespace: the same answers, and how many seconds they take (printed with -s)."""

from __future__ import annotations

import time

import pytest
from stores import BY, MARTA, agrees, indexed, insert

ENTRIES, BATCH = 100_000, 100


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_hundred_thousand_entries(tmp_path):
    def timed(name, run):
        began = time.process_time()
        result = run()
        print(f"{name}: {time.process_time() - began:.3f} s")
        return result

    store = indexed(tmp_path / "s.db")
    journal, durable = store.journal, store.durable(MARTA)

    def fill():
        for start in range(0, ENTRIES, BATCH):
            with durable.writing(BY) as memory:
                for i in range(start, start + BATCH):
                    memory.apply(insert(f"person{i} lives in town{i % 997} and likes thing{i % 89}"))

    timed("write, 100 operations a transaction", fill)
    timed("one more write", lambda: durable.apply(insert("the last of all"), BY))
    journal.close()
    store = indexed(tmp_path / "s.db")
    journal, durable = store.journal, timed("reopen, rebuild memory and BM25", lambda: store.durable(MARTA))
    assert [h.entry.id for h in timed("search", lambda: store.search(MARTA, "person54321", 3))] == ["54322"]
    assert timed("verify", journal.verify).ok and agrees(store)
    assert len(timed("as_of the middle", lambda: durable.as_of(50_000))) == 50_000
    assert timed("undo", lambda: durable.undo(ENTRIES + 1, BY)).after is None
    assert timed("export", lambda: journal.export(tmp_path / "e.jsonl")) == ENTRIES + 2
    assert timed("forget", lambda: durable.forget("777")).operations == 1
    assert len(durable.memory) == ENTRIES - 1 and journal.verify().ok
    print({path.name: path.stat().st_size for path in tmp_path.iterdir()})
