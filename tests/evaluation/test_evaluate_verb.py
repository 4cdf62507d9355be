"""What ``memalpha evaluate`` leaves and prints once an evaluation is done, whatever was evaluated."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from examples import MARTA, result, write_results
from test_tables import configure

from memalpha.cli import run as command
from memalpha.data.schema import write_instances
from memalpha.evaluation import run as run_module
from memalpha.evaluation.tables import write_tables


@pytest.mark.parametrize("failed", [0, 2])
def test_the_verb_draws_the_pictures_and_says_where_the_tables_are(tmp_path, monkeypatch, capsys, failed):
    folder = write_results(configure(tmp_path / "run", ["rag"]), [result(instance, system="rag") for instance in "ab"])

    def evaluate(evaluation, report, parts, only_tables):
        assert (parts, only_tables) == ([], False)
        write_tables(folder)
        return run_module.Outcome(folder, 2, failed)

    monkeypatch.setattr(run_module, "evaluate", evaluate)
    options = ["--systems", "[rag_bm25]", "--sets", "[{data: synthetic}]"]
    assert command(["evaluate", *options]) == (1 if failed else 0)
    assert capsys.readouterr().out.strip() == str(folder / "table.md")
    assert sorted(path.name for path in (folder / "plots").iterdir()) == [
        "recall-chunks.png", "recall-comparison.png", "recall-kinds-synthetic.png", "recall-memory.png",
    ]  # fmt: skip
    command(["evaluate", *options, "--json"])
    assert json.loads(capsys.readouterr().out)["sets"][0]["cells"]["rag"]["accuracy"]["mean"] == 0.5


@pytest.fixture
def done(tmp_path) -> tuple[Path, list[str]]:
    """An evaluation that was done, and the command that goes on with it."""
    data = write_instances(tmp_path / "instances.jsonl", [MARTA])
    options = ["--model", "nano", "--systems", "[rag_bm25]", "--sets", json.dumps([{"name": "one", "data": str(data)}])]
    assert command(["evaluate", *options, "--output_dir", str(tmp_path / "run")]) == 0
    return tmp_path / "run", ["evaluate", *options, "--output_dir"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.yaml", b"", "config.yaml is damaged: it is empty"),
        ("config.yaml", b"sets: [", "config.yaml is damaged: while parsing"),
        ("config.yaml", b"- 1", "config.yaml is damaged: it holds a list"),
        ("inputs.json", b'{"sets": {', "inputs.json is damaged: Expecting"),
        ("environment.json", b"", "environment.json is damaged: Expecting"),
        ("results.jsonl", b'{"set": "\xff"}\n', "results.jsonl, line 1 is damaged: 'utf-8'"),
        ("results.jsonl", None, "Is a directory"),
    ],
)
def test_a_damaged_folder_is_one_clear_message_and_is_left_as_it_is(name, content, said, done, capsys):
    folder, again = done
    if content is None:
        (folder / name).unlink()
        (folder / name).mkdir()
    else:
        (folder / name).write_bytes(content)
    capsys.readouterr()
    assert command([*again, str(folder)]) == 1
    error = capsys.readouterr().err
    assert error.count("error: ") == 1 and said in error and "to fix: " in error
    assert content is None or (folder / name).read_bytes() == content


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("inputs.json", b"{}", "does not say which sets and adapters it was made of"),
        ("inputs.json", b"", "inputs.json is damaged"),
        ("config.yaml", b"", "config.yaml is damaged: it is empty"),
        ("environment.json", b"{", "environment.json is damaged"),
    ],
)
def test_a_damaged_part_is_not_joined(name, content, said, done, tmp_path, capsys):
    folder, again = done
    (folder / name).write_bytes(content)
    assert command([*again, str(tmp_path / "whole"), "--join", str(folder)]) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "whole").exists()


def test_the_console_tells_the_mean_over_instances_as_the_table_does(tmp_path, capsys):
    unlike = replace(MARTA, id="short", questions=MARTA.questions[:1])
    data = write_instances(tmp_path / "instances.jsonl", [MARTA, unlike])
    options = ["--model", "nano", "--systems", "[rag_bm25]", "--retrieve_k", "1", "--output_dir", str(tmp_path / "run")]
    assert command(["evaluate", *options, "--sets", json.dumps([{"name": "one", "data": str(data)}])]) == 0
    told = re.search(r"accuracy ([0-9.]+), the mean of 2 instances", capsys.readouterr().out)
    cell = json.loads((tmp_path / "run" / "summary.json").read_text())["sets"][0]["cells"]["rag_bm25"]
    results = [json.loads(line) for line in (tmp_path / "run" / "results.jsonl").read_text().splitlines()]
    scores = [[question["score"] for question in row["questions"]] for row in results]
    over_questions = sum(map(sum, scores)) / sum(map(len, scores))
    assert told and float(told[1]) == pytest.approx(cell["accuracy"]["mean"], abs=5e-4)
    assert abs(over_questions - float(told[1])) > 0.01


def test_a_folder_of_something_else_is_not_said_to_be_resumed(done, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    assert command([*done[1], str(tmp_path / "mine")]) == 1
    error = capsys.readouterr().err
    assert "exists already and is no run folder" in error and "--resume" not in error


def test_training_does_not_go_on_with_an_evaluation(done, capsys):
    options = ["--model", "nano", "--train_data", "toy", "--use_cpu", "true", "--output_dir", str(done[0]), "--resume"]
    assert command(["train", *options]) == 1
    error = capsys.readouterr().err
    assert "is the folder of an evaluation" in error and "not there" not in error
