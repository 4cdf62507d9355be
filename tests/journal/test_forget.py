"""Forgetting: no byte left in any file, a receipt kept, and forgetting wins over everything that
could bring the content back."""

import hashlib
import sqlite3

import pytest

from memalpha.errors import ForgottenError, InputError
from memalpha.retrieval import RetrievalConfig
from memalpha.retrieval.lexical import search_words, tokenize
from memalpha.retrieval.two_layer import retriever_factory
from memalpha.store.history import still_say
from memalpha.store.journal import Namespace, Origin, hash_prompt
from memalpha.types import Entry, Hit
from memalpha.use.store import MemoryStore
from tests.helpers.stores import (
    BY,
    IVAN,
    MARTA,
    SCHEMA,
    apply,
    contents,
    delete,
    files_with,
    insert,
    memory_of,
    opened,
    rebuilt,
    search,
    update,
    wait_until_scrubbed,
)

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
        with pytest.raises(ForgottenError, match="an undo cannot bring it back"):
            durable.undo(seq, BY)
    for seq in range(8):
        assert "1" not in contents(durable.as_of(seq))
    with pytest.raises(InputError, match="has no entry or line '1'"):
        durable.forget("1")


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
    durable.forget("2")
    assert files_with(folder, "Zaphod") == [] and journal.verify().ok
    with pytest.raises(ForgottenError):
        durable.undo(4, BY)  # before it, 3 said what is forgotten


def test_forgetting_a_namespace_takes_its_names_too(folder, store):
    journal, durable = store
    fill(durable, 3)
    stranger = Namespace("user-Zaphod", "agent", "session-Zaphod")
    journal.memory(stranger, SCHEMA).apply(insert("something"), ORIGIN)
    assert journal.forget(stranger).operations == 1 and journal.forget(MARTA).operations == 6
    assert files_with(folder, "Zaphod", "marta", *SECRETS) == []
    assert journal.namespaces() == () and journal.verify().ok and contents(durable.memory) == {}
    durable.apply(insert("a new life"), BY)
    assert contents(durable.memory) == {"1": "a new life"} and journal.verify().ok


HYBRID = RetrievalConfig(retrieval="hybrid", embedder="hashing")


@pytest.mark.parametrize("whole", [False, True])
def test_no_cache_of_the_process_keeps_the_text(folder, whole):
    store = MemoryStore(folder / "store.db", SCHEMA, retriever_factory(HYBRID))
    apply(store, MARTA, insert("Zaphod plays the piano"), BY)
    apply(store, IVAN, insert("Ivan plays chess"), BY)
    search(store, IVAN, "chess", 5)
    assert [h.entry.id for h in search(store, MARTA, "who is Zaphod", 5)] == ["1"]
    with store.reading(MARTA) as (_, retriever):
        embedder = retriever._embedder
    assert any("Zaphod" in text for _, text in embedder._vectors)
    store.forget_all(namespace=MARTA) if whole else store.forget("1", namespace=MARTA)
    assert tokenize.cache_info().currsize == search_words.cache_info().currsize == 0
    assert not [text for _, text in embedder._vectors if "Zaphod" in text]
    assert (False, "Ivan plays chess") in embedder._vectors
    assert [h.entry.content for h in search(store, IVAN, "chess", 5)] == ["Ivan plays chess"]


class Newest:
    """A retriever of one's own that goes on with another memory."""

    def __init__(self, memory):
        self.memory = memory
        self.memories = [memory]

    def search(self, query, k, sections=None):
        return [Hit(entry, 1.0) for entry in self.memory.entries()[::-1][:k]]

    def rebind(self, memory):
        self.memory = memory
        self.memories.append(memory)


def test_any_retriever_that_can_follow_another_memory_stays(folder):
    made = []

    def make(memory):
        made.append(Newest(memory))
        return made[-1]

    store = MemoryStore(folder / "store.db", SCHEMA, make)
    for text in ("Zaphod plays the piano", "Ivan plays chess"):
        apply(store, MARTA, insert(text), BY)
    assert [hit.entry.id for hit in search(store, MARTA, "who", 5)] == ["2", "1"]
    store.forget("2", namespace=MARTA)  # the memory is made anew
    assert [hit.entry.id for hit in search(store, MARTA, "who", 5)] == ["1"]
    (retriever,) = made
    assert retriever.memories[1:] == [memory_of(store)]


def test_a_reader_in_the_way_delays_the_erasure_until_it_is_gone(folder):
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
    wait_until_scrubbed(journal)
    assert files_with(folder, SECRETS[0], "goes on") == [] and not journal.database.to_scrub()


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
    durable.forget("1")
    assert files_with(folder, secret, chunk[7:], prompt, "swordfish") == []
    assert durable.history("2")[0].origin == seen and durable.keyed(prompt) != seen.prompt_hash
    assert journal.verify().ok


def test_the_role_of_a_speaker_is_no_word_that_is_left_but_a_name_is():
    lines = ["User: I live in Oslo.", "User: It rains.", "Marta: It rains.", "Marta lives in Oslo"]
    entries = [Entry(str(number), "facts", text) for number, text in enumerate(lines)]
    assert {entry.id for entry in still_say([lines[0]], entries)} == {"0", "3"}
    assert {entry.id for entry in still_say(["User: My bike is red."], entries)} == set()
    assert {entry.id for entry in still_say(["Marta"], entries)} == {"2", "3"}
