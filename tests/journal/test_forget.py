"""Forgetting: no byte left in any file, a receipt kept, and forgetting wins over everything that
could bring the content back."""

import gc
import hashlib
import sqlite3

import pytest
from stores import (
    BY,
    IVAN,
    MARTA,
    SCHEMA,
    apply,
    contents,
    core,
    delete,
    durable_of,
    files_with,
    insert,
    memory_of,
    opened,
    rebuilt,
    search,
    state,
    update,
    wait_until_scrubbed,
)

from memalpha.errors import ForgottenError, InputError, JournalDamagedError
from memalpha.retrieval import RetrievalConfig, RetrievalMode
from memalpha.retrieval.dense import CachedEmbedder, HashingEmbedder
from memalpha.retrieval.lexical import tokenize
from memalpha.retrieval.two_layer import TwoLayerRetriever, retriever_factory
from memalpha.store.database import Database
from memalpha.store.indexed import IndexedStore
from memalpha.store.journal import Journal, Namespace, Origin, hash_prompt
from memalpha.types import Entry

SECRETS = ("Zaphod-of-Oslo", "Zaphod-of-Rome", "quelle-überraschung")
ORIGIN = Origin("agent-Zaphod", "chunk-Zaphod", "prompt-Zaphod")


@pytest.fixture
def store(folder):
    journal, durable = opened(folder / "store.db")
    yield journal, durable
    journal.close()


def fill(durable, n=40):
    durable.apply(insert(SECRETS[0]), ORIGIN)
    for i in range(n):
        durable.apply(insert(f"harmless {i} " + "x" * (i * 37)), BY)
    durable.apply(update("1", SECRETS[1] + " " + "y" * 6000), ORIGIN)
    durable.apply(update("1", SECRETS[2]), ORIGIN)


def test_no_byte_of_an_entry_is_left_in_any_file(folder, store):
    _, durable = store
    fill(durable)
    assert len(files_with(folder, *SECRETS, "Zaphod")) >= 2
    before = contents(durable.memory)
    receipt = durable.forget("1")
    assert (receipt.entry, receipt.operations, receipt.said_by) == ("1", 3, ())
    assert files_with(folder, *SECRETS, "Zaphod", "y" * 50) == []
    assert {p.name for p in folder.iterdir()} >= {"store.db", "store.db-wal"}
    del before["1"]
    other, same = opened(folder / "store.db")
    assert other.verify().ok and other.verify().forgotten == 3 and contents(same.memory) == before
    assert (
        durable.apply(insert("new"), BY).entry_id == "42"
    )  # the forgotten entry's id is not used again


def test_forgetting_wins_over_undo_history_and_the_past(store):
    _, durable = store
    fill(durable, 2)
    durable.apply(delete("1"), BY)
    durable.forget("1")
    assert {
        (e.forgotten, e.operation, e.before, e.after, e.origin) for e in durable.history("1")
    } == {(True, None, None, None, None)}
    for seq in (1, 4, 5, 6, 7):
        with pytest.raises(ForgottenError, match="forgetting wins"):
            durable.undo(seq, BY)
    for seq in range(8):
        assert "1" not in contents(durable.as_of(seq))
    with pytest.raises(InputError, match="nothing of an entry '1' is left"):
        durable.forget("1")
    assert contents(rebuilt(durable)) == contents(durable.memory)


def test_the_same_text_in_other_records_goes_too_unless_somebody_says_it_now(folder, store):
    journal, durable = store
    durable.apply(insert("Zaphod"), BY)  # 1
    durable.apply(insert("Zaphod", "notes"), BY)  # 2 says it now
    durable.apply(insert("Zaphod", timestamp="2020"), BY)  # 3 said it once
    durable.apply(update("3", "changed since", timestamp="2021"), BY)
    durable.apply(insert("other"), BY)  # 4
    durable.apply(update("4", "Zaphod"), BY)  # repeats 1: deletes 4
    receipt = durable.forget("1")
    assert [entry.id for entry in receipt.said_by] == [
        "2"
    ] and receipt.operations == 3  # of 1, of 3 the first, of 4 the update
    assert (
        contents(durable.memory)
        == contents(rebuilt(durable))
        == {"2": "Zaphod", "3": "changed since"}
    )
    assert journal.verify().ok
    durable.forget("2")
    assert files_with(folder, "Zaphod") == []
    assert contents(opened(folder / "store.db")[1].memory) == {"3": "changed since"}
    with pytest.raises(ForgottenError):
        durable.undo(4, BY)  # before it, 3 said what is forgotten


