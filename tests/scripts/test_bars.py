"""The script of the bars: what it says follows from the numbers, whichever way they fall."""

import json
from types import SimpleNamespace

import bars
import evaluate_all
import pytest

from memalpha.cli import run

WELL = {"tool_success": 0.95, "content": 0.8, "cut_off": 0.0, "update_share": 0.2, "delete_share": 0.05, "calls_per_instance": 8.0}
WARM = {"tool_success": 0.9, "content": 0.85, "cut_off": 0.2, "update_share": 0.1, "delete_share": 0.01, "calls_per_instance": 8.0}


@pytest.fixture(scope="module")
def evaluate(tmp_path_factory):
    """Evaluates a good and a bad system as the trained one and as its warm start."""

    def make(warm, trained):
        folder = tmp_path_factory.mktemp("bars") / "main"
        data = {"data": "synthetic", "options": {"n": 12, "split": "test"}}
        sets = [{"name": name, **data} for name in ("dialogues", "dialogues 10x", "squad", "hotpotqa")]
        agents = [
            {"name": "warm", **warm},
            {"name": "grpo-1", "group": "grpo", **trained},
            {"name": "grpo-2", "group": "grpo", **trained},
        ]
        rivals = [{"kind": kind, "embedder": "hashing"} for kind in ("rag_dense", "rag_two_layer")]
        systems = [*agents, {"name": "control", **warm}, "verbatim", "rag_bm25", *rivals]
        options = ["--model", "nano", "--schema", "facts", "--codec", "compact", "--max_chunk_tokens", "800", "--view_tokens", "64"]
        given = ["--sets", json.dumps(sets), "--systems", json.dumps(systems), "--readers", "recall", *options]
        assert run(["evaluate", *given, "--output_dir", str(folder)]) == 0
        return folder

    return make


def bars_of(evaluation, warm, trained, tmp_path, monkeypatch):
    for name, row in (("warm", warm), ("grpo-1", trained), ("grpo-2", WELL), ("control", warm)):
        (tmp_path / "rollouts" / name).mkdir(parents=True)
        (tmp_path / "rollouts" / name / "summary.json").write_text(json.dumps(row))
    return made([evaluation, tmp_path / "rollouts"], evaluation, tmp_path / "docs", monkeypatch)


def made(arguments, evaluation, docs, monkeypatch):
    """The bars and the page that the script makes of a comparison that is published."""
    evaluate_all.write_page(evaluation, docs)
    monkeypatch.setattr("sys.argv", ["bars.py", *map(str, arguments), "--docs", str(docs)])
    bars.main()
    return json.loads((docs / "results" / "bars.json").read_text())["bars"], (docs / "bars.md").read_text()


def test_a_trained_policy_that_is_better_in_all_meets_every_bar(evaluate, tmp_path, monkeypatch):
    folder = evaluate({"kind": "verbatim", "memory_tokens": 20}, {"kind": "teacher"})
    bars, page = bars_of(folder, WARM, WELL, tmp_path, monkeypatch)
    assert [bar["asked"] for bar in bars if not bar["met"]] == []
    gain = bars[0]["numbers"]
    summary = json.loads((folder / "summary.json").read_text())
    (home,) = (item for item in summary["sets"] if item["set"] == "dialogues")
    means = {name: cell["accuracy"]["mean"] for name, cell in home["cells"].items()}
    assert gain["mean"] == pytest.approx(means["grpo"] - means["warm"]) and gain["n"] == 12 and len(gain["seeds"]) == 2
    asked = sum(home["cells"]["grpo"]["kinds"][kind]["questions"] for kind in ("latest", "removed"))
    right = {
        name: sum(cell["kinds"][kind]["accuracy"]["mean"] * cell["kinds"][kind]["questions"] for kind in ("latest", "removed"))
        for name, cell in home["cells"].items()
    }
    (facts,) = (bar for bar in bars if bar["asked"].endswith("removed facts: above `verbatim`"))
    assert facts["numbers"]["mean"] == pytest.approx((right["grpo"] - right["verbatim"]) / asked)
    assert f"{len(bars)} of {len(bars)} are met." in page and page.count("| yes |") == len(bars)


