"""The index of a large memory on disk finds what a search in memory finds, and is never the truth."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from memalpha.cli import run
from memalpha.errors import JournalDamagedError
from memalpha.memory.schema import ARCHIVE
from memalpha.retrieval import RetrievalConfig, ranking
from memalpha.retrieval.archive import archive_chunk
from memalpha.retrieval.embedders import HashingEmbedder
from memalpha.retrieval.two_layer import RetrieverMaker
from memalpha.store.journal import Journal, Origin
from memalpha.types import Chunk, Operation, OperationKind
from memalpha.use import store as use_store
from memalpha.use.store import MemoryStore
from tests.helpers.stores import BY, IVAN, MARTA, SCHEMA, delete, insert, update

PLACES = ["Oslo", "Rome", "Lima", "Kyoto", "Bergen", "Turin", "Quito", "Cork"]
THINGS = ["cat", "dog", "boat", "piano", "garden", "tea", "coffee", "bicycle", "sister", "job"]
VERBS = ["bought", "sold", "likes", "lost", "found", "painted", "wants"]
QUESTIONS = [
    "Who lost the piano in Oslo?",
    "tea",
    "garden Rome boat",
    "What did Ann paint?",
    "sister",
]


class Named(HashingEmbedder):
    def __init__(self, name, dimension=64):
        super().__init__(dimension)
        self.name = name


def maker(mode="hybrid", embedder=None):
    embedder = None if mode == "lexical" else embedder or HashingEmbedder()
    return RetrieverMaker(RetrievalConfig(retrieval=mode), embedder, None, True)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(use_store, "INDEXED", 1)


def opened(path, mode="hybrid", embedder=None):
    return MemoryStore(path, SCHEMA, maker(mode, embedder))


def tell(store, name=MARTA, turns=60, seed=0):
    """Turns of two people and an assistant, and some entries."""
    draw = np.random.default_rng(seed)
    for number in range(turns):
        who = ["Ann", "Marta", "Assistant"][number % 3]
        said = [
            f"I {draw.choice(VERBS)} the {draw.choice(THINGS)} in {draw.choice(PLACES)}, day {number}."
            for _ in range(1 + number % 4)
        ]
        chunk = Chunk(
            "\n\n".join(f"{who}: {text}" for text in said), f"2024-01-{1 + number % 28:02d}"
        )
        with store.writing(Origin("tester", f"chunk {number}"), namespace=name) as memory:
            archive_chunk(memory, number, chunk, ())
            if number % 5 == 0:
                memory.apply(
                    insert(f"{who} {draw.choice(VERBS)} a {draw.choice(THINGS)}"), chunk=number
                )


def both(store, question, k=10, name=MARTA):
    """What the index finds, and what a search of the memory in this process finds."""
    with store.searching(name) as (_, retriever):
        by_index = retriever.search(question, k)
    with store.reading(name) as (_, retriever):
        in_memory = retriever.search(question, k)
    return by_index, in_memory


def assert_equal(store, name=MARTA, tolerance=1e-6):
    for question in QUESTIONS:
        by_index, in_memory = both(store, question, name=name)
        assert [hit.entry for hit in by_index] == [hit.entry for hit in in_memory]
        assert [hit.score for hit in by_index] == pytest.approx(
            [hit.score for hit in in_memory], abs=tolerance
        )
        assert in_memory


def file_of(store, name=MARTA):
    with store.journal.reading():
        return store.journal.database.index_file(store.journal.registration(name).entry)


def test_it_is_used_for_a_large_memory_and_for_no_small_one(tmp_path, monkeypatch):
    monkeypatch.setattr(use_store, "INDEXED", 30)
    with opened(tmp_path / "m.db") as store:
        tell(store, IVAN, turns=4)
        tell(store, turns=30)
        for name in (MARTA, IVAN):
            store.search("tea", 3, namespace=name)
        assert file_of(store).is_file() and not file_of(store, IVAN).exists()
        assert oct(file_of(store).stat().st_mode & 0o777) == "0o600"
        assert oct(file_of(store).parent.stat().st_mode & 0o777) == "0o700"


# cosines of the index are of numbers in half precision
@pytest.mark.parametrize(
    ("mode", "tolerance"), [("lexical", 1e-9), ("hybrid", 2e-3), ("dense", 2e-3)]
)
def test_it_finds_what_a_search_in_memory_finds(tmp_path, mode, tolerance):
    with opened(tmp_path / "m.db", mode) as store:
        tell(store)
        assert_equal(store, tolerance=tolerance)
        with store.writing(BY, namespace=MARTA) as memory:  # lists and lines change
            facts, lines = memory.entries("facts"), memory.entries(ARCHIVE.name)
            memory.apply(update(facts[0].id, "Ann lost a piano in Oslo"), chunk=90)
            memory.apply(delete(facts[1].id), chunk=90)
            for line in lines[3:40:6]:
                gone = Operation(OperationKind.DELETE, ARCHIVE.name, entry_id=line.id)
                memory.apply(gone, chunk=90)
        assert_equal(store, tolerance=tolerance)
        with store.durable(MARTA) as durable:
            numbers = [event.seq for event in durable.history() if event.after is None]
        for number in numbers[:3]:  # an older line comes back
            store.undo(number, namespace=MARTA)
        assert_equal(store, tolerance=tolerance)
    with opened(tmp_path / "m.db", mode) as store:  # another process
        assert_equal(store, tolerance=tolerance)


def test_what_the_model_does_not_read_is_still_found(tmp_path, monkeypatch):
    """With a quick embedder and few lines read both searches find the best."""
    monkeypatch.setattr(ranking, "READ", 20)
    monkeypatch.setattr(ranking, "ROUGH", 60)
    quick, slow = Named("quick", 64), Named("slow", 512)
    with MemoryStore(
        tmp_path / "m.db",
        SCHEMA,
        RetrieverMaker(RetrievalConfig(retrieval="hybrid"), slow, quick, True),
    ) as store:
        tell(store, turns=120)
        for question in QUESTIONS:
            by_index, in_memory = both(store, question, k=5)
            # which of many lines that fit alike are read may differ by the rounding of the codes,
            # and with them what counts as out of date
            found = [hit.entry for hit in by_index]
            same = [hit for hit in in_memory if hit.entry in found]
            assert in_memory[0].entry in found and len(same) >= 5


def test_every_process_sees_what_another_one_wrote(tmp_path):
    with opened(tmp_path / "m.db") as one, opened(tmp_path / "m.db") as other:
        tell(one)
        assert not other.search("walrus", 3, namespace=MARTA)[0].entry.content.count("walrus")
        with one.writing(BY, namespace=MARTA) as memory:
            archive_chunk(memory, 99, Chunk("Ann: I met a walrus.", "2024-05-01"), ())
        for store in (other, one):
            assert (
                store.search("walrus", 3, namespace=MARTA)[0].entry.content
                == "Ann: I met a walrus."
            )
        assert_equal(one, tolerance=2e-3)


def test_no_namespace_finds_anything_of_another(tmp_path):
    with opened(tmp_path / "m.db") as store:
        tell(store, MARTA, seed=1)
        with store.writing(BY, namespace=IVAN) as memory:
            archive_chunk(memory, 0, Chunk("Ivan: My safe opens with 7341.", None), ())
            memory.apply(insert("Ivan likes tea"))
        alone = store.search("tea safe 7341", 9, namespace=IVAN)
        assert len(alone) == 2
        assert all("Ivan" in hit.entry.content for hit in alone)
        found = store.search("What opens the safe? 7341", 50, namespace=MARTA)
        assert not any("7341" in hit.entry.content for hit in found)
        assert b"7341" not in file_of(store).read_bytes()


def test_what_is_forgotten_is_in_no_file_of_the_index(tmp_path):
    with opened(tmp_path / "m.db") as store:
        tell(store)
        with store.writing(BY, namespace=MARTA) as memory:
            archive_chunk(memory, 99, Chunk("Ann: The password is xyzzyplugh.", None), ())
        (hit, *_) = store.search("xyzzyplugh", 1, namespace=MARTA)
        assert "xyzzyplugh" in hit.entry.content
        folder = file_of(store).parent
        assert any(b"xyzzyplugh" in file.read_bytes() for file in folder.iterdir())  # the word
        store.forget(hit.entry.id, namespace=MARTA)
        left = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert not any(b"xyzzyplugh" in path.read_bytes() for path in left)
        assert_equal(store, tolerance=2e-3)
        left = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert file_of(store) in left and not any(b"xyzzyplugh" in p.read_bytes() for p in left)
        store.forget_all(namespace=MARTA)
        assert not list(folder.iterdir())


def test_what_another_process_forgets_leaves_an_index_that_was_open(tmp_path):
    with opened(tmp_path / "m.db") as one, opened(tmp_path / "m.db") as other:
        tell(one)
        with one.writing(BY, namespace=MARTA) as memory:
            archive_chunk(memory, 99, Chunk("Ann: The word is xyzzyplugh.", None), ())
        (hit, *_) = other.search("xyzzyplugh", 1, namespace=MARTA)
        one.forget(hit.entry.id, namespace=MARTA)
        found = other.search("xyzzyplugh", 5, namespace=MARTA)
        assert not any("xyzzyplugh" in each.entry.content for each in found)
        assert_equal(other, tolerance=2e-3)


@pytest.mark.parametrize(
    "damage", ["garbage", "cut", "empty", "other version", "other log", "rows"]
)
def test_a_damaged_index_is_made_again(tmp_path, damage, caplog):
    with opened(tmp_path / "m.db") as store:
        tell(store)
        expected = [store.search(question, 5, namespace=MARTA) for question in QUESTIONS]
        file = file_of(store)
        if damage == "other log":
            store.search("tea", 3, namespace=MARTA)
    data = file.read_bytes()
    match damage:
        case "garbage":
            file.write_bytes(os.urandom(len(data)))
        case "cut":
            file.write_bytes(data[: len(data) // 3])
        case "empty":
            file.write_bytes(b"")
        case _:
            import sqlite3

            with sqlite3.connect(file) as tables:
                if damage == "other version":
                    tables.execute("UPDATE state SET kind = '0 old'")
                elif damage == "other log":
                    tables.execute("UPDATE state SET hash = ?", ["0" * 64])
                else:
                    tables.execute("UPDATE entry SET record = record + 1 WHERE slot % 3 = 1")
            tables.close()
    with opened(tmp_path / "m.db") as store:
        found = [store.search(question, 5, namespace=MARTA) for question in QUESTIONS]
        assert [[hit.entry for hit in hits] for hits in found] == [
            [hit.entry for hit in hits] for hits in expected
        ]
        assert_equal(store, tolerance=2e-3)
    if damage in ("garbage", "cut", "other log", "rows"):
        assert "is rebuilt" in caplog.text


def test_a_damaged_log_is_no_answer(tmp_path):
    import sqlite3

    with opened(tmp_path / "m.db") as store:
        tell(store)
        (hit, *_) = store.search("piano Oslo", 1, namespace=MARTA)
    with sqlite3.connect(tmp_path / "m.db") as tables:
        rows = tables.execute(
            "SELECT seq, body FROM log WHERE entry = ?", [hit.entry.id]
        ).fetchall()
        for seq, body in rows:
            changed = body.replace(hit.entry.content[:9], hit.entry.content[:9].swapcase())
            tables.execute(
                "UPDATE log SET body = ? WHERE seq = ? AND entry = ?", [changed, seq, hit.entry.id]
            )
    tables.close()
    with opened(tmp_path / "m.db") as store, pytest.raises(JournalDamagedError, match="was edited"):
        store.search("piano Oslo", 1, namespace=MARTA)


def test_an_index_of_another_embedder_gets_new_vectors(tmp_path):
    with opened(tmp_path / "m.db", embedder=Named("one", 32)) as store:
        tell(store)
        assert_equal(store, tolerance=2e-3)
    with opened(tmp_path / "m.db", "lexical") as store:  # leaves the vectors as they are
        with store.writing(BY, namespace=MARTA) as memory:
            archive_chunk(memory, 99, Chunk("Ann: I met a walrus in Oslo.", None), ())
        assert_equal(store)
    with opened(tmp_path / "m.db", embedder=Named("other", 64)) as store:
        assert_equal(store, tolerance=2e-3)
        names = {name for (name,) in _rows(file_of(store), "SELECT embedder FROM state")}
        assert names == {"other other"}


def _rows(file, statement):
    import sqlite3

    with sqlite3.connect(file) as tables:
        rows = tables.execute(statement).fetchall()
    tables.close()
    return rows


KILLED = """
import sys
from memalpha.store import index
from tests.journal.test_index import opened, use_store, MARTA
use_store.INDEXED = 1
index._RECORDS = 8
def slow(done, total):
    print(done, flush=True)
