"""The script of the comparison: its sets are those of the configuration, and the page is made of an evaluation's files."""

import json
from pathlib import Path

import evaluate_all
import pytest
import yaml

from memalpha.cli import run
from memalpha.config import read
from memalpha.data.registry import get_source
from memalpha.evaluation.config import EvaluateArguments, resolve
from memalpha.evaluation.published import Published
from memalpha.training.config import AgentArguments

ROOT = Path(__file__).parents[2]


def test_every_set_of_the_configuration_is_prepared_with_options_its_source_has():
    config = yaml.safe_load((ROOT / evaluate_all.CONFIG).read_text(encoding="utf-8"))
    assert [row["data"] for row in config["sets"]] == [
        f"runs/data/{name}" for name in evaluate_all.SETS if name.startswith("test-")
    ]
    for item in evaluate_all.SETS.values():
        source = get_source(item.source)
        read(source.options, dict(option.split("=", 1) for option in item.options), item.source)
        assert source.needs_input == bool(item.pattern)


def test_a_set_is_prepared_from_the_files_below_the_folder(tmp_path):
    for name in ("trec/train.txt", "trec/test.txt"):
        (tmp_path / "deep" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "deep" / name).touch()
    said = evaluate_all.prepare_arguments("test-trec_coarse", evaluate_all.SETS["test-trec_coarse"], tmp_path)
    assert said[:4] == ["prepare", "trec_coarse", "--output", "runs/data/test-trec_coarse"]
    assert said[said.index("--input") + 1] == str(tmp_path / "deep/trec/test.txt")
    assert f"examples={tmp_path / 'deep/trec/train.txt'}" in said
    with pytest.raises(SystemExit, match=r"no squad/dev_half_v2\.json below"):
        evaluate_all.prepare_arguments("test-squad", evaluate_all.SETS["test-squad"], tmp_path)
    (tmp_path / "squad").mkdir()
    (tmp_path / "squad/dev_half_v2.json").touch()
    said = evaluate_all.prepare_arguments("test-squad", evaluate_all.SETS["test-squad"], tmp_path)
    assert said[-3:] == ["--check-against", "runs/data/squad-train", "--drop-leaks"]


