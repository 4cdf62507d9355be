"""Mem0 as a peer, its model a scripted server: what it keeps, finds and costs, whose fault a failure is, what leaves the process.

Skipped where ``mem0ai`` is not installed, which development does without: it wants ``protobuf<7``.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
from examples import MARTA
from stub_server import StubServer, error

from memalpha.errors import InputError, MemAlphaError, MissingExtraError, ServiceError
from memalpha.evaluation.results import OperationCounts
from memalpha.evaluation.systems import KINDS, mem0, system_options
from memalpha.evaluation.systems.base import Room, Setting
from memalpha.memory.memory import count_words
from memalpha.retrieval.embedders import HashingEmbedder
from memalpha.types import Chunk, Instance, Question

needs_mem0 = pytest.mark.skipif(
    find_spec("mem0") is None, reason="the extra 'mem0' is not installed, and not with constraints.txt: it wants protobuf<7"
)
ROOM = Room(1000)
HEARD = {
    "I live in Oslo": ["Marta lives in Oslo", "Hugo works as a baker", "Marta drives a Ford"],
    "I moved to Rome": ["Marta moved to Rome", "Hugo works as a baker"],
    "I have a goat": [],
}
ENTRIES = (
    "[2024-01-01] Marta lives in Oslo", "[2024-01-01] Hugo works as a baker", "[2024-01-01] Marta drives a Ford",
    "[2024-02-01] Marta moved to Rome",
)  # fmt: skip
TWO = Instance("two", "text", (Chunk("First."), Chunk("Second.")), ())


def new_messages(body) -> str:
    """The part of Mem0's prompt that holds the chunk."""
    return body["messages"][-1]["content"].split("## New Messages\n")[1].split("\n## Observation Date")[0].strip()


def memories(texts) -> str:
    return json.dumps({"memory": [{"text": text} for text in texts]})


def extract(body) -> str:
    heard = new_messages(body)
    return memories(next(texts for words, texts in HEARD.items() if words in heard))


def make(server, *, retrieve_k: int = 3, temperature: float = 0.0, **options):
    """The system in a setting that counts words."""
    where = Setting(SimpleNamespace(encoder=SimpleNamespace(count=count_words)), None, 64, retrieve_k, temperature)
    given = {"url": server.url, "model": "m", "embedder": "hashing", "retries": 1, "backoff": 0.001, **options}
    return KINDS["mem0"].make(where, system_options("mem0", given))


def ranked(question: str, entries) -> list[str]:
    """Entries by the cosine of their text with a question, those under Mem0's threshold of 0.1 left out; computed apart."""
    rows = HashingEmbedder().embed([question, *(entry.partition("] ")[2] for entry in entries)])
    cosines = rows[1:] @ rows[0]
    return [entries[i] for i in np.argsort(-cosines, kind="stable") if cosines[i] >= 0.1]


# ------------------------------------------------------------------------------------------------ what it keeps, finds and costs
@needs_mem0
def test_what_is_kept_found_and_spent(chat_server, monkeypatch):
    monkeypatch.setenv("MEMALPHA_MEM0_API_KEY", "its-own")
    monkeypatch.setenv("MEMALPHA_API_KEY", "the-readers")
    monkeypatch.setenv("OPENROUTER_API_KEY", "never")  # Mem0's own client would send everything there
    chat_server.reply = extract
    steps = []
    system = make(chat_server)
    (kept,) = system.write([MARTA], 0, lambda done, total: steps.append((done, total)))
    assert kept.entries == ENTRIES
    assert kept.memory_tokens == 4 + 5 + 4 + 4
    assert (kept.write_calls, kept.cut_off, kept.cut) == (3, 0, 0)
    assert kept.operations == OperationCounts(insert=4, duplicate=1)
    assert steps == [(1, 3), (2, 3), (3, 3)]
    assert not system.options.draws(0.0) and system.options.draws(0.5) and not system.reads_window
    assert [new_messages(body) for body in chat_server.bodies] == [f"user: [{chunk.time}]\n{chunk.text}" for chunk in MARTA.chunks]
    for body, headers in zip(chat_server.bodies, chat_server.headers, strict=True):
        asked = (body["model"], body["temperature"], body["max_tokens"], body["response_format"])
        assert asked == ("m", 0.0, 2000, {"type": "json_object"})
        assert headers["Authorization"] == "Bearer its-own"
    for text in ("Hugo works as a baker", "Where is Marta, in Oslo?", "zebra"):
        (found,) = kept.find([Question(text, ("x",))], ROOM)
        assert list(found) == ranked(text, ENTRIES)[:3]
    assert kept.find([Question(" ", ("x",))], ROOM) == [()]


