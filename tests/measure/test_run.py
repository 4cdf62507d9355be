"""A whole evaluation with a tiny policy: killed, gone on with, changed, grown, and with a reader
that is down."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from memalpha.agent.config import AgentConfig
from memalpha.cli import run
from memalpha.data.synthetic import PRESETS, generate
from memalpha.endpoints import EndpointOptions
from memalpha.errors import InputError, RunFolderError, ServiceError
from memalpha.measure.options import ReaderSpec, SetSpec, make_system, parse_evaluate_options
from memalpha.measure.run import MODEL_INPUTS, Asks, LoadedSet, evaluate, make_reader
from memalpha.memory.memory import count_words
from memalpha.models import resolve_model
from memalpha.models.policy import load_tokenizer
from memalpha.qa.readers import RecallReader
from memalpha.record.folder import folder_digest
from memalpha.record.measure import measure
from memalpha.record.rows import read_rows
from memalpha.types import Instance, Question
from tests.helpers.data_samples import write_instances
from tests.helpers.evaluation_stubs import loud_adapter, setting
from tests.helpers.measured_examples import MARTA
from tests.helpers.stub_server import StubServer, error

pytestmark = pytest.mark.usefixtures("one_thread")
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
    rows = read_rows(whole)
    assert len({(row.system, row.reader, row.seed, row.instance) for row in rows}) == len(rows)
    drawn = {"overwrite_summary", "constant_state", "untrained", "warm", "teacher"}
    assert Counter(row.system for row in rows) == {
        name: 3 * (2 if name in drawn else 1) * (1 if name == "warm" else 2) for name in SYSTEMS
    }
    assert {row.failed for row in rows} == {None}
    tokenizer = load_tokenizer("nano")
    texts = [tokenizer(chunk.text, add_special_tokens=False) for chunk in MARTA.chunks]
    tokens = sum(len(text.input_ids) for text in texts)
    assert {row.input_tokens for row in rows if row.instance == "marta"} == {tokens}
    for row in rows:
        whole_window = (row.system, row.reader) == ("full_context", "base")
        assert (row.reader_tokens > 200) == whole_window
        assert row.cut == 0 or not whole_window
        assert row.write_calls == 3 or row.system != "warm"
        if (row.system, row.reader) == ("gold", "recall") and row.instance != "marta":
            assert row.accuracy == 1.0


# In a system with a model that draws, and in the first.
@pytest.mark.parametrize("batch", [27, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_evaluation_goes_on_and_ends_with_the_same_numbers(
    batch, options, whole, tmp_path
):
    folder = tmp_path / "run"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    killed = subprocess.run(
        [
            sys.executable,
            str(ROOT / "tests" / "helpers" / "interrupted.py"),
            str(batch),
            *command(options, folder),
        ],
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
    with pytest.raises(RunFolderError, match=rf"was begun with other options or data: .*{said}"):
        outcome(options, folder, *CHEAP, *changes)
    assert len(untimed(folder)) == 6
    anew = outcome(options, folder, *CHEAP, *changes, "--overwrite", "true").results
    assert (
        evaluate(parse_evaluate_options(["--config", str(folder / "config.yaml")])).results == anew
    )  # goes on, not anew
    assert len(json.loads((folder / "environment.json").read_text())["resumed"]) == 1


@pytest.mark.parametrize(("skip", "instances", "left"), [(1, 0, "1234"), (3, 1, "3"), (0, 2, "01")])
def test_instances_can_be_passed_over(skip, instances, left, options, tmp_path):
    everyone = [replace(MARTA, id=str(i)) for i in range(5)]
    data = write_instances(tmp_path / "data.jsonl", everyone)
    spec = f"[{{name: a, data: '{data}', skip: {skip}, instances: {instances}}}]"
    outcome(options, tmp_path / "run", *CHEAP, "--sets", spec)
    assert {line["instance"] for line in untimed(tmp_path / "run")} == set(left)


def test_other_weights_in_the_same_place_are_refused(adapter, options, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(resolve_model("nano"), model)
    systems = json.dumps([{"kind": "agent", "adapter": str(adapter), "settings": "own"}])
    more = ("--model", str(model), *CHEAP[2:], "--systems", systems)
    outcome(options, tmp_path / "run", *more)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(RunFolderError, match=r"models '.*model' was"):
        outcome(options, tmp_path / "run", *more)


def test_a_model_of_the_hub_is_recorded_by_its_commit(options, tmp_path, monkeypatch):
    commit = "0123456789" * 4
    repository = tmp_path / "models--somebody--base"
    shutil.copytree(resolve_model("nano"), repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    outcome(options, tmp_path / "run", *CHEAP, "--model", "somebody/base")
    inputs = json.loads((tmp_path / "run" / "inputs.json").read_text())
    assert inputs["models"] == {"somebody/base": commit}


def test_a_model_that_was_trained_whole_is_measured_with_its_own_settings(tmp_path, capsys):
    model = shutil.copytree(resolve_model("nano"), tmp_path / "run" / "adapter")
    own = AgentConfig(schema="facts", codec="compact", max_chunk_tokens=800, view_tokens=16)
    replace(own, max_completion_length=4).save(model)
    data = write_instances(tmp_path / "data.jsonl", [MARTA])
    words = ["--data", str(data), "--output_dir", str(tmp_path / "measured")]
    for _ in range(2):  # again it is the same system
        assert run(["evaluate", "--trained", str(tmp_path / "run"), *words]) == 0
    config = yaml.safe_load((tmp_path / "measured" / "config.yaml").read_text())
    assert config["model"] == str(model)
    assert [row["name"] for row in config["systems"]] == ["run"]
    assert {line["system"] for line in untimed(tmp_path / "measured")} == {"run"}
    assert run(["evaluate", "--trained", str(model), "--model", "nano", *words]) == 1
    assert "is a whole model" in capsys.readouterr().err


@pytest.mark.parametrize("damaged", ['{"sets": [1]}', "[]"])
def test_damaged_digests_are_one_error(options, tmp_path, damaged):
    outcome(options, tmp_path / "run", *CHEAP)
    (tmp_path / "run" / "inputs.json").write_text(damaged)
    with pytest.raises(InputError, match=r"inputs\.json is damaged"):
        outcome(options, tmp_path / "run", *CHEAP)


def test_a_folder_of_something_else_is_left_alone(options, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="exists already"):
        outcome(options, tmp_path, *CHEAP)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


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
    more = (*server_options(chat_server), "--batch_size", "5")
    chat_server.fault_for = lambda body: (
        error(500) if "City of Marta?" in str(body["messages"]) else None
    )
    chat_server.reply = lambda body: "Rome"
    first = outcome(options, tmp_path / "run", *more)
    assert (first.results, first.failed) == (3, 1)
    (bad,) = [row for row in read_rows(tmp_path / "run") if row.failed]
    assert bad.instance == "marta" and "500" in bad.failed
    assert [math.isnan(question.score) for question in bad.questions] == [True] + [False] * 5
    chat_server.fault_for = lambda body: None
    assert outcome(options, tmp_path / "run", *more).failed == 0
    assert len(untimed(tmp_path / "run")) == 4
    assert [row.failed for row in read_rows(tmp_path / "run")] == [None] * 3


def test_a_server_that_is_down_stops_the_evaluation(options, tmp_path, chat_server):
    chat_server.fault_for = lambda body: error(500)
    with pytest.raises(
        ServiceError, match="reader 'endpoint', or its judge, failed for all 2 instances"
    ):
        outcome(options, tmp_path / "run", *server_options(chat_server))
    assert [result.failed is None for result in read_rows(tmp_path / "run")] == [False, False]


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
    lines = (whole / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.dumps(row.to_json(), ensure_ascii=False) for row in read_rows(whole)] == lines
    for damaged in (f"{lines[0]}\n{lines[0][:50]}\n", f'{lines[0]}\n{{"set": "x"}}\n'):
        (tmp_path / "results.jsonl").write_text(damaged)
        with pytest.raises(InputError, match=r"results\.jsonl, line 2 is damaged"):
            read_rows(tmp_path)
    (tmp_path / "results.jsonl").write_text(f"{lines[0]}\n{lines[0][:50]}")  # its writer was killed
    assert len(read_rows(tmp_path)) == 1


def test_tokens_read_are_a_mean_over_the_questions():
    where, system = setting([MARTA]), make_system("rag_bm25", {"piece_tokens": 1})
    texts = ("Oslo", "Who has a goat as a pet?", "zebra")
    asked = replace(MARTA, questions=tuple(Question(text, ("x",)) for text in texts))
    ((_, (row,)),) = measure(
        lambda instances: system.ingest_all(where, instances, 0, None),
        [asked],
        {"recall": Asks(RecallReader(20, count_words), count_words)},
        names=("set", "system"),
        seed=0,
        count=count_words,
    )
    read = [sum(map(count_words, question.passages)) for question in row.questions]
    assert row.reader_tokens == pytest.approx(sum(read) / len(read))
    assert read[2] == 0 < read[0] < read[1] <= 20
    assert [question.id for question in row.questions] == ["0", "1", "2"]


def test_a_reader_has_the_common_budget_unless_the_system_reads_the_window():
    where = setting([MARTA])
    loaded = LoadedSet(SimpleNamespace(name="set"), (MARTA,), where)

    def budget(spec: ReaderSpec, reads_window: bool) -> int:
        evaluation = SimpleNamespace(endpoints=EndpointOptions())
        return make_reader(spec, evaluation, loaded, reads_window).budget_tokens

    assert budget(ReaderSpec("recall"), False) == budget(ReaderSpec("recall"), True) == 64
    assert budget(ReaderSpec("base"), False) == 64
    assert 64 < budget(ReaderSpec("base"), True) < where.host.positions
    with pytest.raises(InputError, match="tiny"):
        budget(ReaderSpec("base", "tiny", window_tokens=40), True)


# ------------------------------------------------------------------------------------------------
# options
ROOT = Path(__file__).parents[2]
SMALL = {
    "sets": [
        "runs/data/some-set",
        {"name": "toy", "data": "toy", "options": {"n": 3}, "instances": 2, "readers": "recall"},
    ],
    "systems": [
        "verbatim",
        {"name": "a", "kind": "agent", "group": "g", "adapter": "x", "sets": ["toy"]},
    ],
    "readers": ["recall", {"name": "short", "kind": "base", "max_new_tokens": 4}],
    "seeds": [1, 2],
    "schema": "facts",
}


def parse(tmp_path, changes, *more):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **changes}))
    return parse_evaluate_options(["--config", str(path), *more])


def test_lists_hold_names_or_mappings_and_flags_go_before_the_file(tmp_path):
    found = parse(tmp_path, {}, "--reader_tokens", "77", "--seeds", "5")
    assert found.sets == (
        SetSpec("runs/data/some-set", "some-set"),
        SetSpec("toy", "toy", {"n": 3}, 2, readers=("recall",)),
    )
    verbatim, agent = found.systems
    assert (verbatim.name, verbatim.group, verbatim.options) == (
        "verbatim",
        "verbatim",
        {},
    )
    assert (agent.name, agent.group, agent.sets) == ("a", "g", ("toy",))
    same = dict.fromkeys(("archive", "retrieval", "sections_kept"))
    same |= {"trust_tools": False, "cut_chunks": False}
    assert agent.options == {"adapter": "x", "settings": "shared", **same}
    assert found.readers == (ReaderSpec("recall", "recall"), ReaderSpec("base", "short", 4))
    assert (found.agent.reader_tokens, found.options.seeds, found.agent.schema) == (
        77,
        [5],
        "facts",
    )


def test_several_adapters_are_one_group_with_a_system_each(tmp_path):
    named = {"name": "mine", "group": "g", "kind": "agent", "adapter": ["x", "y"], "sets": "toy"}
    first, second, third = parse(
        tmp_path, {"systems": [named, {"kind": "agent", "adapter": ["z"]}]}
    ).systems
    assert (first.name, first.group, first.options["adapter"]) == ("mine-1", "g", "x")
    assert (second.name, second.group, second.options["adapter"]) == ("mine-2", "g", "y")
    assert second.sets == ("toy",) and (third.name, third.group, third.options["adapter"]) == (
        "agent-1",
        "agent",
        "z",
    )


def test_the_resolved_configuration_reads_back_as_itself(tmp_path):
    found = parse(tmp_path, {})
    resolved = found.to_json()
    path = tmp_path / "again.yaml"
    path.write_text(yaml.safe_dump(resolved))
    assert yaml.safe_load(path.read_text()) == resolved
    again = parse_evaluate_options(["--config", str(path)])
    assert again.to_json() == resolved
    assert (again.sets, again.systems, again.readers) == (found.sets, found.systems, found.readers)


WRONG = [
    ({"systems": ["rag"]}, "the kind of system 'rag' is unknown"),
    ({"systems": ["gold", "gold"]}, "two systems are called 'gold'"),
    ({"systems": [{"kind": "gold", "sets": ["squad"]}]}, "sets of 'gold' name 'squad'"),
    (
        {"systems": [{"kind": "gold", "group": "g"}, {"kind": "verbatim", "group": "g"}]},
        "group 'g'",
    ),
    ({"temperature": float("nan")}, "temperature is nan"),
    ({"seeds": [1, 1]}, r"seeds is \[1, 1\]"),
    ({"readers": ["endpoint"]}, "endpoint_url"),
]


@pytest.mark.parametrize(("changes", "named"), WRONG)
def test_what_does_not_fit_is_named(changes, named, tmp_path):
    with pytest.raises(InputError, match=named):
        parse(tmp_path, {"sets": ["toy"], "systems": ["verbatim"], **changes})


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs" / "evaluate").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_configuration_of_the_repository_is_read(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    found = parse_evaluate_options(["--config", str(path)])
    assert found.sets and found.systems and found.readers


# ------------------------------------------------------------------------------------------------
# digests of inputs
def test_a_model_is_known_by_its_weights_template_and_configuration(tmp_path: Path) -> None:
    def model(name: str, weights: bytes = b"x", template: str = "{{ x }}", **config) -> str:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(weights)
        (folder / "config.json").write_text(
            json.dumps({"hidden_size": 8, **config}, indent=len(name)), encoding="utf-8"
        )
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        (folder / "memalpha_model.json").write_text(json.dumps({"date": name}), encoding="utf-8")
        return folder_digest(folder, MODEL_INPUTS)

    first = model("a")
    assert model("b") == first
    assert (
        len({first, model("c", b"y"), model("d", template="{{ y }}"), model("e", hidden_size=9)})
        == 4
    )
