"""Forgetting: no byte left in any file, a receipt kept, and forgetting wins over everything that could bring the content back."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from pathlib import Path

import pytest
from stores import BY, IVAN, MARTA, SCHEMA, contents, core, delete, files_with, insert, opened, update

from memalpha.errors import ForgottenError, InputError, JournalBusyError, JournalDamagedError, JournalError
from memalpha.retrieval import RetrievalConfig, RetrievalMode
from memalpha.retrieval.lexical import tokenize
from memalpha.retrieval.two_layer import retriever_factory
from memalpha.store import durable as durable_module
from memalpha.store.indexed import IndexedStore
from memalpha.store.journal import Journal, Namespace, Origin, hash_prompt

SECRETS = ("Zaphod-of-Oslo", "Zaphod-of-Rome", "quelle-überraschung")
ORIGIN = Origin("agent-Zaphod", "chunk-Zaphod", "prompt-Zaphod")


@pytest.fixture
def store(folder):
    journal, durable = opened(folder / "store.db")
    yield journal, durable
    journal.close()


def fill(durable, n=40):
    """Entry 1 is written three times among others, long texts and short."""
    durable.apply(insert(SECRETS[0]), ORIGIN)
    for i in range(n):
        durable.apply(insert(f"harmless {i} " + "x" * (i * 37)), BY)
    durable.apply(update("1", SECRETS[1] + " " + "y" * 6000), ORIGIN)
    durable.apply(update("1", SECRETS[2]), ORIGIN)


def test_no_byte_of_an_entry_is_left_in_any_file(folder, store):
    journal, durable = store
    fill(durable)
    journal.backup(folder / "backup.db")
    durable.apply(core("later than the backup"), BY)
    assert len(files_with(folder, *SECRETS, "Zaphod")) >= 2
    before = contents(durable.memory)
    receipt = durable.forget("1")
    assert (receipt.entry, receipt.operations, receipt.said_by) == ("1", 3, ())
    assert receipt.backups == (str(folder / "backup.db"),)
    assert files_with(folder, *SECRETS, "Zaphod", "y" * 50) == []
    assert {p.name for p in folder.iterdir()} >= {"store.db", "store.db-wal", "backup.db"}
    del before["1"]
    for path in ("store.db", "backup.db"):
        other, same = opened(folder / path)
        assert other.verify().ok and other.verify().forgotten == 3
        expected = before if path == "store.db" else {k: v for k, v in before.items() if k != "core"}
        assert contents(same.memory) == expected
        assert [r.entry for r in same.receipts()] == ["1"]
        other.close()
    assert durable.apply(insert("new"), BY).entry_id == "42"  # the forgotten entry's id is not used again


def test_forgetting_wins_over_undo_history_and_the_past(store):
    _, durable = store
    fill(durable, 2)
    durable.apply(delete("1"), BY)
    durable.forget("1")
    assert [(e.forgotten, e.operation, e.before, e.after, e.origin) for e in durable.history("1")] == [
        (True, None, None, None, None)
    ] * 5
    for seq in (1, 4, 5, 6, 7):
        with pytest.raises(ForgottenError, match="forgetting wins"):
            durable.undo(seq, BY)
    for seq in range(8):
        assert "1" not in contents(durable.as_of(seq))
    with pytest.raises(InputError, match="nothing of an entry '1' is left"):
        durable.forget("1")
    assert contents(durable.rebuilt()) == contents(durable.memory) == contents(durable.as_of(7))


def test_the_same_text_in_other_records_goes_too_unless_somebody_says_it_now(folder, store):
    journal, durable = store
    durable.apply(insert("Zaphod"), BY)  # 1
    durable.apply(insert("Zaphod", "notes"), BY)  # 2 says it now
    durable.apply(insert("Zaphod", timestamp="2020"), BY)  # 3 said it once
    durable.apply(update("3", "changed since", timestamp="2021"), BY)
    durable.apply(insert("other"), BY)  # 4
    durable.apply(update("4", "Zaphod"), BY)  # repeats 1: deletes 4
    receipt = durable.forget("1")
    assert receipt.said_by == ("2",) and receipt.operations == 3  # of 1, of 3 the first, of 4 the update
    assert contents(durable.memory) == contents(durable.rebuilt()) == {"2": "Zaphod", "3": "changed since"}
    assert journal.verify().ok
    durable.forget("2")
    assert files_with(folder, "Zaphod") == []
    assert contents(opened(folder / "store.db")[1].memory) == {"3": "changed since"}
    with pytest.raises(ForgottenError):
        durable.undo(4, BY)  # before it, 3 said what is forgotten


def test_forgetting_a_namespace_takes_its_names_too(folder, store):
    journal, durable = store
    fill(durable, 3)
    stranger = Namespace("user-Zaphod", "agent", "session-Zaphod")
    journal.memory(stranger, SCHEMA).apply(insert("something"), ORIGIN)
    journal.backup(folder / "backup.db")
    receipt = journal.forget(stranger)
    assert receipt.operations == 1 and receipt.backups == (str(folder / "backup.db"),)
    journal.forget(MARTA)
    assert files_with(folder, "Zaphod", "marta", *SECRETS) == []
    assert journal.namespaces() == () and journal.verify().ok and [r.operations for r in journal.receipts()] == [1, 6]
    assert contents(durable.memory) == {}
    durable.apply(insert("a new life"), BY)
    assert contents(durable.memory) == {"1": "a new life"} and durable.memory.seq == 1 and journal.verify().ok
    with pytest.raises(InputError, match="no namespace"):
        journal.forget(stranger)


def test_other_processes_and_indexes_forget_as_well(folder):
    stores = [IndexedStore(Journal.open(folder / "store.db"), SCHEMA, retriever_factory()) for _ in range(2)]
    stores[0].apply(MARTA, insert("Zaphod plays the piano"), BY)
    stores[0].apply(MARTA, insert("Ivan plays chess"), BY)
    assert [[h.entry.id for h in s.search(MARTA, "Zaphod", 5)] for s in stores] == [["1"], ["1"]]
    stores[0].forget(MARTA, "1")
    for s in stores:
        assert [h.entry.id for h in s.search(MARTA, "Zaphod piano plays", 5)] == ["2"]
        assert s.check(MARTA) == [] and "Zaphod" not in repr(s.memory(MARTA).changes)
    stores[1].forget(MARTA)
    for s in stores:
        assert s.search(MARTA, "plays", 5) == [] and s.check(MARTA) == []


@pytest.mark.parametrize("whole", [False, True])
def test_no_cache_of_the_process_keeps_the_text(folder, whole):
    make = retriever_factory(RetrievalConfig(retrieval=RetrievalMode.HYBRID, embedder="hashing"))
    store = IndexedStore(Journal.open(folder / "store.db"), SCHEMA, make)
    store.apply(MARTA, insert("Zaphod plays the piano"), BY)
    store.apply(IVAN, insert("Ivan plays chess"), BY)
    assert [h.entry.id for h in store.search(MARTA, "who is Zaphod", 5)] == ["1"]
    embedder = store.retriever(MARTA)._embedder
    assert any("Zaphod" in text for text in embedder._vectors)
    store.forget(MARTA, None if whole else "1")
    assert tokenize.cache_info().currsize == 0
    assert not [text for text in embedder._vectors if "Zaphod" in text]
    assert [h.entry.content for h in store.search(IVAN, "chess", 5)] == ["Ivan plays chess"] and store.check(IVAN) == []


def test_a_reader_in_the_way_delays_the_erasure_and_the_next_opening_finishes_it(folder):
    journal, durable = opened(folder / "store.db", wait=0.2)
    durable.apply(insert(SECRETS[0]), BY)
    reader = sqlite3.connect(folder / "store.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM log").fetchall()
    with pytest.raises(JournalBusyError):
        durable.forget("1")
    assert contents(durable.memory) == {} and journal._log.database.to_scrub()
    reader.close()
    journal.close()
    Journal.open(folder / "store.db").close()
    assert files_with(folder, SECRETS[0]) == []


def test_backups_that_are_gone_or_broken_are_named(folder, store):
    journal, durable = store
    fill(durable, 2)
    for name in ("moved.db", "broken.db", "good.db"):
        journal.backup(folder / name)
    (folder / "moved.db").unlink()
    receipt = durable.forget("2")
    assert receipt.missing == (str(folder / "moved.db"),) and len(receipt.backups) == 2
    (folder / "broken.db").write_bytes(b"rubbish" * 1000)
    with pytest.raises(JournalError, match=r"not in 1 of its copies: .*broken.db"):
        durable.forget("1")
    assert contents(durable.memory) == {"3": contents(durable.as_of(3))["3"]}
    assert files_with(folder, *SECRETS) == []  # the good backup was reached all the same
    with pytest.raises(InputError, match="exists"):
        journal.backup(folder / "good.db")


def test_a_store_that_took_its_backups_place_does_not_wait_for_itself(folder, store):
    journal, durable = store
    durable.apply(insert(SECRETS[0]), BY)
    journal.backup(folder / "backup.db")
    journal.close()
    (folder / "store.db").rename(folder / "backup.db")
    other, same = opened(folder / "backup.db", wait=0.2)
    assert same.forget("1").backups == () and files_with(folder, *SECRETS) == []
    other.close()


def test_a_backup_that_fails_leaves_nothing_and_is_not_listed(folder, store, monkeypatch):
    journal, durable = store
    durable.apply(insert(SECRETS[0]), BY)
    with pytest.raises(InputError, match="no folder"):
        journal.backup(folder / "nofolder" / "x.db")

    def full(self, target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", full)
        with pytest.raises(JournalError, match="No space left"):
            journal.backup(folder / "x.db")
    assert journal._log.database.backups() == [] and list(folder.glob("x.db*")) == []
    journal.backup(folder / "x.db")
    assert durable.forget("1").backups == (str(folder / "x.db"),)


def test_what_only_a_backup_still_holds_is_forgotten_there(folder, store):
    journal, durable = store
    fill(durable, 2)
    journal.backup(folder / "backup.db")
    durable.apply(delete("1"), BY)
    durable.compact()
    assert files_with(folder, SECRETS[0]) == [f"backup.db: {SECRETS[0]}"]
    receipt = durable.forget("1")
    assert receipt.operations == 0 and receipt.backups == (str(folder / "backup.db"),)
    assert files_with(folder, *SECRETS) == []


def test_a_backup_where_another_entry_still_says_it_is_erased_too(folder, store):
    """The store knows who says it now; the copy only who said it then."""
    journal, durable = store
    durable.apply(insert(SECRETS[0]), BY)
    durable.apply(insert(SECRETS[0], "notes"), BY)
    durable.apply(insert(SECRETS[0], timestamp="2020"), BY)
    journal.backup(folder / "backup.db")
    durable.apply(delete("2", "notes"), BY)
    receipt = durable.forget("1")
    assert receipt.said_by == ("3",) and receipt.backups == (str(folder / "backup.db"),)
    assert contents(opened(folder / "backup.db")[1].memory) == {"3": SECRETS[0]}
    durable.forget("3")
    assert files_with(folder, *SECRETS) == []


def test_what_an_entry_said_after_the_backup_is_erased_there_too(folder, store):
    journal, durable = store
    durable.apply(insert("harmless"), BY)
    durable.apply(insert(SECRETS[0], "notes"), BY)
    journal.backup(folder / "backup.db")
    durable.apply(delete("2", "notes"), BY)
    durable.apply(update("1", SECRETS[0]), BY)
    assert durable.forget("1").backups == (str(folder / "backup.db"),)
    assert files_with(folder, *SECRETS) == []
    other, same = opened(folder / "backup.db")
    assert other.verify().ok and contents(same.memory) == {}
    other.close()


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("erased", [False, True])
def test_a_kill_between_the_backups_and_the_store_leaves_all_it_takes_to_forget_again(folder, store, monkeypatch, whole, erased):
    journal, durable = store
    fill(durable, 2)
    journal.backup(folder / "backup.db")

    def forget():
        return journal.forget(MARTA) if whole else durable.forget("1")

    in_backups = durable_module.in_backups

    def killed(log, erase):
        if erased:
            in_backups(log, erase)
        os._exit(9)

    if (child := os.fork()) == 0:
        try:
            monkeypatch.setattr(durable_module, "in_backups", killed)
            forget()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert journal.verify().ok and contents(durable.memory)["1"] == SECRETS[2]
    assert forget().operations == (5 if whole else 3)
    assert files_with(folder, *SECRETS) == []


def test_a_compaction_keeps_receipts_and_leaves_no_byte_of_the_past(folder, store):
    journal, durable = store
    fill(durable, 2)
    durable.apply(insert("of the past"), BY)
    durable.apply(delete("4"), BY)
    durable.forget("1")
    durable.compact()
    durable.compact()
    assert [(r.entry, r.operations) for r in durable.receipts()] == [("1", 3)]
    assert files_with(folder, "of the past") == [] and journal.verify().ok


def test_an_erasure_without_a_receipt_is_found(folder, store):
    journal, durable = store
    fill(durable, 2)
    journal._log.database.execute("UPDATE log SET body = NULL, salt = NULL WHERE seq = 2 AND ns != ''")
    assert any("operations [2] have lost their content and no receipt" in line for line in journal.verify().faults)
    with pytest.raises(JournalDamagedError, match="no receipt"):
        _ = opened(folder / "store.db")[1].memory


def test_a_commitment_cannot_confirm_a_guess(store):
    """The same body is committed to differently each time: without the salt, trying all likely texts finds none."""
    _, durable = store
    durable.apply(insert("yes"), BY)
    for _ in range(2):
        durable.apply(delete("1"), BY)
        durable.undo(durable.memory.seq, BY)
    records = durable._records()
    twice = [r.commitment for r in records if r.kind == "apply" and r.gone]
    assert len(twice) == len(set(twice)) == 2 and len({r.salt for r in records}) == 5


@pytest.mark.parametrize("made_before", [False, True])
def test_no_digest_that_is_left_confirms_a_guess(folder, store, made_before):
    """Entry 2 comes from the same chunk as entry 1. Once 1 is forgotten, nothing tells which chunk and prompt that was."""
    journal, durable = store
    chunk, prompt = "sha256:" + hashlib.sha256(b"the code is 4711").hexdigest(), hash_prompt([4, 7, 1, 1])
    origin = Origin("agent", chunk, prompt)
    durable.apply(insert("before all"), BY)
    if made_before:
        journal.backup(folder / "backup.db")
    with durable.writing(origin) as memory:
        memory.apply(insert("the code is 4711"))
        memory.apply(insert("there is a code"))
    if not made_before:
        journal.backup(folder / "backup.db")
    seen = durable.history("3")[0].origin
    assert (seen.source, seen.prompt_hash) == (durable.keyed(chunk), durable.keyed(prompt)) != (chunk, prompt)
    secret = journal._log.database.secret(journal._log.begun[MARTA].ns)
    assert len(secret) == 64 and files_with(folder, secret) != []
    durable.forget("2")
    assert files_with(folder, secret, chunk[7:], prompt, "4711") == []  # also not in a backup that never held the entry
    assert durable.history("3")[0].origin == seen and durable.keyed(prompt) != seen.prompt_hash
    assert journal.verify().ok


def test_an_id_that_nothing_is_known_of_leaves_the_digests_as_they_are(store):
    _, durable = store
    durable.apply(insert("a"), Origin("agent", "", hash_prompt([1])))
    with pytest.raises(InputError, match="nothing of an entry '9'"):
        durable.forget("9")
    assert durable.history("1")[0].origin.prompt_hash == durable.keyed(hash_prompt([1]))