@needs_mem0
def test_instances_share_nothing(chat_server):
    chat_server.reply = lambda body: memories([f"heard {new_messages(body)}"])
    other = Instance("other", "text", (Chunk("Second."), Chunk("Third.")), ())
    kept = make(chat_server).write([TWO, other], 0)
    assert [k.entries for k in kept] == [
        ("heard user: First.", "heard user: Second."),
        ("heard user: Second.", "heard user: Third."),
    ]
    assert [k.operations for k in kept] == [OperationCounts(insert=2)] * 2
    found = [set(k.find([Question("heard Second", ("x",))], ROOM)[0]) for k in kept]
    assert found == [set(k.entries) for k in kept]
    prompts = [body["messages"][-1]["content"] for body in chat_server.bodies]
    assert "First." in prompts[1] and "First." not in prompts[2]  # Mem0 shows the model what it heard before


@needs_mem0
def test_draws_depend_on_the_seed_the_instance_and_the_call(chat_server):
    chat_server.reply, chat_server.finish = lambda body: memories([]), "length"
    system = make(chat_server, temperature=0.5)
    for seed, instances in ((1, [TWO]), (1, [MARTA, TWO]), (2, [TWO])):
        kept = system.write(instances, seed)
        assert [k.cut_off for k in kept] == [len(instance.chunks) for instance in instances]
    seeds = [body["seed"] for body in chat_server.bodies]
    assert seeds[:2] == seeds[5:7] and seeds[1] == seeds[0] + 1 and seeds[2] not in (seeds[0], seeds[7]) and seeds[0] != seeds[7]
    assert {body["temperature"] for body in chat_server.bodies} == {0.5}


# ------------------------------------------------------------------------------------------------ whose fault it is
GARBAGE = {  # the first reply of two, and what of it is inserted and failed
    "I heard nothing.": (0, 1),
    "": (0, 1),
    "null": (0, 1),
    "[" * 20_000: (0, 1),
    '{"facts": ["a"]}': (0, 1),
    '{"memory": "a"}': (0, 1),
    '{"memory": {"a": 1}}': (0, 1),
    '{"memory": ["a", "b"]}': (0, 2),
    '{"memory": [{"text": "a"}, "b"]}': (0, 2),
    '{"memory": [{"text": "a"}, {"fact": "b"}, {"text": ""}]}': (1, 2),
    '{"memory": [{"text": "a"}, {"text": 5}]}': (1, 1),
    '{"memory": [{"text": ["a"]}]}': (0, 1),
    '{"memory": [{"text": "\\ud800"}]}': (0, 1),
    '<think>{"memory": 3}</think>Here: ```json\n{"memory": [{"text": "a"}]}\n```': (1, 0),
    '{"memory": []}': (0, 0),
}


@needs_mem0
def test_garbage_is_the_systems_own_and_the_next_chunk_follows(chat_server):
    system = make(chat_server)
    for reply, (inserted, failed) in GARBAGE.items():
        chat_server.reply = lambda body, first=reply: first if "First." in new_messages(body) else memories(["last"])
        (kept,) = system.write([TWO], 0)
        assert kept.operations == OperationCounts(insert=inserted + 1, failed=failed), reply[:60]
        assert kept.entries == ("a",) * inserted + ("last",) and kept.write_calls == 2


@needs_mem0
def test_a_model_that_cannot_be_asked_is_an_error_that_says_where(chat_server):
    chat_server.reply = lambda body: memories(["a"])
    system = make(chat_server)
    chat_server.script = [error(503)]
    assert system.write([TWO], 0)[0].operations == OperationCounts(insert=1, duplicate=1)  # tried again
    refused = {503: ServiceError, 400: ServiceError, 401: InputError}
    for status, kind in refused.items():
        chat_server.fault_for = lambda body, status=status: error(status) if "Second." in new_messages(body) else None
        with pytest.raises(kind, match=rf"Mem0 at chunk 1 of instance two: http.*HTTP {status}") as caught:
            system.write([TWO], 0)
        assert ("$MEMALPHA_MEM0_API_KEY" in str(caught.value)) == (status == 401)
    closed = StubServer()
    closed.close()
    with pytest.raises(ServiceError, match=r"Mem0 at chunk 0 of instance two: .*2 attempts"):
        make(closed).write([TWO], 0)


class Broken(HashingEmbedder):
    """Fails on texts with a word."""

    word = "lost"

    def embed(self, texts):
        if any(self.word in text for text in texts):
            raise TypeError("planted")
        return super().embed(texts)