@pytest.mark.parametrize(
    ("others", "counts"), [(48, True), (51, False)]
)  # with its own entry the name is in 50, or in 53
def test_a_word_in_most_of_many_texts_tells_nothing_and_the_rarest_come_first(
    store, others, counts
):
    _, durable = store
    with durable.writing(BY) as memory:
        for text in (
            "Marta city Oslo",
            "to Oslo with Marta",
            "Oslo",
            *(f"Marta likes thing {n}" for n in range(others)),
        ):
            memory.apply(insert(text))
    listed = [entry.id for entry in durable.forget("1").said_by]
    assert sorted(listed[:2]) == ["2", "3"] and len(listed) == 2 + others * counts


def test_forgetting_a_namespace_takes_its_names_too(folder, store):
    journal, durable = store
    fill(durable, 3)
    stranger = Namespace("user-Zaphod", "agent", "session-Zaphod")
    journal.memory(stranger, SCHEMA).apply(insert("something"), ORIGIN)
    assert journal.forget(stranger).operations == 1 and journal.forget(MARTA).operations == 6
    assert files_with(folder, "Zaphod", "marta", *SECRETS) == []
    assert journal.namespaces() == () and journal.verify().ok and contents(durable.memory) == {}
    durable.apply(insert("a new life"), BY)
    assert (
        contents(durable.memory) == {"1": "a new life"}
        and durable.memory.clock == 2
        and journal.verify().ok
    )
    with pytest.raises(InputError, match="no namespace"):
        journal.forget(stranger)


def made(store, name=MARTA):
    """What was embedded since the last time, after a search that finds what an index made anew
    does."""
    hits, anew = search(store, name, "harmless number", 9), rebuilt(durable_of(store, name))
    with store.reading(name) as (_, retriever):
        calls = retriever._embedder._embedder.calls
    counted = [text for call in calls for text in call]
    assert hits == TwoLayerRetriever(anew, HYBRID, CachedEmbedder(HashingEmbedder())).search(
        "harmless number", 9
    )
    assert hits
    calls.clear()
    return counted


class Counting(HashingEmbedder):
    def __init__(self):
        super().__init__()
        self.calls = []

    def embed(self, texts):
        self.calls.append(list(texts))
        return super().embed(texts)


HYBRID = RetrievalConfig(retrieval=RetrievalMode.HYBRID, embedder="hashing")


def test_an_index_stays_when_another_entry_is_forgotten_a_forgetting_is_refused_or_a_write_fails(
    folder,
):
    embedder = CachedEmbedder(Counting(), capacity=1)  # what is made again is seen
    store = IndexedStore(
        Journal.open(folder / "s.db"),
        SCHEMA,
        lambda memory: TwoLayerRetriever(memory, HYBRID, embedder),
    )
    with store.writing(MARTA, BY) as memory:
        for i in range(20):
            memory.apply(insert(f"harmless number {i}"))
        memory.apply(insert(f"{SECRETS[0]} number"))
        memory.apply(update("3", f"harmless number {SECRETS[1]}"))
    assert len(made(store)) == 21 + 1
    store.forget(MARTA, "21")
    assert set(made(store)) <= {"harmless number"}
    with pytest.raises(InputError, match="nothing of an entry '99'"):
        store.forget(MARTA, "99")
    with pytest.raises(ZeroDivisionError), store.writing(MARTA, BY) as memory:
        memory.apply(insert("half done number"))
        memory.apply(delete("5"))
        raise ZeroDivisionError
    assert set(made(store)) <= {"harmless number"} and len(memory_of(store, MARTA)) == 20
    IndexedStore(Journal.open(folder / "s.db"), SCHEMA, retriever_factory()).forget(
        MARTA, "3"
    )  # by another process
    durable_of(store).undo(1, BY)
    apply(store, MARTA, insert("harmless number of the end"), BY)
    assert (
        set(made(store)) <= {"harmless number", "harmless number of the end"}
        and len(memory_of(store, MARTA)) == 19
    )
    assert (
        gc.collect() >= 0
        and [
            entry
            for entry in gc.get_objects()
            if isinstance(entry, Entry) and SECRETS[0] in entry.content
        ]
        == []
    )


@pytest.mark.parametrize("forget", ["1", "2", "3"])
def test_the_memory_after_a_forgetting_is_that_of_the_log(store, forget):
    journal, durable = store
    for content in ("first", "second", "first of all"):
        durable.apply(insert(content), BY, chunk=1)
    durable.apply(update("1", "third"), BY)
    durable.apply(core("likes rain"), BY)
    durable.forget(forget)
    fresh = journal.memory(MARTA, SCHEMA).memory
    assert (state(durable.memory), durable.memory.clock) == (state(fresh), fresh.clock)
    assert durable.apply(insert("fourth"), BY).entry_id == "4"
    assert state(durable.memory) == state(rebuilt(durable)) and journal.verify().ok