def test_the_page_says_how_it_was_made_and_names_no_machine(tmp_path):
    sets = json.dumps([{"data": "synthetic", "options": {"n": 2, "split": "test"}}])
    folder = tmp_path / "run"
    options = ["--model", "nano", "--schema", "facts", "--codec", "compact", "--max_chunk_tokens", "800", "--view_tokens", "64"]
    assert run(["evaluate", "--sets", sets, "--systems", "[verbatim, gold]", *options, "--output_dir", str(folder)]) == 0
    environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    commands = [
        [str(tmp_path / "bin" / "memalpha"), "evaluate", "--config", str(tmp_path / name)] for name in ("all.yaml", "part.yaml")
    ]
    later = {**environment, "command": commands[1], "code": "0123456789ab", "started": "2999-01-02T00:00:00"}
    environment |= {"command": commands[0], "continued": [later]}
    (folder / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
    evaluate_all.write_page(folder, tmp_path / "docs")
    page = (tmp_path / "docs" / "comparison.md").read_text(encoding="utf-8")
    assert page.startswith("# All systems, one protocol\n\nMade by `memalpha evaluate --config all.yaml` (2")
    assert f" to 2999-01-02, {environment['processor']}" in page
    assert f"code {', '.join(sorted(['0123456789ab', environment['code']]))}; memalpha" in page
    assert "| gold | 1.000" in page and "comparison.json).\n\nAccuracy is" in page
    kept = json.loads((tmp_path / "docs" / "results" / "comparison.json").read_text(encoding="utf-8"))
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert kept["summary"]["sets"] == [{"part": 0, **item} for item in summary["sets"]]
    assert kept["summary"]["over_sets"] == summary["over_sets"]
    (part,) = kept["parts"]
    assert part["environment"]["command"] == ["memalpha", "evaluate", "--config", "all.yaml"]
    environment["command"][0] = str(tmp_path / "scripts" / "evaluate_all.py")
    (folder / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
    assert "Made by `python scripts/evaluate_all.py ORIGINALS` (2" in evaluate_all.page(Published.from_folder(folder))
    assert part["environment"]["continued"][0]["command"] == ["memalpha", "evaluate", "--config", "part.yaml"]
    assert str(tmp_path) not in page + json.dumps(part["environment"])


def test_a_set_evaluated_alone_takes_its_place_on_the_page(tmp_path):
    sets = [
        {"name": name, "data": "synthetic", "options": {"n": 2, "split": "test", "seed": seed}} for seed, name in enumerate("ab")
    ]
    settings = {"model": "nano", "schema": "facts", "codec": "compact", "max_chunk_tokens": 800, "view_tokens": 64}
    config = tmp_path / "all.yaml"
    systems = ["gold", {"kind": "verbatim", "sets": ["a"]}, {"name": "again", "kind": "verbatim", "sets": ["a", "b"]}]
    config.write_text(yaml.safe_dump({"sets": sets, "systems": systems, "readers": ["recall"], **settings}))
    assert run(["evaluate", "--config", str(config), "--output_dir", str(tmp_path / "all")]) == 0
    evaluate_all.write_page(tmp_path / "all", tmp_path / "docs")
    before = Published.read(tmp_path / "docs/results/comparison.json")

    alone = evaluate_all.some_sets(config, "b", tmp_path / "alone")
    assert alone == tmp_path / "alone.yaml"
    assert run(["evaluate", "--config", str(alone), "--output_dir", str(tmp_path / "alone"), "--systems", "[gold]"]) == 0
    evaluate_all.write_page(tmp_path / "alone", tmp_path / "docs")
    after = Published.read(tmp_path / "docs/results/comparison.json")
    assert [item.set for item in after.summary.sets] == ["a", "b"] and after.made_by == (0, 1)
    assert after.summary.sets[0] == before.summary.sets[0] and list(after.summary.sets[1].cells) == ["gold"]
    assert (tmp_path / "docs" / "comparison.md").read_text(encoding="utf-8") == evaluate_all.page(after)
    with pytest.raises(SystemExit, match=r"no set 'c' in .*\n  expected: some of a, b"):
        evaluate_all.some_sets(config, "a,c", tmp_path / "none")


def test_only_what_is_asked_for_is_prepared(tmp_path):
    path = evaluate_all.some_sets(ROOT / evaluate_all.CONFIG, "squad, locomo", tmp_path / "some")
    assert list(evaluate_all.needed(path)) == ["squad-train", "test-squad", "test-locomo"]
    systems = {row.get("name", row["kind"]): row for row in yaml.safe_load(path.read_text(encoding="utf-8"))["systems"]}
    assert systems["control"]["sets"] == ["squad"] and systems["warm"]["sets"] == ["squad", "locomo"]
    assert "teacher" not in systems and "sets" not in systems["verbatim"]


@pytest.mark.parametrize(
    "changes",
    [
        {"systems": [{"kind": "gold", "sets": "dialogues"}, "rag_bm25", {"kind": "teacher", "sets": ["b"]}]},  # as plain text
        {"systems": [{"kind": "gold", "sets": []}, "rag_bm25", {"kind": "teacher", "sets": "b"}]},  # as config.yaml has it
        {"sets": ["runs/data/dialogues", {"data": "b"}]},  # paths, and no name
        {"sets": "[runs/data/dialogues, b]", "systems": "[gold, rag_bm25]"},  # YAML text
        {"sets": [{"name": "dialogues", "data": "x", "readers": "recall"}, "b"], "readers": ["recall", "base"]},  # base: b alone
    ],
)
def test_sets_and_systems_may_be_written_in_every_way_that_evaluate_takes(changes, tmp_path):
    config = {"sets": [{"name": "dialogues", "data": "x"}, {"name": "b", "data": "y"}], "systems": ["gold", "rag_bm25"]}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**config, **changes, "retrieve_k": 3}))
    assert evaluate_all.needed(path) == {}
    some = evaluate_all.some_sets(path, "dialogues", tmp_path / "v1.2")
    assert some == tmp_path / "v1.2.yaml"
    found = resolve(EvaluateArguments(**yaml.safe_load(some.read_text())), AgentArguments())
    assert [spec.name for spec in found.sets] == ["dialogues"] and found.arguments.retrieve_k == 3
    assert [spec.name for spec in found.systems] == ["gold", "rag_bm25"]
    assert [spec.name for spec in found.readers] == ["recall"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--record", "nope", "x.json"], "'nope' is no run folder"),
        (["--page-only", "nope"], "'nope' is no run folder"),
        ([".", "--config", "nope.yaml", "--only", "a"], "no config file 'nope.yaml'"),
        ([".", "--config", "nope.yaml"], "no config file 'nope.yaml'"),
    ],
)
def test_a_wrong_argument_is_one_message(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["evaluate_all.py", *arguments])
    assert evaluate_all.main() == 1
    message = capsys.readouterr().err
    assert message.startswith("error: ") and said in message and "Traceback" not in message
