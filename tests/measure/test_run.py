"""A whole evaluation with a tiny policy: killed, gone on with, changed, grown, and with a reader
that is down."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from data_samples import write_instances
from stub_server import StubServer, error
from stubs import loud_adapter, setting

from examples import MARTA
from memalpha.agent.config import AgentConfig
from memalpha.cli import run
from memalpha.data.synthetic import PRESETS, generate
from memalpha.endpoints import EndpointOptions
from memalpha.errors import InputError, RunFolderError, ServiceError
from memalpha.generation import products
from memalpha.measure.options import ReaderSpec, parse_evaluate_options
from memalpha.measure.run import Asks, LoadedSet, evaluate, make_reader
from memalpha.memory.memory import count_words
from memalpha.models import resolve_model
from memalpha.models.policy import load_tokenizer
from memalpha.qa.readers import RecallReader
from memalpha.record.measure import IngestedMemory, measure
from memalpha.record.rows import read_rows
from memalpha.types import Instance, Question

HERE = Path(__file__).parent
SYSTEMS = [
    "full_context",
    "rag_bm25",
    "verbatim",
    "teacher",
    "gold",
    "overwrite_summary",
    "constant_state",
    "untrained",
    "warm",
]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory) -> Path:
    """An adapter of the nano policy with weights that change what it says."""
    folder = loud_adapter(tmp_path_factory.mktemp("adapter"), 1)
    AgentConfig(
        schema="facts",
        codec="compact",
        max_chunk_tokens=800,
        view_tokens=64,
        max_completion_length=6,
    ).save(folder)
    return folder


@pytest.fixture(scope="module")
def options(tmp_path_factory, adapter) -> Path:
    """A configuration: three instances in batches of two, every system that needs no embedder, both
    readers without a server."""
    folder = tmp_path_factory.mktemp("config")
    data = write_instances(folder / "instances.jsonl", [*generate(2, 2, PRESETS["small"]), MARTA])
    path = folder / "config.yaml"
    systems = [
        *SYSTEMS[:2],
        "verbatim",
        *SYSTEMS[3:5],
        {"kind": "overwrite_summary", "memory_tokens": 8},
        {"kind": "constant_state", "memory_tokens": 8},
        {"name": "untrained", "kind": "agent", "group": "agents"},
        {
            "name": "warm",
            "kind": "agent",
            "group": "agents",
            "adapter": str(adapter),
            "readers": ["recall"],
        },
    ]
    readers = ["recall", {"kind": "base", "max_new_tokens": 3}]
    settings = {
        "model": "nano",
        "sets": [{"name": "small", "data": str(data)}],
        "systems": systems,
        "readers": readers,
        "reader_tokens": 200,
        "retrieve_k": 3,
        "temperature": 0.7,
        "seeds": [3, 4],
        "max_completion_length": 6,
        "batch_size": 2,
        "schema": "facts",
        "codec": "compact",
        "max_chunk_tokens": 800,
        "view_tokens": 64,
    }
    path.write_text(yaml.safe_dump(settings))
    return path


def command(options: Path, folder: Path, *more: str) -> list[str]:
    return ["evaluate", "--config", str(options), "--output_dir", str(folder), *more]


def untimed(folder: Path) -> list[dict]:
    """The lines of the results but for their times."""
    lines = (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith("seconds")}
        for line in lines
    ]


def summary(folder: Path) -> str:
    """The summary but for its times."""
    return re.sub(
        r'"seconds_\w+": [0-9.e-]+', "", (folder / "summary.json").read_text(encoding="utf-8")
    )


@pytest.fixture(scope="module")
def whole(options, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert outcome(options, folder).failed == 0
    return folder


def test_each_system_reader_seed_and_instance_has_one_line(whole):
    lines = [
        (line["system"], line["reader"], line["seed"], line["instance"]) for line in untimed(whole)
    ]
    assert len(set(lines)) == len(lines)
    drawn = {"overwrite_summary", "constant_state", "untrained", "warm", "teacher"}
    per_system = {name: sum(line[0] == name for line in lines) for name in SYSTEMS}
    assert per_system == {
        name: 3 * (2 if name in drawn else 1) * (1 if name == "warm" else 2) for name in SYSTEMS
    }
    results = read_rows(whole)
    assert {result.failed for result in results} == {None}
    assert {
        r.accuracy
        for r in results
        if r.system == "gold" and r.reader == "recall" and r.instance != "marta"
    } == {1.0}
    tokenizer = load_tokenizer("nano")
    tokens = sum(
        len(tokenizer(chunk.text, add_special_tokens=False).input_ids) for chunk in MARTA.chunks
    )
    assert {r.input_tokens for r in results if r.instance == "marta"} == {tokens}
    assert [r.write_calls for r in results if r.system == "warm"] == [3] * 6
    assert all(
        r.reader_tokens <= 200 for r in results if (r.system, r.reader) != ("full_context", "base")
    )
    assert all(
        r.reader_tokens > 200 and r.cut == 0
        for r in results
        if (r.system, r.reader) == ("full_context", "base")
    )


# In a system with a model that draws, and in the first.
@pytest.mark.parametrize("batch", [27, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_evaluation_goes_on_and_ends_with_the_same_numbers(
    batch, options, whole, tmp_path
):
    folder = tmp_path / "run"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    killed = subprocess.run(
        [sys.executable, str(HERE / "interrupted.py"), str(batch), *command(options, folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    left = (folder / "results.jsonl").read_text(encoding="utf-8")
    assert 0 < left.count("\n") < len(untimed(whole)) and not left.endswith("\n")
    assert outcome(options, folder).failed == 0
    assert untimed(folder) == untimed(whole)
    assert summary(folder) == summary(whole)
    assert (folder / "config.yaml").read_text().replace(str(folder), str(whole)) == (
        whole / "config.yaml"
    ).read_text()


def outcome(options: Path, folder: Path, *more: str):
    return evaluate(parse_evaluate_options(command(options, folder, *more)[1:]))


CHEAP = ("--systems", "[verbatim, gold]", "--readers", "recall", "--temperature", "0.0")


def test_what_is_done_is_not_done_again_and_more_may_be_added(options, tmp_path):
    folder = tmp_path / "run"
    assert outcome(options, folder, *CHEAP).results == 6
    before = untimed(folder)
    stamp = (folder / "results.jsonl").stat().st_mtime_ns
    assert outcome(options, folder, *CHEAP).results == 6
    assert (folder / "results.jsonl").stat().st_mtime_ns == stamp
    grown = ("--systems", "[rag_bm25, verbatim, gold]", *CHEAP[2:])
    assert outcome(options, folder, *grown).results == 9
    assert untimed(folder)[:6] == before and {line["system"] for line in untimed(folder)[6:]} == {
        "rag_bm25"
    }
    began = json.loads((folder / "environment.json").read_text())
    used = [at["float32_products"] for at in (began, *began["resumed"])]
    assert used == ["oneDNN" if products.faster() else "PyTorch"] * 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("--reader_tokens", "100"), "reader_tokens was 200 and is 100"),
        (("--systems", "[verbatim]"), "systems 'gold' kind was 'gold' and is 'not there'"),
        (
            ("--systems", "[{name: verbatim, kind: rag_bm25}, gold]"),
            "systems 'verbatim' kind was 'verbatim' and is 'rag_bm25'",
        ),
    ],
)
def test_other_options_are_refused_unless_it_is_to_start_anew(changes, said, options, tmp_path):
    folder = tmp_path / "run"
    outcome(options, folder, *CHEAP)
    with pytest.raises(RunFolderError, match=rf"was begun otherwise: .*{said}"):
        outcome(options, folder, *CHEAP, *changes)
    assert len(untimed(folder)) == 6
    anew = outcome(options, folder, *CHEAP, *changes, "--overwrite", "true").results
    assert (
        evaluate(parse_evaluate_options(["--config", str(folder / "config.yaml")])).results == anew
    )  # goes on, not anew
    assert len(json.loads((folder / "environment.json").read_text())["resumed"]) == 1


def test_instances_can_be_passed_over(options, tmp_path):
    everyone = [replace(MARTA, id=f"m{i}") for i in range(5)]
    data = write_instances(tmp_path / "data.jsonl", everyone)
    for skip, instances, expected in ((1, 0, "1234"), (3, 1, "3"), (0, 2, "01")):
        folder = tmp_path / f"{skip}"
        outcome(
            options,
            folder,
            *CHEAP,
            "--sets",
            f"[{{name: a, data: '{data}', skip: {skip}, instances: {instances}}}]",
        )
        assert {line["instance"] for line in untimed(folder)} == {f"m{i}" for i in expected}
    for wrong in ("skip: 5", "skip: 4, instances: 2"):
        with pytest.raises(InputError, match="has 5 instances"):
            outcome(
                options, tmp_path / "x", *CHEAP, "--sets", f"[{{name: a, data: '{data}', {wrong}}}]"
            )


@pytest.mark.parametrize(
    ("what", "said"),
    [("weights", "models '.*model' was"), ("settings", "adapters '.*adapter' was")],
)
def test_other_weights_or_settings_in_the_same_place_are_refused(
    what, said, adapter, options, tmp_path
):
    model, own, folder = (tmp_path / name for name in ("model", "adapter", "run"))
    shutil.copytree(resolve_model("nano"), model)
    shutil.copytree(adapter, own)
    more = ("--model", str(model), "--readers", "recall", "--temperature", "0.0")
    systems = ("--systems", json.dumps([{"kind": "agent", "adapter": str(own), "settings": "own"}]))
    outcome(options, folder, *more, *systems)
    noted = json.loads((folder / "inputs.json").read_text())
    if what == "weights":
        weights = model / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    else:
        AgentConfig(
            schema="facts",
            codec="compact",
            max_chunk_tokens=800,
            view_tokens=64,
            max_completion_length=5,
        ).save(own)
    with pytest.raises(RunFolderError, match=said):
        outcome(options, folder, *more, *systems)
    assert json.loads((folder / "inputs.json").read_text()) == noted


def test_a_folder_of_something_else_is_left_alone(options, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="exists already"):
        outcome(options, tmp_path, *CHEAP)
    with pytest.raises(RunFolderError, match=r"notes\.txt' is a file"):
        outcome(options, tmp_path / "notes.txt" / "run", *CHEAP)
    (tmp_path / "config.yaml").write_text("learning_rate: 1.0\n")
    with pytest.raises(InputError, match="a run of another command"):
        outcome(options, tmp_path, *CHEAP)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def server_options(server: StubServer) -> tuple[str, ...]:
    return (
        "--systems",
        "[{kind: full_context, budget: reader}]",
        "--readers",
        "endpoint",
        "--temperature",
        "0.0",
        "--endpoint_url",
        server.url,
        "--endpoint_model",
        "m",
        "--endpoint_retries",
        "0",
        "--endpoint_backoff",
        "0",
    )


def test_what_a_server_failed_to_answer_is_asked_again(options, tmp_path, chat_server):
    folder = tmp_path / "run"
    chat_server.fault_for = lambda body: (
        error(500) if "City of Marta?" in str(body["messages"]) else None
    )
    chat_server.reply = lambda body: "Rome"
    found = outcome(options, folder, *server_options(chat_server), "--batch_size", "5")
    assert (found.results, found.failed) == (3, 1)
    (bad,) = [result for result in read_rows(folder) if result.failed]
    assert bad.instance == "marta" and "500" in bad.failed
    assert [question.score != question.score for question in bad.questions] == [
        True,
        False,
        False,
        False,
        False,
        False,
    ]
    chat_server.fault_for = lambda body: None
    asked = len(chat_server.bodies)
    assert outcome(options, folder, *server_options(chat_server), "--batch_size", "5").failed == 0
    assert len(chat_server.bodies) > asked
    lines = untimed(folder)
    assert len(lines) == 4 and [line["instance"] for line in lines if line["failed"]] == ["marta"]
    latest = [(result.instance, result.failed) for result in read_rows(folder)]
    assert sorted(latest) == sorted(
        (instance, None) for instance in {line["instance"] for line in lines}
    )


def test_a_server_that_is_down_stops_the_evaluation(options, tmp_path, chat_server):
    chat_server.fault_for = lambda body: error(500)
    with pytest.raises(
        ServiceError, match="reader 'endpoint', or its judge, failed for all 2 instances"
    ):
        outcome(options, tmp_path / "run", *server_options(chat_server))
    assert [result.failed is None for result in read_rows(tmp_path / "run")] == [False, False]


@pytest.mark.parametrize("size", ["1", "5"])
def test_an_instance_that_always_fails_is_passed_over_every_time(
    size, options, tmp_path, chat_server
):
    chat_server.fault_for = lambda body: (
        error(500) if "City of Marta?" in str(body["messages"]) else None
    )
    chat_server.reply = lambda body: "Rome"
    one = Instance("one", "x", MARTA.chunks, (Question("City of Marta?", ("Rome",)),))
    data = write_instances(tmp_path / "data.jsonl", [replace(MARTA, id="a"), one, MARTA])
    more = (*server_options(chat_server), "--batch_size", size, "--sets", str(data))
    folder = tmp_path / "run"
    two = "[{kind: full_context, budget: reader}, verbatim]"
    for systems, results in (("[{kind: full_context, budget: reader}]", 3), *((two, 6),) * 2):
        assert run(command(options, folder, *more, "--systems", systems)) == 1
        assert len(read_rows(folder)) == results
        assert {result.instance for result in read_rows(folder) if result.failed} == {
            "a",
            "one",
            "marta",
        }
    chat_server.fault_for = lambda body: None
    assert outcome(options, folder, *more, "--systems", two).failed == 0


def test_a_judge_decides(options, tmp_path, chat_server):
    asked = (
        Question("City of Marta?", ("Rome",), "judge", id="a"),
        Question("Job of Hugo?", ("clown",), "judge", id="b"),
    )
    data = write_instances(tmp_path / "data.jsonl", [Instance("marta", "x", MARTA.chunks, asked)])
    chat_server.reply = lambda body: "yes" if "Rome" in str(body["messages"][-1]) else "no"
    more = (
        "--sets",
        str(data),
        "--systems",
        "verbatim",
        "--readers",
        "recall",
        "--temperature",
        "0.0",
        "--judge_url",
        chat_server.url,
        "--judge_model",
        "m",
    )
    assert outcome(options, tmp_path / "run", *more).failed == 0
    assert [question["score"] for question in untimed(tmp_path / "run")[0]["questions"]] == [
        1.0,
        0.0,
    ]


def test_one_trained_agent_on_one_set(adapter, options, tmp_path, capsys):
    data = yaml.safe_load(options.read_text())["sets"][0]["data"]
    folder = tmp_path / "run"
    one = [
        "evaluate",
        "--trained",
        str(adapter),
        "--data",
        data,
        "--model",
        "nano",
        "--output_dir",
        str(folder),
        "--json",
    ]
    assert run(one) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed == json.loads((folder / "summary.json").read_text())
    assert {(result.system, result.write_calls) for result in read_rows(folder)} == {
        (adapter.name, 3)
    }


NANO = ["--model", "nano"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--trained", "x"], "'x'"),
        (
            [
                "--sets",
                "[{data: toy, options: {n: 1}}]",
                "--systems",
                "[{kind: agent, adapter: gone}]",
                *NANO,
            ],
            "gone",
        ),
        (
            ["--sets", "[{data: toy, instances: 101}]", "--systems", "gold", *NANO],
            "has 100 instances",
        ),
        (
            [
                "--sets",
                "[{data: toy, instances: 1}]",
                "--systems",
                "verbatim",
                "--readers",
                "[recall, base]",
                "--reader_tokens",
                "60000",
                *NANO,
            ],
            "reader_tokens is 60000",
        ),
    ],
)
def test_a_mistake_is_one_clear_message_and_makes_no_folder(arguments, said, tmp_path, capsys):
    assert run(["evaluate", *arguments, "--output_dir", str(tmp_path / "run")]) == 1
    message = capsys.readouterr().err
    assert message.count("error: ") == 1 and said in message, message
    assert not (tmp_path / "run").exists()


def test_a_result_reads_back_as_itself_and_a_damaged_one_is_located(whole, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    lines = (whole / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert [
        json.dumps(result.to_json(), ensure_ascii=False) for result in read_rows(whole)
    ] == lines
    for damaged in (f"{lines[0]}\n{lines[0][:50]}\n", f"{lines[0]}\n{json.dumps({'set': 'x'})}\n"):
        (folder / "results.jsonl").write_text(damaged)
        with pytest.raises(InputError, match=r"results\.jsonl, line 2 is damaged"):
            read_rows(folder)
    (folder / "results.jsonl").write_text(f"{lines[0]}\n{lines[0][:50]}")  # its writer was killed
    assert len(read_rows(folder)) == 1


CITY, JOB = MARTA.questions[:2]
TWO = Instance("two", "text", MARTA.chunks, (CITY, JOB))
NONE = Instance("none", "text", MARTA.chunks, ())


def asked(instances, kept, reader) -> list:
    """The results of a reader with a budget of 5 words on what a system kept."""
    ((_, rows),) = measure(
        lambda instances: kept,
        instances,
        {"r": Asks(reader, count_words)},
        names=("set", "system"),
        seed=0,
        count=count_words,
    )
    return rows


@dataclass(frozen=True, kw_only=True)
class Remembering(IngestedMemory):
    """Gives each question its passages, and says that as much as the budget was left out."""

    memory_tokens: int = 0
    by_question: dict[str, tuple[str, ...]]

    def passages(self, question, budget):
        return self.by_question[question.text]

    def left_out(self, budget):
        return budget


def test_tokens_read_and_cut_are_means_over_the_questions():
    kept = Remembering(
        by_question={CITY.text: ("Marta in Rome now", "one two", "x"), JOB.text: ("Hugo rests",)}
    )
    first, empty = asked([TWO, NONE], [kept, kept], RecallReader(5, count_words))
    assert [question.passages for question in first.questions] == [
        ("Marta in Rome now", "x"),
        ("Hugo rests",),
    ]
    assert first.reader_tokens == (5 + 2) / 2
    assert first.cut == 5 + round(
        (2 + 0) / 2
    )  # what the finder left out, and two words of the first question
    assert [question.score for question in first.questions] == [1.0, 1.0]
    assert [(q.id, q.kind, q.text) for q in first.questions] == [
        ("q0", "latest", CITY.text),
        ("q1", "removed", JOB.text),
    ]
    assert first.questions[0].answer == "Marta in Rome now\nx"
    assert (empty.questions, empty.reader_tokens, empty.cut, empty.failed) == ((), 0, 5, None)
    bare = Instance("bare", "text", MARTA.chunks, (Question("A?", ("a",)), Question("B?", ("b",))))
    (found,) = asked(
        [bare],
        [Remembering(by_question={"A?": ("a",), "B?": ("a",)})],
        RecallReader(5, count_words),
    )
    assert [question.id for question in found.questions] == [
        "0",
        "1",
    ]  # by place where the source gives none


def reader_of(spec: ReaderSpec, where, reads_window: bool, instances=(MARTA,)):
    evaluation = SimpleNamespace(
        endpoints=EndpointOptions(endpoint_url="http://127.0.0.1:9", endpoint_model="m")
    )
    loaded = LoadedSet(SimpleNamespace(name="set"), tuple(instances), where)
    return make_reader(spec, evaluation, loaded, reads_window)


def test_a_reader_has_the_common_budget_unless_the_system_reads_the_window():
    where = setting([MARTA])
    for kind in ("recall", "base", "endpoint"):
        assert reader_of(ReaderSpec(kind), where, False).budget_tokens == 64
    assert reader_of(ReaderSpec("recall"), where, True).budget_tokens == 64
    assert 64 < reader_of(ReaderSpec("base"), where, True).budget_tokens < where.host.positions
    for spec in (
        ReaderSpec("endpoint", "big"),
        ReaderSpec("base", "tiny", window_tokens=40),
    ):  # not known, too small
        with pytest.raises(InputError, match=spec.name):
            reader_of(spec, where, True)