@pytest.mark.parametrize("whole", [False, True])
def test_no_cache_of_the_process_keeps_the_text(folder, whole):
    make = retriever_factory(RetrievalConfig(retrieval=RetrievalMode.HYBRID, embedder="hashing"))
    store = IndexedStore(Journal.open(folder / "store.db"), SCHEMA, make)
    apply(store, MARTA, insert("Zaphod plays the piano"), BY)
    apply(store, IVAN, insert("Ivan plays chess"), BY)
    search(store, IVAN, "chess", 5)
    assert [h.entry.id for h in search(store, MARTA, "who is Zaphod", 5)] == ["1"]
    with store.reading(MARTA) as (_, retriever):
        embedder = retriever._embedder
    assert any("Zaphod" in text for text in embedder._vectors)
    store.forget(MARTA, None if whole else "1")
    assert tokenize.cache_info().currsize == 0 and not [
        text for text in embedder._vectors if "Zaphod" in text
    ]
    assert "Ivan plays chess" in embedder._vectors
    assert [h.entry.content for h in search(store, IVAN, "chess", 5)] == ["Ivan plays chess"]


@pytest.mark.parametrize("opened_anew", [False, True])
def test_a_reader_in_the_way_delays_the_erasure_until_it_is_gone(folder, opened_anew):
    journal, durable = opened(folder / "store.db", wait=0.2)
    durable.apply(insert(SECRETS[0]), BY)
    reader = sqlite3.connect(folder / "store.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM log").fetchall()
    assert not durable.forget("1").scrubbed
    assert contents(durable.memory) == {} and journal.database.to_scrub()
    assert durable.apply(insert("goes on"), BY).changed  # nobody has to wait for the reader
    assert durable.forget("2").operations == 1
    assert files_with(folder, SECRETS[0]) != []
    reader.close()
    if opened_anew:
        Journal.open(folder / "store.db").close()
        assert files_with(folder, SECRETS[0], "goes on") == []
    wait_until_scrubbed(journal)
    assert files_with(folder, SECRETS[0], "goes on") == [] and not journal.database.to_scrub()
    assert durable.apply(insert("and on"), BY).entry_id == "3" and durable.forget("3").scrubbed


def test_an_erasure_of_another_process_keeps_its_mark_until_it_is_scrubbed(
    folder, store, monkeypatch
):
    """The other one erases while this one rewrites the files, and is killed before it can rewrite
    them itself."""
    _, durable = store
    fill(durable, 2)
    _, other = opened(folder / "store.db")
    rewrite = type(store[0].database)._rewrite

    def rewrite_and_be_overtaken(self):
        rewrite(self)
        monkeypatch.setattr(Database, "scrub", lambda self, wait: None)
        other.forget("2")
        monkeypatch.undo()

    monkeypatch.setattr(type(store[0].database), "_rewrite", rewrite_and_be_overtaken)
    durable.forget("1")
    assert store[0].database.to_scrub() and files_with(folder, "harmless 0") != []
    Journal.open(folder / "store.db").close()
    assert not store[0].database.to_scrub() and files_with(folder, "harmless 0") == []


def test_an_erasure_without_a_receipt_is_found(folder, store):
    journal, durable = store
    fill(durable, 2)
    journal.database.execute("UPDATE log SET body = NULL, salt = NULL WHERE seq = 2 AND ns != ''")
    assert any(
        "operations [2] have lost their content and no receipt" in line
        for line in journal.verify().faults
    )
    with pytest.raises(JournalDamagedError, match="no receipt"):
        _ = opened(folder / "store.db")[1].memory


def test_no_digest_that_is_left_confirms_a_guess(folder, store):
    """Entry 2 comes from the same chunk as entry 1. Once 1 is forgotten, nothing tells which chunk
    and prompt that was."""
    journal, durable = store
    chunk, prompt = (
        "sha256:" + hashlib.sha256(b"the code is swordfish").hexdigest(),
        hash_prompt([4, 7, 1, 1]),
    )
    with durable.writing(Origin("agent", chunk, prompt)) as memory:
        memory.apply(insert("the code is swordfish"))
        memory.apply(insert("there is a code"))
    assert (
        len({record.salt for record in durable._tail_of(durable._tail.ns).read_on()}) == 2
    )  # without it, a commitment confirms no guess
    seen = durable.history("2")[0].origin
    assert (
        (seen.source, seen.prompt_hash)
        == (durable.keyed(chunk), durable.keyed(prompt))
        != (chunk, prompt)
    )
    secret = journal.database.secret(journal.registered[MARTA].entry)
    assert len(secret) == 64 and files_with(folder, secret) != []
    with pytest.raises(InputError, match="nothing of an entry '9'"):
        durable.forget("9")
    assert durable.keyed(prompt) == seen.prompt_hash
    durable.forget("1")
    assert files_with(folder, secret, chunk[7:], prompt, "swordfish") == []
    assert durable.history("2")[0].origin == seen and durable.keyed(prompt) != seen.prompt_hash
    assert journal.verify().ok