def test_how_much_less_accuracy_falls_has_the_interval_of_two_independent_differences(evaluate, tmp_path, monkeypatch):
    folder = evaluate({"kind": "verbatim", "memory_tokens": 20}, {"kind": "teacher"})
    bars_of(folder, WARM, WELL, tmp_path, monkeypatch)
    record = tmp_path / "docs" / "results" / "comparison.json"
    data = json.loads(record.read_text())
    sets = {item["set"]: item["differences"]["grpo"]["rag_bm25"] for item in data["summary"]["sets"]}
    sets["dialogues"].update(mean=-0.2, stderr=0.03)
    sets["dialogues 10x"].update(mean=-0.15, stderr=0.04)
    record.write_text(json.dumps(data))
    monkeypatch.setattr("sys.argv", ["bars.py", "--docs", str(tmp_path / "docs")])
    bars.main()
    after = json.loads((tmp_path / "docs" / "results" / "bars.json").read_text())["bars"]
    (bar,) = (bar for bar in after if "10x" in bar["asked"] and "rag_bm25" in bar["asked"])
    assert bar["numbers"]["difference"] == pytest.approx([-0.05, -0.05 - 1.96 * 0.05, -0.05 + 1.96 * 0.05], abs=1e-4)
    assert "; the second fall minus the first -0.050 [-0.148, +0.048]" in bar["found"]


def test_a_trained_policy_that_got_worse_meets_none_about_gains(evaluate, tmp_path, monkeypatch):
    folder = evaluate({"kind": "teacher"}, {"kind": "verbatim", "memory_tokens": 20})
    worse = {
        "tool_success": 0.8,
        "content": 0.74,
        "cut_off": 0.1,
        "update_share": 0.1,
        "delete_share": 0.0,
        "calls_per_instance": 8.0,
    }
    bars, page = bars_of(folder, WARM, worse, tmp_path, monkeypatch)
    met = [bar["asked"] for bar in bars if bar["met"]]
    assert [text for text in met if "control" not in text and "falls" not in text] == [
        "dialogues: memory at most half the tokens of the input"
    ]
    assert page.count("| **no** |") == len(bars) - len(met) > 10


def test_what_was_not_evaluated_is_said_and_not_met(evaluate, tmp_path, monkeypatch):
    folder = evaluate({"kind": "verbatim", "memory_tokens": 20}, {"kind": "teacher"})
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    kept = [line for line in lines if (line["system"], line["set"]) != ("grpo-2", "dialogues 10x")]  # one seed is missing
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    bars, page = bars_of(folder, WARM, WELL, tmp_path, monkeypatch)
    assert [bar["found"] for bar in bars if "10x" in bar["asked"]] == ["not evaluated"] * 3
    assert page.count("| not evaluated | ? |") == 3
    assert f"{len(bars) - 3} of {len(bars)} are met; 3 were not evaluated." in page


def test_a_longer_set_whose_agents_are_others_has_no_fall():
    def summary(agent: str) -> SimpleNamespace:
        cells = {name: SimpleNamespace(members={"0": name}, accuracy=SimpleNamespace(per_seed={"0": 0.5})) for name in bars.RAW}
        grpo = SimpleNamespace(members={"0": agent}, accuracy=SimpleNamespace(per_seed={"0": 0.5}))
        return SimpleNamespace(cells={**cells, "grpo": grpo})

    found = list(bars.on_growth({"dialogues": summary("grpo-1"), "dialogues 100x": summary("grpo-2")}))
    assert [(bar.found, bar.met) for bar in found] == [("not evaluated", None)] * 3