with opened(sys.argv[1]) as store:
    store.index(MARTA, anew=True, progress=slow)
"""


def test_an_index_that_was_killed_while_it_was_made_goes_on(tmp_path):
    with opened(tmp_path / "m.db") as store:
        tell(store)
        total = store.journal.size(MARTA)
        file = file_of(store)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "m.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if int(line) > 24:
                process.send_signal(signal.SIGKILL)
                break
    done = _rows(file, "SELECT seq FROM state")[0][0]
    assert 24 < done < total
    told = []
    with opened(tmp_path / "m.db") as store:
        store.index(MARTA, progress=lambda *both: told.append(both))
        assert told[0][0] > done and told[-1] == (total, total)
        assert_equal(store, tolerance=2e-3)


def test_two_processes_that_give_vectors_at_once_agree(tmp_path, monkeypatch):
    with opened(tmp_path / "m.db", "lexical") as store:
        tell(store)
        store.search("tea", 3, namespace=MARTA)  # words alone
    with opened(tmp_path / "m.db") as one, opened(tmp_path / "m.db") as other:
        embed = HashingEmbedder.embed
        faster = [lambda: other.search("tea", 3, namespace=MARTA)]

        def meanwhile(self, texts):
            if faster and len(texts) > 50:
                faster.pop()()
            return embed(self, texts)

        monkeypatch.setattr(HashingEmbedder, "embed", meanwhile)
        assert_equal(one, tolerance=2e-3)
        assert not faster
        ((slots, coded),) = _rows(file_of(one), "SELECT slots, coded FROM state")
        sizes = [len(rows) for (rows,) in _rows(file_of(one), "SELECT rows FROM codes")]
        assert slots == coded and sum(sizes) == coded * HashingEmbedder().dimension
        assert_equal(other, tolerance=2e-3)


def test_where_no_index_can_be_written_the_memory_is_searched_in_this_process(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(use_store, "can_write", lambda _: False)
    with opened(tmp_path / "m.db") as store:
        tell(store)
        assert store.search("tea", 3, namespace=MARTA)
        assert not file_of(store).parent.exists()


def test_the_command_line_makes_it_anew_and_an_import_writes_it(tmp_path, capsys):
    store, file = str(tmp_path / "m.db"), tmp_path / "chat.json"
    turns = [
        f'{{"role": "user", "content": "My {thing} is in {place}."}}'
        for thing in THINGS
        for place in PLACES
    ]
    file.write_text(f"[{', '.join(turns)}]")
    assert run(["import", str(file), "--store", store, "--user", "marta"]) == 0
    (made,) = (tmp_path / "m.db.index").glob("*.db")
    at, seq = made.stat().st_ino, _rows(made, "SELECT seq, coded FROM state")
    with Journal.open(store) as journal:
        size = journal.size(journal.namespaces()[0])
    assert seq == [(size, len(turns))]
    capsys.readouterr()
    assert run(["journal", "reindex", store]) == 0
    assert "its index was made anew" in capsys.readouterr().out
    assert made.stat().st_ino != at or time.time() - made.stat().st_mtime < 60
    assert run(["journal", "reindex", store, "-n", "nobody"]) == 1
    assert "there is no namespace nobody" in capsys.readouterr().err


class Watched(Named):
    def __init__(self):
        super().__init__("watched")
        self.read = []

    def embed(self, texts):
        self.read += texts
        return super().embed(texts)


def test_lines_that_were_embedded_ahead_are_not_read_for_a_question(tmp_path):
    ahead, later = Watched(), Watched()

    def store_with(embedder):  # and with another quick one, as static vectors are beside MiniLM's
        both = RetrieverMaker(RetrievalConfig(), embedder, Named("quick"), True)
        return MemoryStore(tmp_path / "m.db", SCHEMA, both)

    with store_with(ahead) as store:
        tell(store)
        told = []
        assert store.index(MARTA, embed=True, progress=lambda *both: told.append(both))
        assert told[-1][0] == told[-1][1]
        with store.reading(MARTA) as (memory, _):
            lines = {line.content for line in memory.entries(ARCHIVE.name)}
        assert len(lines) > 100 and lines <= set(ahead.read)
    with store_with(later) as store:
        store.search("Who lost the piano in Oslo?", 3, namespace=MARTA)
        assert later.read and lines.isdisjoint(later.read)
        assert store.index(MARTA, embed=True)
        assert lines.isdisjoint(later.read)


@pytest.mark.parametrize("in_the_way", ["of the folder", "of the index"])
def test_without_a_place_for_its_index_a_memory_is_searched_in_the_process(tmp_path, in_the_way):
    with opened(tmp_path / "m.db") as store:
        tell(store)
        file = file_of(store)
    file.unlink(missing_ok=True)
    if in_the_way == "of the index":
        file.mkdir(parents=True)
    else:
        file.parent.rmdir() if file.parent.exists() else None
        file.parent.write_text("something else")
    with opened(tmp_path / "m.db") as store:
        assert store.search("tea", 3, namespace=MARTA)
        assert not store.index(MARTA)
