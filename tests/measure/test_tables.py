"""Tables of small evaluations: every number worked by hand or by an independent loop, and what must
be said said."""

import json
import math
import re
from dataclasses import replace

import pytest
import yaml

from examples import MARTA, recalled, result, write_results
from examples import counts as counts_of
from memalpha.measure.summary import observe, summarise_evaluation
from memalpha.measure.tables import interval, write_tables
from memalpha.measure.view import UNKNOWN
from memalpha.record.statistics import difference, estimate, mean_over_sets

SYSTEMS = ("rag", "warm", "agent")


def configure(folder, systems=SYSTEMS, sets=("synthetic",), groups=None, **more):
    folder.mkdir(parents=True, exist_ok=True)
    kinds = {"rag": "rag_bm25"}
    config = {
        "sets": [{"name": name, "data": "nowhere", "options": {}, "instances": 0} for name in sets],
        "systems": [
            {
                "name": n,
                "kind": kinds.get(n, "agent"),
                "group": (groups or {}).get(n, n),
                "sets": [],
                "readers": [],
            }
            for n in systems
        ],
        "readers": [{"name": "recall", "kind": "recall"}],
        "seeds": [0],
        **more,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def rows(text):
    """Tables of a Markdown text: [[{column: cell}, ...], ...]."""
    found = []
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.M):
        head, _, *body = [
            [cell.strip() for cell in line.strip("|").split(" | ")]
            for line in block.strip().split("\n")
        ]
        found.append(
            [dict(zip((name.strip() for name in head), line, strict=True)) for line in body]
        )
    return found


SCORES = {
    "rag": {"a": (1.0, 0.0, 0.0), "b": (0.0, 0.0), "c": (1.0, 1.0)},
    "warm": {"a": (0.0, 0.0, 1.0), "b": (1.0, 0.0), "c": (0.0, 0.0)},
    "agent": {"a": (1.0, 1.0, 0.0), "b": (1.0, 0.0), "c": (1.0, 0.5)},
}
KINDS = {"a": ("single", "latest", "latest"), "b": ("single", "single"), "c": ("latest", "latest")}


def some_results(**more):
    for system, by_instance in SCORES.items():
        for name, scores in by_instance.items():
            yield result(name, scores, KINDS[name], system=system, **more)


def test_a_sampling_seed_without_a_result_is_missing_and_one_that_is_not_drawn_is_not(tmp_path):
    names = {"teacher": "teacher", "sure": "teacher", "rag": "rag_bm25", "agent": "agent"}
    folder = configure(tmp_path, ["rag"], seeds=[1, 2])
    config = yaml.safe_load((folder / "config.yaml").read_text())
    row = config["systems"][0]
    config["systems"] = [
        {**row, "sets": (), "readers": (), "name": n, "group": n, "kind": kind}
        for n, kind in names.items()
    ]
    config["systems"][1]["p_update"] = 1.0  # draws nothing
    (folder / "config.yaml").write_text(json.dumps(config))
    write_results(folder, [result(i, (1.0,), system=name, seed=1) for i in "ab" for name in names])
    (item,) = summarise_evaluation(folder).sets
    assert dict(item.left_out) == {"teacher": "2 of 2: not evaluated yet"}  # the agent is greedy
    assert list(item.cells) == ["sure", "rag", "agent"]
    (folder / "config.yaml").write_text(json.dumps({**config, "temperature": 0.7}))
    assert list(summarise_evaluation(folder).sets[0].left_out) == ["teacher", "agent"]


def test_accuracy_kinds_and_differences(tmp_path):
    folder = write_results(configure(tmp_path), some_results())
    (item,) = summarise_evaluation(folder).sets
    means = {s: {i: sum(x) / len(x) for i, x in by.items()} for s, by in SCORES.items()}
    assert (item.instances, item.size, dict(item.left_out)) == (3, 3, {})
    for system in SYSTEMS:
        assert item.cells[system].accuracy == estimate({"0": means[system]})
        pooled = {"single": [], "latest": []}
        for name, scores in SCORES[system].items():
            for kind, score in zip(KINDS[name], scores, strict=True):
                pooled[kind].append(score)
        for kind, scores in pooled.items():
            cell = item.cells[system]
            assert cell.kinds[kind].mean == pytest.approx(sum(scores) / len(scores))
            assert cell.kinds[kind].n == 2 and cell.questions[kind] == len(scores)
    assert item.cells["agent"].accuracy.mean == pytest.approx((2 / 3 + 1 / 2 + 3 / 4) / 3)
    assert item.differences["rag"]["agent"] == difference(
        {"0": means["rag"]}, {"0": means["agent"]}
    )
    pairs = [(first, list(others)) for first, others in item.differences.items()]
    assert pairs == [("rag", ["warm", "agent"]), ("warm", ["agent"])]


