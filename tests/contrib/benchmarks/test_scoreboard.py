"""The scoreboard: a table by hand, a real memory server, and the command on tiny sets."""

import json
import math
from dataclasses import replace
from importlib import resources

import pandas
import pytest
import yaml

from memalpha.agent.step import AgentStep
from memalpha.cli import run
from memalpha.contrib.benchmarks import server as mem0
from memalpha.contrib.benchmarks.scoreboard import (
    PUBLISHED,
    SETS,
    Board,
    _lead,
    board_rows,
    main_table,
)
from memalpha.errors import InputError, ServiceError
from memalpha.measure.evidence import LooksForEvidence
from memalpha.measure.options import make_system
from memalpha.measure.summary import Summary, compare_groups
from memalpha.memory.memory import count_words
from memalpha.models.policy import load_tokenizer
from memalpha.record.measure import IngestedMemory, measure
from memalpha.types import Chunk, Instance, Question
from tests.helpers.data_samples import locomo_plus, locomo_sample, longmemeval_item, mab_row, write
from tests.helpers.evaluation_stubs import setting
from tests.helpers.measured_examples import MARTA, result
from tests.helpers.memory_server import KEY, memory_server
from tests.helpers.stub_server import error

TITLES = ("LoCoMo", "LongMemEval", "LoCoMo-Plus")
pytestmark = pytest.mark.usefixtures("one_thread")
PETS = Instance(
    "pets",
    "hand",
    (Chunk("user: My cat is Tom.", "2024-01-01"), Chunk("Ivan: My dog is Rex."), Chunk("Rain.")),
    (
        Question("Which cat?", ("Tom",), evidence=(0,), id="cat"),
        Question("Which dog?", ("Rex",), evidence=(0, 1), id="dog"),
        Question("Which fish?", (), id="fish"),
    ),
)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("MEM0_API_KEY", KEY)
    with memory_server() as served:
        yield served


# ------------------------------------------------------------------------------------------------
# servers
@pytest.mark.parametrize("shape", ["oss", "platform"])
def test_a_server_is_added_to_searched_and_left_as_it_was(server, shape, monkeypatch):
    monkeypatch.setattr(mem0, "_POLL", 0.0)
    where = setting([PETS])
    options = {"url": server.url, "shape": shape, "backoff": 0.01, "top_k": 2}
    system = make_system("mem0_server", options)
    server.memories = [{"memory": "of another", "user_id": "someone", "metadata": None}]
    system.check_fits(where, [PETS])
    server.faults = [503, 429]  # they pass
    held = []

    def ingest(instances):
        held.extend(system.ingest_all(where, instances, 0))
        assert held[0].sourced(PETS.questions[0], 99) == [
            ("user says [2024-01-01] My cat is Tom.", 0),
            ("user says Ivan: My dog is Rex.", 1),
        ]
        assert len(held[0].entries) == 3 and held[0].memory_tokens > 0
        return held

    looks = LooksForEvidence(10, count_words)  # the first, of 7 words, and not the second
    ((_, (row,)),) = measure(
        ingest, [PETS], {"evidence": looks}, names=("s", "x"), seed=0, count=count_words
    )
    assert [(each.id, each.score) for each in row.questions] == [("cat", 1.0), ("dog", 0.5)]
    assert row.reader_tokens == 7
    assert [memory["memory"] for memory in server.memories] == ["of another"]
    assert server.polls == (6 if shape == "platform" else 0)


def test_a_server_that_fails_is_said_and_keeps_no_user(server, monkeypatch):
    where = setting([PETS])
    system = make_system("mem0_server", {"url": server.url, "retries": 1, "backoff": 0.01})
    server.faults = [200, 200, 500, 500]
    with pytest.raises(ServiceError, match=r"500.*after 2 attempts"):
        system.ingest_all(where, [PETS], 0)
    assert server.memories == []
    server.of = lambda user: [{"text": "of another form"}]
    with pytest.raises(ServiceError, match="expected"):
        system.ingest_all(where, [PETS], 0)
    assert server.memories == []
    monkeypatch.setenv("MEM0_API_KEY", "wrong")
    with pytest.raises(InputError, match="MEM0_API_KEY"):
        system.check_fits(where, [PETS])


