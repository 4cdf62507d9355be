"""What ``memalpha evaluate`` leaves and prints once an evaluation is done, whatever was evaluated."""

import json
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