def test_costs_are_means_over_instances_and_members(tmp_path):
    counts = counts_of(insert=4, update=2, delete=1, duplicate=1)
    rows = [
        result(
            "a",
            system="one",
            memory_tokens=10,
            input_tokens=100,
            cut=6,
            seconds_write=1.0,
            operations=counts,
        )
    ]
    more = (("b", "one", 20), ("a", "two", 30), ("b", "two", 40))
    rows += [
        result(name, system=system, memory_tokens=tokens, input_tokens=100)
        for name, system, tokens in more
    ]
    folder = write_results(
        configure(tmp_path, ["one", "two"], groups={"one": "agent", "two": "agent"}), rows
    )
    cell = summarise_evaluation(folder).sets[0].cells["agent"]
    assert (cell.means["memory_tokens"], cell.means["input_tokens"], cell.means["cut"]) == (
        25,
        100,
        1.5,
    )
    assert (
        cell.means["seconds_write"] == (1 + 2 + 2 + 2) / 4
        and cell.means["insert"] == (4 + 2 + 2 + 2) / 4
    )
    assert cell.members == {"0": "one seed 0", "1": "two seed 0"}


def test_groups_are_means_over_training_seeds_paired_in_order(tmp_path):
    groups = {"warm0": "warm", "warm1": "warm", "grpo0": "grpo", "grpo1": "grpo"}
    values = {"rag": (0, 1), "warm0": (0, 1), "warm1": (1, 1), "grpo0": (1, 1), "grpo1": (1, 0)}
    results = [
        result(i, (x,), system=s)
        for s, row in values.items()
        for i, x in zip("ab", map(float, row), strict=True)
    ]
    folder = write_results(configure(tmp_path, values, groups=groups), results)
    (item,) = summarise_evaluation(folder).sets
    assert (
        item.cells["warm"].accuracy.per_seed == {"0": 0.5, "1": 1.0}
        and item.cells["grpo"].accuracy.mean == 0.75
    )
    assert item.differences["warm"]["grpo"].per_seed == {"0": 0.5, "1": -0.5}
    assert item.differences["rag"]["grpo"].per_seed == {"0": 0.5, "1": 0.0}  # one seed beside two


def test_the_mean_over_sets_is_simple_and_for_systems_on_every_set(tmp_path):
    folder = configure(tmp_path, sets=("small", "large"))
    results = [replace(row, set="small") for row in some_results()]
    results += [
        result(f"i{k}", (float(k % 3 == 0),), system="agent", set="large") for k in range(12)
    ]
    results += [
        result(f"i{k}", (float(k % 2 == 0),), system="warm", set="large") for k in range(12)
    ]
    folder = write_results(folder, results)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["systems"][0]["sets"] = ["small"]
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    summary = summarise_evaluation(folder)
    over = summary.over_sets["recall"]
    assert over["rag"] is None and list(over) == list(SYSTEMS)
    small = {i: sum(x) / len(x) for i, x in SCORES["agent"].items()}
    large = {f"i{k}": float(k % 3 == 0) for k in range(12)}
    assert over["agent"] == mean_over_sets([estimate({"0": small}), estimate({"0": large})])
    assert over["agent"].mean == pytest.approx((sum(small.values()) / 3 + 1 / 3) / 2)
    warm = {i: sum(x) / len(x) for i, x in SCORES["warm"].items()}
    gains = [
        {"0": {i: small[i] - warm[i] for i in small}},
        {"0": {i: large[i] - float(k % 2 == 0) for k, i in enumerate(large)}},
    ]
    gain = mean_over_sets([estimate(scores) for scores in gains])
    assert summary.differences["recall"] == {"warm": {"agent": gain}}  # rag lacks a set
    assert summary.sets[1].left_out == {}  # it was not to be evaluated there
    write_tables(folder)
    rag, warm, agent = rows((folder / "table.md").read_text())[0]
    assert (rag["mean over 2 sets"], rag["large"]) == (f"{UNKNOWN} (1 of 2 sets)", UNKNOWN)
    assert agent["mean over 2 sets"] == interval(over["agent"])
    gaps = [row["minus `agent`"] for row in (rag, warm, agent)]
    assert gaps == [UNKNOWN, interval(-gain, signed=True), UNKNOWN]