@pytest.mark.parametrize(("status", "kind"), [(500, ServiceError), (302, InputError)])
def test_a_server_that_repeats_the_key_or_leads_elsewhere_does_not_show_it(
    chat_server, monkeypatch, status, kind
):
    monkeypatch.setenv("MEM0_API_KEY", KEY)
    chat_server.script = [error(status, f"bad key {KEY}", Location=chat_server.url)]
    server = mem0.MemoryServer(mem0.ServerOptions(url=chat_server.url, retries=0))
    with pytest.raises(kind, match=r"bad key \*\*\*") as caught:
        server.search("ann", "Who?")
    assert KEY not in str(caught.value) and len(chat_server.asked) == 1


def test_a_server_that_keeps_words_and_no_metadata_is_believed_by_the_words(server):
    where = setting([PETS])
    server.tells = False
    server.say = "{content}"
    (memory,) = make_system("mem0_server", {"url": server.url}).ingest_all(where, [PETS], 0)
    server.memories[2]["memory"] = "The weather is bad"
    assert memory.sourced(PETS.questions[1], 99) == [
        ("Ivan: My dog is Rex.", 1),
        ("[2024-01-01] My cat is Tom.", 0),
        ("The weather is bad", None),
    ]


def test_what_does_not_tell_where_it_is_from_has_no_evidence_rather_than_none_found():
    memory = IngestedMemory(memory_tokens=1, entries=("Tom is a cat",))
    (found,) = LooksForEvidence(20, count_words)([PETS], [memory])
    assert [question.id for question in found.questions] == ["cat", "dog"]
    for question in found.questions:
        assert math.isnan(question.score) and "which chunks" in question.error


# ------------------------------------------------------------------------------------------------
# evidence
def test_an_agent_reads_a_long_turn_in_parts_which_are_all_of_that_turn():
    where = setting([MARTA], ["+ Marta moved to Rome"] * 9)
    lines = [line for chunk in MARTA.chunks for line in chunk.text.split("\n")]
    config = replace(where.step.config, max_chunk_tokens=max(map(where.step.chunk_tokens, lines)))
    where = replace(where, step=AgentStep(config, where.host.tokenizer))
    system = make_system("agent", {"archive": True, "cut_chunks": True, "retrieval": "lexical"})
    where = system.prepare(where)
    (memory,) = system.ingest_all(where, [MARTA], 0)
    assert memory.parts_of == (0, 0, 0, 1, 1, 1, 2, 2)
    found = memory.sourced(Question("goat pony"), 99)
    assert {chunk for text, chunk in found if "pet" in text or "pony" in text} == {1, 2}


def test_the_row_of_a_system_by_hand():
    """Two instances of 10 and 30 messages, 4 s and 12 s of writing, 20 calls each."""
    rows = [
        result("a", (1.0, 0.5), system="x", chunks=10, seconds_write=4.0, write_calls=20),
        result("b", (0.0, 0.0), system="x", chunks=30, seconds_write=12.0, write_calls=20),
    ]
    item = compare_groups({"x": {"0": {row.instance: row for row in rows}}}, 2, "s", "evidence")
    config = {"systems": [{"kind": "archive", "name": "x"}]}
    (row,) = board_rows(config, Summary((item,), {}, {}, {}), rows)
    assert (row.evidence.mean, row.instances, row.questions) == (0.375, 2, {"single": 4})
    assert (row.seconds_written, row.calls) == (400.0, 1000.0)  # 16 s and 40 calls over 40 messages
    assert row.seconds_asked == 0.5  # 2 s over 4 questions
    served = {"systems": [{"kind": "mem0_server", "name": "x", "url": "http://x"}]}
    (row,) = board_rows(served, Summary((item,), {}, {}, {}), rows)
    assert math.isnan(row.calls)
    lost = {"systems": [{"kind": "archive", "name": "y"}]}
    (row,) = board_rows(lost, Summary((item,), {}, {}, {}), rows)
    table = main_table([row], Board(missing={"BEAM 100K": "no file"}))
    assert [cells[1] for cells in table.rows] == ["y: not evaluated", "not measured"]
    assert table.note == "BEAM 100K is not measured: no file."
    assert set(table.rows[1][2:]) == {"–"}
    lead = " ".join(_lead([row], Board()))
    assert "no reader has answered yet. The same command with `--reader` asks one" in lead
    assert "Not all results are there: y. The same command tries those again." in lead


