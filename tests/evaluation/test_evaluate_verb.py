"""What ``memalpha evaluate`` leaves and prints once an evaluation is done, whatever was evaluated."""

import json

import pytest
from examples import result, write_results
from test_tables import configure

from memalpha.cli import run as command
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