def test_what_one_system_lacks_is_left_out_for_all_and_said(tmp_path):
    results = list(some_results())
    results[1] = replace(results[1], failed="no answer from the server", questions=())  # rag on b
    masked = replace(results[8].questions[0], score=math.nan, answer=None, error="timeout")
    results[8] = replace(results[8], questions=(masked, *results[8].questions[1:]))  # agent on c
    del results[5]  # warm on c
    folder = write_results(configure(tmp_path), results)
    (folder / "inputs.json").write_text(json.dumps({"sets": {"synthetic": {"instances": 5}}}))
    (item,) = summarise_evaluation(folder).sets
    assert (item.instances, item.size) == (1, 5)
    assert item.left_out == {
        "rag": "3 of 5: no answer from the server",
        "warm": "3 of 5: not evaluated yet",
        "agent": "3 of 5: timeout",
    }
    assert item.cells["agent"].accuracy.mean == pytest.approx(2 / 3) and math.isnan(
        item.cells["agent"].accuracy.low
    )
    write_tables(folder)
    text = (folder / "table.md").read_text()
    assert (
        "(1 of 5 instances)" in text
        and "- Left out: `rag` lacks 3 of 5: no answer from the server" in text
    )
    assert f".667 [{UNKNOWN}, {UNKNOWN}]" in text


def test_the_files_say_the_same(tmp_path):
    folder = write_results(configure(tmp_path), some_results())
    (item,) = write_tables(folder).sets
    data = json.loads((folder / "summary.json").read_text())
    assert data["reference"] == "agent" and data["bootstrap"]["resamples"] == 10_000
    _, main, kinds, _ = rows((folder / "table.md").read_text())
    for system, row, by_kind in zip(SYSTEMS, main, kinds, strict=True):
        cell = item.cells[system]
        assert data["sets"][0]["cells"][system]["accuracy"]["low"] == cell.accuracy.low
        assert row["system"] == by_kind["by kind of question"] == system
        assert row["accuracy"] == interval(cell.accuracy)
        costs = [row[name] for name in ("memory tokens", "of the input", "write calls")]
        assert costs == ["40.0", ".400", "3.0"]
        assert by_kind["latest (4 questions)"] == interval(cell.kinds["latest"])
    assert main[2]["minus `agent`"] == UNKNOWN
    assert main[0]["minus `agent`"] == interval(-item.differences["rag"]["agent"], signed=True)


def test_the_scorecard_is_in_the_tables_and_says_what_is_not_measured(tmp_path):
    questions = tuple(
        recalled(q, "Marta city Oslo", "Marta city Rome", score=0.0) for q in MARTA.questions
    )
    entries = ("Marta city Oslo", "Marta city Rome")
    row = result("marta", system="agent", questions=questions[:4], entries=entries)
    row = replace(row, observed=observe(replace(MARTA, questions=MARTA.questions[:4]), row))
    folder = write_results(configure(tmp_path / "run", ["agent"]), [row])
    write_tables(folder)
    card = rows((folder / "table.md").read_text())[-1][0]
    none = f"[{UNKNOWN}, {UNKNOWN}]"
    assert card["stale answers ↓"] == f".333 {none}" and card["contradictions ↓"] == f"1.000 {none}"
    assert card["current ↑"] == f"1.000 {none}" and card["residue in memory ↓"] == f".000 {none}"
    assert card["cascade accuracy ↑"] == "not measured"
    (item,) = json.loads((folder / "summary.json").read_text())["sets"]
    assert item["cells"]["agent"]["scorecard"]["cascade accuracy"] is None