def test_bars_about_rollouts_that_are_not_there_are_not_met(evaluate, tmp_path, monkeypatch):
    folder = evaluate({"kind": "verbatim", "memory_tokens": 20}, {"kind": "teacher"})
    kept = [line for line in (folder / "results.jsonl").read_text().splitlines() if json.loads(line)["system"] != "control"]
    (folder / "results.jsonl").write_text("\n".join(kept) + "\n")
    for there in (["warm"], ["grpo-1", "grpo-2"], ["warm", "grpo-2"]):
        rollouts = tmp_path / "-".join(there)
        for name in there:
            (rollouts / name).mkdir(parents=True)
            (rollouts / name / "summary.json").write_text(json.dumps(WELL))
        found, _ = made([folder, rollouts], folder, tmp_path / "docs", monkeypatch)
        missing = [bar["asked"] for bar in found if bar["met"] is None]
        assert len(missing) == 7 and sum("control" in asked for asked in missing) == 2
        assert str(tmp_path) not in (tmp_path / "docs" / "results" / "bars.json").read_text()


def test_what_needs_a_folder_stays_as_it_was_without_it_and_the_rest_follows_the_comparison(evaluate, tmp_path, monkeypatch):
    folder = evaluate({"kind": "verbatim", "memory_tokens": 20}, {"kind": "teacher"})
    before, page = bars_of(folder, WARM, WELL, tmp_path, monkeypatch)
    record, docs = tmp_path / "docs" / "results" / "comparison.json", tmp_path / "docs"
    assert made([], folder, docs, monkeypatch) == (before, page)
    data = json.loads(record.read_text())
    (longer,) = (item for item in data["summary"]["sets"] if item["set"] == "dialogues 10x")
    longer["in_mean"], cell = False, longer["cells"]["grpo"]
    cell["members"], cell["accuracy"]["per_seed"] = {"0": "grpo-2 seed 0"}, {"0": 0.0}  # the second seed alone, and nothing right
    record.write_text(json.dumps(data))
    monkeypatch.setattr("sys.argv", ["bars.py", "--docs", str(docs)])
    bars.main()
    after = json.loads((docs / "results" / "bars.json").read_text())["bars"]
    assert [bar["asked"] for bar in after] == [bar["asked"] for bar in before]
    changed = [bar for bar, was in zip(after, before, strict=True) if bar != was]
    assert all(bar["numbers"]["difference"] is None for bar in changed)
    assert len(changed) == 3 and all("`grpo` 1.000 → 0.000, by 1.000, keeps 0.00" in bar["found"] for bar in changed)
    assert all(bar["found"].endswith("(grpo-2 seed 0 alone)") and bar["met"] is False for bar in changed)


def test_memory_is_counted_with_and_without_times(evaluate, tmp_path, monkeypatch):
    folder = evaluate({"kind": "verbatim", "memory_tokens": 20}, {"kind": "verbatim"})
    found, _ = bars_of(folder, WARM, WELL, tmp_path, monkeypatch)
    (bar,) = (bar for bar in found if "memory at most" in bar["asked"])
    contents, dated = (bar["numbers"][key][0] for key in ("contents", "with_times"))
    assert 0.8 < contents <= 1 < dated and bar["met"] is False  # every line kept, each under its own time


def test_a_folder_without_the_dialogues_is_refused(tmp_path, monkeypatch):
    for name, text in (("config.yaml", "sets: []\nsystems: []\nreaders: []\n"), ("results.jsonl", "")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("sys.argv", ["bars.py", str(tmp_path), str(tmp_path), "--docs", str(tmp_path)])
    with pytest.raises(SystemExit, match="has no set 'dialogues' with reader 'recall'"):
        bars.main()


@pytest.mark.parametrize(
    ("arguments", "said"), [(["nope"], "nope/config.yaml is missing"), (["--docs", "."], "No such file or directory: ")]
)
def test_a_folder_that_is_not_there_is_one_message(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["bars.py", *arguments])
    assert bars.main() == 1
    message = capsys.readouterr().err
    assert message.startswith("error: ") and said in message


def test_a_rollout_without_a_call_has_no_share_of_them():
    none = {**WELL, "tool_success": None, "update_share": None, "delete_share": None}
    found = list(bars.on_behaviour(["grpo-1"], {"warm": WARM, "grpo-1": none, "other": {}}))
    assert [bar.met for bar in found] == [None, True, True, None, None]