def test_published_numbers_are_of_the_sets_and_name_their_source():
    text = resources.files("memalpha.contrib.benchmarks").joinpath(PUBLISHED).read_text()
    for row in yaml.safe_load(text)["rows"]:
        assert row["set"] in SETS and ("published" in row) == ("source" in row)
        assert {"published", "reproduced"} & row.keys()


# ------------------------------------------------------------------------------------------------
# the command
def board(folder, *more):
    where = ["--data", str(folder / "sets"), "--output_dir", str(folder / "board")]
    code = run(["scoreboard", *where, "--model", "nano", "--embedder", "hashing", *more])
    path = folder / "board" / "scoreboard.json"
    return code, json.loads(path.read_text()) if path.is_file() else None


def test_the_command_makes_the_table_of_what_is_there_and_says_what_is_not(tmp_path, capsys):
    places = [tmp_path / "sets" / name for name in ("locomo", "longmemeval", "locomo_plus")]
    for place in places:
        place.mkdir(parents=True)
    write(places[0] / "locomo.json", [locomo_sample()])
    write(places[1] / "lme.json", [longmemeval_item()])
    locomo_plus(places[2])
    tokenizer = load_tokenizer("nano")
    newest = len(tokenizer.encode("[2023-06-02T09:05] Ben: I sold the boat."))
    budget = ("--budget", str(newest + 1), "--instances", "1")
    code, record = board(tmp_path, "--reader", "recall", *budget)
    assert code == 0
    rows = {(row["set"], row["system"]): row for row in record["rows"]}
    names = ["archive", "full_context", "rag_bm25", "rag_dense", "rag_two_layer"]
    assert list(rows) == [(title, name) for title in TITLES for name in names]
    # of turns 0 and 0, 2 the newest turn alone is read: nothing and a half
    full = rows["LoCoMo", "full_context"]
    assert (full["evidence"]["mean"], full["evidence"]["low"]) == (0.25, None)
    assert full["kinds"]["temporal"]["mean"] == 0.5 and full["context_tokens"] == newest
    assert set(full["answers"]) == {"recall"}
    assert rows["LongMemEval", "archive"]["answers"] == {}
    assert list(record["no_answers"]) == ["LongMemEval", "LoCoMo-Plus"]
    assert "judge" in record["no_answers"]["LongMemEval"]
    assert record["left_out"]["LoCoMo"] == {
        "adversarial, no gold answer": 1,
        "no evidence named, not asked for it": 0,
    }
    assert list(record["missing"]) == ["BEAM 100K", "MemoryAgentBench"]
    assert "mohammadtavakoli78/BEAM" in record["missing"]["BEAM 100K"]
    text = (tmp_path / "board" / "scoreboard.md").read_text()
    assert text in capsys.readouterr().out
    assert "| LoCoMo | full_context | 2 of 1 | .250 [–, –] |" in text
    assert "Questions left out of LoCoMo: 1 adversarial, no gold answer." in text
    assert "| MemoryAgentBench | not measured | – |" in text
    assert "MemoryAgentBench is not measured: no memoryagentbench/*.parquet" in text
    page = (tmp_path / "board" / "report" / "index.html").read_text()
    assert "mohammadtavakoli78/BEAM" in page and "must not be compared" in page
    assert "This page compares memories on public sets (LoCoMo, " in page
    assert "no reader has answered yet" not in page and "Sets whose files are not there" in page
    results = tmp_path / "board" / "evaluation" / "results.jsonl"
    before = results.read_bytes()
    assert board(tmp_path, "--reader", "recall", *budget)[0] == 0
    assert results.read_bytes() == before


def test_a_set_without_evidence_and_without_a_reader_is_said(tmp_path, capsys):
    assert board(tmp_path) == (1, None)
    assert "snap-research/locomo" in capsys.readouterr().err
    place = tmp_path / "sets" / "memoryagentbench"
    place.mkdir(parents=True)
    pandas.DataFrame([mab_row()]).to_parquet(place / "split.parquet")
    assert board(tmp_path) == (1, None)
    assert "name no evidence, and no reader" in capsys.readouterr().err
    code, record = board(tmp_path, "--reader", "recall")
    assert code == 0 and record["no_evidence"] == {
        "MemoryAgentBench": "its questions name no evidence"
    }
    assert record["rows"][0]["answers"]["recall"]["mean"] == 1.0
    assert record["rows"][0]["evidence"] is None
