"""The same journal on a PostgreSQL server that this test starts, where its programs are
installed."""

import os
import shutil
import socket
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from memalpha.errors import JournalBusyError, JournalError
from memalpha.store.exchange import export_journal, import_journal
from memalpha.store.journal import Journal, digest_of
from tests.helpers.stores import (
    BY,
    IVAN,
    MARTA,
    SCHEMA,
    contents,
    insert,
    opened,
    rebuilt,
    state,
    tell_a_story,
    wait_until_scrubbed,
)

psycopg = pytest.importorskip("psycopg", reason="the extra 'postgres' is not installed")


def programs() -> Path:
    on_path = Path(shutil.which("initdb") or "initdb").resolve()
    for initdb in [on_path, *Path("/usr/lib/postgresql").glob("*/bin/initdb")]:
        if all((initdb.parent / name).is_file() for name in ("initdb", "pg_ctl", "postgres")):
            return initdb.parent
    pytest.skip("no PostgreSQL server is installed")


class Server:  # run as another user where this one is root, which PostgreSQL refuses
    def __init__(self, folder: Path):
        self.bin, self.data = programs(), folder / "data"
        self.user = "nobody" if os.getuid() == 0 else None
        if self.user:
            shutil.chown(folder, self.user)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.run(
            "initdb",
            "-D",
            self.data,
            "-U",
            "tester",
            "-A",
            "trust",
            "-N",
            "--data-checksums",
            "-E",
            "UTF8",
            "--no-locale",
        )
        self.start()

    def run(self, program, *arguments):
        done = subprocess.run(
            [str(self.bin / program), *map(str, arguments)],
            user=self.user,
            cwd=self.data.parent,
            capture_output=True,
            text=True,
            timeout=90,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self):
        options = f"-p {self.port} -k '' -c listen_addresses=127.0.0.1 -c max_connections=20"
        self.run(
            "pg_ctl", "-D", self.data, "-w", "-l", self.data.parent / "log", "-o", options, "start"
        )
        self.url = f"postgresql://tester@127.0.0.1:{self.port}/postgres"

    def stop(self):
        self.run("pg_ctl", "-D", self.data, "-w", "-m", "immediate", "stop")

    def sql(self, statement):
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)


@pytest.fixture(scope="module")
def server():
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if Path("/dev/shm").is_dir() else None, prefix="memalpha-pg-"
    ) as folder:
        Path(folder).chmod(0o755)
        made = Server(Path(folder))
        yield made
        made.stop()


@pytest.fixture
def url(server):
    server.sql("DROP TABLE IF EXISTS log, heads, state, secrets")
    return server.url


def test_the_same_story_as_on_sqlite_record_for_record(url, folder):
    stories = []
    for where in (url, folder / "s.db"):
        journal, durable = opened(where)
        tell_a_story(durable)
        durable.apply(insert("100% rain? \x00 ü"), BY)
        durable.undo(5, BY)
        durable.forget("1")
        with durable.writing(BY) as memory:
            memory.apply(insert("was imported"))
            durable.note_read(BY, [digest_of("a"), digest_of("b")])
        assert set(opened(where)[1].sources()) == {digest_of("a"), digest_of("b")}
        assert state(durable.memory) == state(rebuilt(durable)) == state(opened(where)[1].memory)
        journal.memory(IVAN, SCHEMA).apply(insert("of ivan"), BY)
        report = journal.verify()
        stories.append((durable.memory.snapshot(), report.faults, report.operations))
        export_journal(journal, folder / f"{len(stories)}.jsonl")
    assert stories[0] == stories[1] and report.faults == ()
    with Journal.open(folder / "moved.db") as moved:  # from PostgreSQL to SQLite, byte for byte
        import_journal(moved, folder / "1.jsonl")
        export_journal(moved, folder / "again.jsonl")
    assert (folder / "again.jsonl").read_bytes() == (folder / "1.jsonl").read_bytes()


def test_writers_wait_and_nothing_is_lost(url):
    def write(who):
        journal, durable = opened(url)
        for i in range(10):
            durable.apply(insert(f"{who}-{i}"), BY)
        journal.close()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, "abc"))
    journal, durable = opened(url, wait=0.2)
    assert {*contents(durable.memory).values()} == {
        f"{who}-{i}" for who in "abc" for i in range(10)
    }
    with opened(url)[1].writing(BY) as memory:
        memory.apply(insert("half done"))
        assert len(durable.memory) == 30  # readers do not wait and see nothing half done
        with pytest.raises(JournalBusyError):
            durable.apply(insert("not now"), BY)
    assert durable.apply(insert("now"), BY).changed and journal.verify().ok


def test_what_is_forgotten_is_in_no_table_file(url, server):
    journal, durable = opened(url)
    durable.apply(insert("Zaphod-was-here " + "z" * 50), BY)
    durable.apply(insert("kept-in-the-table"), BY)

    def holders(text):
        server.sql("CHECKPOINT")
        return [
            p
            for p in (server.data / "base").rglob("*")
            if p.is_file() and text.encode() in p.read_bytes()
        ]

    assert holders("Zaphod-was-here") and holders("kept-in-the-table")
    with psycopg.connect(
        url
    ) as reader:  # its snapshot still sees the row, in whatever table it reads
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1 FROM pg_class").fetchall()
        assert not durable.forget("1").scrubbed and contents(durable.memory) == {
            "2": "kept-in-the-table"
        }
        assert holders("Zaphod-was-here")
    wait_until_scrubbed(journal)
    assert contents(durable.memory) == {"2": "kept-in-the-table"}
    assert holders("Zaphod-was-here") == [] and holders("kept-in-the-table")
    journal.forget(MARTA)
    assert holders("kept-in-the-table") == [] and journal.verify().ok


def test_a_server_that_is_killed_keeps_what_it_acknowledged(url, server):
    journal, durable = opened(url)
    for i in range(5):
        durable.apply(insert(f"fact {i}"), BY)
    server.stop()
    with pytest.raises(JournalError, match="cannot be reached"):
        durable.apply(insert("while it is down"), BY)
    with pytest.raises(JournalError, match="cannot be reached") as caught:
        Journal.open(url.replace("tester@", "tester:geheim@"), wait=1)
    assert "geheim" not in str(caught.value)
    server.start()
    assert list(contents(durable.memory).values()) == [f"fact {i}" for i in range(5)]
    assert durable.apply(insert("again"), BY).entry_id == "6" and journal.verify().ok