@needs_mem0
def test_what_mem0_drops_with_a_line_in_its_log_is_an_error(chat_server):
    system = make(chat_server)
    system.embedder = Broken()
    chat_server.reply = lambda body: memories(["found", "lost"])
    with pytest.raises(MemAlphaError, match="Mem0 at chunk 0 of instance two: it did not store 'lost'"):
        system.write([TWO], 0)
    system.embedder.word, chat_server.reply = "Second", lambda body: "garbage"
    with pytest.raises(TypeError, match="planted"):  # no excuse for what fails before the model is asked again
        system.write([TWO], 0)


# ------------------------------------------------------------------------------------------------ before anything is evaluated
def test_the_server_and_model_are_needed():
    for given in ({}, {"url": "http://localhost:1/v1"}, {"model": "m"}):
        with pytest.raises(InputError, match="system 'mem0' has url"):
            system_options("mem0", given)
    with pytest.raises(InputError, match="max_new_tokens is 0"):
        system_options("mem0", {"url": "http://localhost:1/v1", "model": "m", "max_new_tokens": 0})


@pytest.fixture
def anew():
    mem0.load_mem0.cache_clear()
    yield
    mem0.load_mem0.cache_clear()


def test_without_the_package_it_says_what_to_install(chat_server, monkeypatch, anew):
    monkeypatch.setitem(sys.modules, "mem0", None)
    with pytest.raises(MissingExtraError, match="mem0"):
        make(chat_server)


@needs_mem0
def test_a_mem0_that_is_not_the_one_that_was_tried_is_refused(chat_server, monkeypatch, anew):
    before = dict(os.environ)
    make(chat_server)
    assert dict(os.environ) == before
    for target, value, said in (
        ("mem0.memory.telemetry.MEM0_TELEMETRY", True, r"telemetry on[\s\S]*MEM0_TELEMETRY=False"),
        ("mem0.__version__", "2.3.0", r"mem0ai is 2\.3\.0\n  expected: 2\.2\.\*"),
        ("memalpha.evaluation.systems.mem0.find_spec", {"spacy": object()}.get, "spacy is installed"),
    ):
        mem0.load_mem0.cache_clear()
        with monkeypatch.context() as planted:
            planted.setattr(target, value)
            with pytest.raises(InputError, match=said):
                make(chat_server)


# ------------------------------------------------------------------------------------------------ what leaves the process
WATCHED = """
import os, sys
seen = []
def watch(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "sqlite3.connect", "os.mkdir", "subprocess.Popen"):
        seen.append((event, str(args[1] if event == "socket.connect" else args[0])))
    elif event == "open" and isinstance(args[0], str) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        seen.append((event, args[0]))
sys.addaudithook(watch)
import json
from types import SimpleNamespace
from memalpha.evaluation.systems import KINDS, system_options
from memalpha.evaluation.systems.base import Room, Setting
from memalpha.types import Chunk, Instance, Question
step = SimpleNamespace(encoder=SimpleNamespace(count=len))
options = system_options("mem0", {"url": sys.argv[1], "model": "m", "embedder": "hashing"})
system = KINDS["mem0"].make(Setting(step, None, 64, 3), options)
(kept,) = system.write([Instance("one", "text", (Chunk("FIRST.", "2024-01-01"),), ())], 0)
found = kept.find([Question("When was yesterday?", ("x",)), Question("kept", ("x",))], Room(100))
del kept
print(json.dumps({"found": found, "seen": seen}))
"""


@needs_mem0
def test_only_the_models_server_is_asked_and_nothing_is_left_on_disk(chat_server, tmp_path):
    chat_server.reply = lambda body: memories(["It was kept."])
    home, scratch = tmp_path / "home", tmp_path / "scratch"
    home.mkdir(), scratch.mkdir()
    places = {"HOME": str(home), "TMPDIR": str(scratch), "PYTHONDONTWRITEBYTECODE": "1", "MEM0_TELEMETRY": "True"}
    environment = {name: value for name, value in os.environ.items() if name != "MEM0_DIR"} | places
    command = [sys.executable, "-c", WATCHED, chat_server.url]
    ran = subprocess.run(command, env=environment, cwd=scratch, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["found"][1] == ["[2024-01-01] It was kept."]
    port = chat_server.url.rpartition(":")[2].removesuffix("/v1")
    for event, what in told["seen"]:
        if event == "socket.connect":
            assert what == f"('127.0.0.1', {port})"
        elif event == "socket.getaddrinfo":
            assert what == "127.0.0.1"
        elif event == "sqlite3.connect":
            assert what == ":memory:"
        else:
            assert event in ("open", "os.mkdir") and (what.startswith(str(scratch)) or what == os.devnull), (event, what)
    assert [event for event, _ in told["seen"]].count("socket.connect") == len(chat_server.bodies) == 1
    assert list(home.iterdir()) == [] and list(scratch.iterdir()) == []
