"""Intervals, tables and scorecards: every number by hand or by an independent formula."""

import json
import math
import random
import re
from dataclasses import replace

import numpy as np
import pytest
import yaml

from memalpha.data.synthetic import PRESETS, generate
from memalpha.data.teacher import TeacherConfig
from memalpha.errors import InputError
from memalpha.measure.summary import Measure, observe, scorecard, summarise_evaluation
from memalpha.measure.tables import interval, write_tables
from memalpha.measure.view import NO_VALUE
from memalpha.memory.schema import MemorySchema, Section, SectionKind
from memalpha.qa.metrics import score
from memalpha.record import statistics
from memalpha.record.statistics import difference, estimate, mean_over_sets
from memalpha.types import Answer
from tests.helpers.data_samples import passages, taught
from tests.helpers.measured_examples import MARTA, recalled, result, said, write_results
from tests.helpers.measured_examples import counts as counts_of
from tests.helpers.measured_examples import result as made

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
    folder = configure(tmp_path, ["teacher", "rag", "agent"], seeds=[1, 2])
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["systems"][0]["kind"] = "teacher"
    names = ("teacher", "rag", "agent")
    write_results(folder, [result(i, (1.0,), system=name, seed=1) for i in "ab" for name in names])
    for temperature, missing in ((0.0, ["teacher"]), (0.7, ["teacher", "agent"])):
        config["temperature"] = temperature
        (folder / "config.yaml").write_text(json.dumps(config))
        assert list(summarise_evaluation(folder).sets[0].left_out) == missing


def test_accuracy_kinds_and_differences(tmp_path):
    folder = write_results(configure(tmp_path), some_results())
    (item,) = summarise_evaluation(folder).sets
    means = {s: {i: sum(x) / len(x) for i, x in by.items()} for s, by in SCORES.items()}
    assert (item.instances, item.size, dict(item.left_out)) == (3, 3, {})
    for system in SYSTEMS:
        assert item.cells[system].accuracy == estimate({"0": means[system]})
    # of the agent: single 1, 1 and 0; latest 1, 0, 1 and 0.5
    kinds = item.cells["agent"].kinds
    assert kinds["single"].mean == pytest.approx(2 / 3)
    assert kinds["latest"].mean == pytest.approx(2.5 / 4)
    assert item.cells["agent"].questions == {"single": 3, "latest": 4}
    wanted = difference({"0": means["rag"]}, {"0": means["agent"]})
    assert item.differences["rag"]["agent"] == wanted
    pairs = [(first, list(others)) for first, others in item.differences.items()]
    assert pairs == [("rag", ["warm", "agent"]), ("warm", ["agent"])]


def test_costs_are_means_over_instances_and_members(tmp_path):
    tokens = {("a", "one"): 10, ("b", "one"): 20, ("a", "two"): 30, ("b", "two"): 40}
    rows = [result(i, system=system, memory_tokens=n) for (i, system), n in tokens.items()]
    counts = counts_of(insert=4, update=2, delete=1, duplicate=1)
    rows[0] = replace(rows[0], cut=6, seconds_write=1.0, operations=counts)
    folder = configure(tmp_path, ["one", "two"], groups={"one": "agent", "two": "agent"})
    cell = summarise_evaluation(write_results(folder, rows)).sets[0].cells["agent"]
    names = ("memory_tokens", "input_tokens", "cut", "seconds_write", "insert")
    assert [cell.means[name] for name in names] == [25, 100, 1.5, 7 / 4, 10 / 4]
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
    large = {
        system: {f"i{k}": float(k % n == 0) for k in range(12)}
        for system, n in (("agent", 3), ("warm", 2))
    }
    results = [replace(row, set="small") for row in some_results()]
    for system, scores in large.items():
        results += [result(i, (x,), system=system, set="large") for i, x in scores.items()]
    folder = write_results(configure(tmp_path, sets=("small", "large")), results)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["systems"][0]["sets"] = ["small"]
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    summary = summarise_evaluation(folder)
    small = {s: {i: sum(x) / len(x) for i, x in SCORES[s].items()} for s in large}
    parts = {s: [estimate({"0": small[s]}), estimate({"0": large[s]})] for s in large}
    over = {s: mean_over_sets(both) for s, both in parts.items()}
    assert summary.over_sets["recall"] == {"rag": None, **over}
    assert over["agent"].mean == pytest.approx((sum(small["agent"].values()) / 3 + 1 / 3) / 2)
    gains = [difference({"0": x["warm"]}, {"0": x["agent"]}) for x in (small, large)]
    assert summary.differences["recall"] == {"warm": {"agent": mean_over_sets(gains)}}


def test_what_one_system_lacks_is_left_out_for_all_and_said(tmp_path):
    results = list(some_results())
    results[1] = replace(results[1], failed="no answer from the server", questions=())  # rag on b
    masked = replace(results[8].questions[0], score=math.nan, answer=None, error="timeout")
    results[8] = replace(results[8], questions=(masked, *results[8].questions[1:]))  # agent on c
    del results[5]  # warm on c
    folder = write_results(configure(tmp_path), results)
    (item,) = summarise_evaluation(folder).sets
    assert item.instances == 1
    assert item.left_out == {
        "rag": "1 of 3: no answer from the server",
        "warm": "1 of 3: not evaluated yet",
        "agent": "1 of 3: timeout",
    }
    assert item.cells["agent"].accuracy.mean == pytest.approx(2 / 3)
    write_tables(folder)
    assert f".667 [{NO_VALUE}, {NO_VALUE}]" in (folder / "table.md").read_text()


def test_the_files_say_the_same(tmp_path):
    folder = write_results(configure(tmp_path), some_results())
    (item,) = write_tables(folder).sets
    data = json.loads((folder / "summary.json").read_text())
    _, main, kinds, _ = rows((folder / "table.md").read_text())
    for system, row, by_kind in zip(SYSTEMS, main, kinds, strict=True):
        cell = item.cells[system]
        assert data["sets"][0]["cells"][system]["accuracy"]["low"] == cell.accuracy.low
        assert (row["system"], row["accuracy"]) == (system, interval(cell.accuracy))
        assert by_kind["latest (4 questions)"] == interval(cell.kinds["latest"])
    gap = -item.differences["rag"]["agent"]
    assert main[0]["minus `agent`"] == interval(gap, signed=True)


# ------------------------------------------------------------------------------------------------
# scorecard
ROOMY = MemorySchema("roomy", (Section("facts", SectionKind.LIST, timestamps=True),))
LATEST, REMOVED, COUNT, SINGLE, CASCADE, ABSENCE = MARTA.questions


def observed(instance, entries=(), questions=(), **values):
    """The row of a system of which some of an instance's questions were asked."""
    asked = {question.text: question for question in instance.questions}
    partly = replace(instance, questions=tuple(asked[row.text] for row in questions))
    row = made(instance.id, entries=tuple(entries), questions=tuple(questions), **values)
    return replace(row, observed=observe(partly, row))


def measured(entries=(), questions=(), instance=MARTA, **values):
    """By measure the sum of the hits and how much was looked at."""
    hits = observed(instance, entries, questions, **values).observed
    return {measure: (sum(values), len(values)) for measure, values in hits.items()}


@pytest.mark.parametrize(
    ("entries", "current", "contradictions", "residue"),
    [
        (["Marta city Rome", "Hugo pet goat"], 1, 0, 0),
        (["Marta city Rome", "Marta city Oslo"], 1, 1, 0),
        (["Marta city Oslo", "Hugo city Rome"], 0, 0, 0),
        (["Marta moved from Oslo to Rome", "Hugo job baker"], 1, 1, 1),
        (["Marta city Rome\nHugo city Oslo"], 1, 0, 0),  # each line on its own
        (["Marta lives in Rome. Hugo lives in Oslo."], 1, 0, 0),  # and each sentence
        (["Hugo: pony and goat", "Hugo was a baker; Marta, romeo"], 0, 0, 2),
        ([MARTA.chunks[0].text, MARTA.chunks[1].text, MARTA.chunks[2].text], 1, 1, 2),
    ],
)
def test_what_a_memory_holds(entries, current, contradictions, residue):
    found = measured(entries)
    assert found[Measure.CURRENT] == (current, 1)
    assert found[Measure.CONTRADICTIONS] == (contradictions, 1)
    assert found[Measure.RESIDUE_MEMORY] == (residue, 2)


@pytest.mark.parametrize(
    ("tokens", "held"), [(50, [(1, 1), (1, 1), (2, 2)]), (0, [(0, 1), (0, 1), (0, 2)])]
)
def test_a_system_that_keeps_the_input_holds_all_of_it_and_an_empty_memory_nothing(tokens, held):
    hits = measured(memory_tokens=tokens)
    of_memory = (Measure.CURRENT, Measure.CONTRADICTIONS, Measure.RESIDUE_MEMORY)
    assert [hits[measure] for measure in of_memory] == held


def test_stale_answers_and_passages():
    generated = measured(
        questions=[
            said(LATEST, "Oslo", ["Marta city Rome"]),
            said(REMOVED, "unknown", ["Hugo job baker"]),
            said(COUNT, "one", ["Marta has a pony", "Hugo pet goat"]),
            said(SINGLE, "Oslo", ["Marta city Oslo"]),
            said(CASCADE, None),  # its reader failed
        ]
    )
    assert generated[Measure.STALE_ANSWERS] == (1, 3)
    assert generated[Measure.STALE_PASSAGES] == (1, 3)
    assert generated[Measure.RESIDUE_ANSWERS] == (0, 2)
    assert Measure.CASCADE not in generated and Measure.ABSENCE not in generated


def test_shares_are_over_everything_and_seeds_are_averaged():
    unmoved = observed(replace(MARTA, id="twin"), ["text"], [said(LATEST, "Oslo")])
    rest = [said(REMOVED, "none"), said(COUNT, "goat")]
    rows = {
        seed: [observed(MARTA, ["text"], [said(LATEST, city), *rest]), unmoved]
        for seed, city in (("first", "Oslo"), ("second", "Rome"))
    }
    card = scorecard(rows)
    stale = card[Measure.STALE_ANSWERS]
    assert stale.per_seed == {"first": 0.5, "second": 0.25} and stale.mean == 0.375 and stale.n == 2
    assert card[Measure.CASCADE] is None
    assert card[Measure.CONTRADICTIONS].mean == 0.0


def kept(instance, config):
    """What a rule-based keeper of the given faults gets, its whole memory being read."""
    entries = passages(taught(instance, ROOMY, config)[0])
    answer = Answer("\n".join(entries), entries)
    rows = [replace(recalled(q, *entries), score=score(q, answer)) for q in instance.questions]
    return observed(instance, entries, rows)


def test_a_keeper_who_corrects_and_one_who_never_does():
    instances = generate(12, 0, PRESETS["dependent"])
    good, bad = ([kept(i, TeacherConfig(p_correct=p)) for i in instances] for p in (1.0, 0.0))
    perfect = {measure: float(measure.higher_is_better) for measure in Measure}
    assert {measure: share.mean for measure, share in scorecard({0: good}).items()} == perfect
    never = {measure: share.mean for measure, share in scorecard({0: bad}).items()}
    assert never[Measure.CURRENT] == 1.0 and never[Measure.CASCADE] == 0.0
    assert (
        0 < never[Measure.ABSENCE] < 1
    )  # what was never told is still right, what was taken back is not
    for measure in (
        Measure.STALE_ANSWERS,
        Measure.STALE_PASSAGES,
        Measure.CONTRADICTIONS,
        Measure.RESIDUE_MEMORY,
        Measure.RESIDUE_ANSWERS,
    ):
        assert never[measure] == 1.0, measure


# ------------------------------------------------------------------------------------------------
# statistics
def scores(*rows):
    """One seed a row, instances a, b, c, ..."""
    return {
        seed: {chr(97 + i): float(value) for i, value in enumerate(row)}
        for seed, row in enumerate(rows)
    }


def sample(seed, n=40, seeds=1):
    rng = np.random.default_rng(seed)
    return {
        s: {f"i{k:03}": float(x) for k, x in enumerate(rng.beta(2, 3, n))} for s in range(seeds)
    }


def test_worked_by_hand(monkeypatch):
    # Two instances 0 and 1: a resample is (0, 0), a mixture or (1, 1) with probability 1/4, 1/2,
    # 1/4.
    found = estimate(scores([0, 1]))
    assert (found.mean, found.low, found.high, found.n) == (0.5, 0.0, 1.0, 2)
    assert found.stderr == pytest.approx(0.5)  # sd sqrt(1/2) over sqrt(2)
    same = estimate(scores([0.25, 0.25, 0.25]))
    assert (same.mean, same.low, same.high, same.stderr, same.agree) == (
        0.25,
        0.25,
        0.25,
        0.0,
        True,
    )
    monkeypatch.setattr(statistics, "LEVEL", 0.4)
    narrow = estimate(scores([0, 1]))  # percentiles 30 and 70 lie in the middle half
    assert (narrow.low, narrow.high) == (0.5, 0.5)


def test_seeds_are_shown_and_averaged_and_instances_drawn_for_all_alike():
    # Seeds that mirror each other: every instance has mean 1/2, so jointly drawn the mean cannot
    # vary; drawn apart it would.
    found = estimate(scores([0, 1, 0, 1], [1, 0, 1, 0]))
    assert (found.mean, found.low, found.high, found.stderr) == (0.5, 0.5, 0.5, 0.0)
    assert found.per_seed == {0: 0.5, 1: 0.5}
    found = estimate(scores([0, 0, 1], [1, 1, 1], [0, 1, 1]))
    assert found.mean == pytest.approx(6 / 9) and found.per_seed == pytest.approx(
        {0: 1 / 3, 1: 1, 2: 2 / 3}
    )
    assert found.stderr == pytest.approx(np.std([1 / 3, 2 / 3, 1], ddof=1) / math.sqrt(3))


def test_against_scipy(monkeypatch):
    stats = pytest.importorskip("scipy.stats")
    first, second = sample(2), sample(3)
    pairs = np.array([list(first[0].values()), list(second[0].values())])
    data = pairs[1] - pairs[0]
    for level in (0.95, 0.8):
        told = stats.bootstrap(
            (data,), np.mean, n_resamples=10_000, confidence_level=level, method="percentile", rng=5
        )
        monkeypatch.setattr(statistics, "LEVEL", level)
        found = difference(first, second)
        width = told.confidence_interval.high - told.confidence_interval.low
        assert found.low == pytest.approx(told.confidence_interval.low, abs=0.05 * width)
        assert found.high == pytest.approx(told.confidence_interval.high, abs=0.05 * width)
        assert found.stderr == pytest.approx(stats.sem(data)) and found.mean == pytest.approx(
            data.mean()
        )


def test_weights_give_the_mean_over_questions():
    data, weights = scores([1, 0, 0.5]), {"a": 1, "b": 3, "c": 4}
    found = estimate(data, weights=weights)
    assert found.mean == pytest.approx(3 / 8)
    rng = random.Random(3)
    rows = [(1, 1), (0, 3), (0.5, 4)]
    draws = [rng.choices(rows, k=3) for _ in range(20_000)]
    means = sorted(sum(x * w for x, w in draw) / sum(w for _, w in draw) for draw in draws)
    exact = estimate(data, weights=weights)
    assert (exact.low, exact.high) == pytest.approx(
        (means[500], means[19_500])
    )  # few distinct values: the very same ones


def test_a_difference_is_paired_and_its_interval_is_that_of_the_differences():
    first, second = sample(8), sample(9)
    by_hand = {0: {name: second[0][name] - first[0][name] for name in first[0]}}
    assert difference(first, second) == estimate(by_hand)
    assert difference(second, first).mean == -difference(first, second).mean


def test_a_system_with_one_seed_is_paired_with_every_seed():
    baseline, trained = (
        {7: {"a": 0.0, "b": 0.5}},
        {1: {"a": 1.0, "b": 0.5}, 2: {"a": 0.5, "b": 1.0}, 3: {"a": 0.0, "b": 0.0}},
    )
    found = difference(baseline, trained)
    assert found.per_seed == {1: 0.5, 2: 0.5, 3: -0.25} and found.mean == pytest.approx(0.25)
    assert difference(trained, baseline).per_seed == {1: -0.5, 2: -0.5, 3: 0.25}
    other = difference(
        trained, {1: trained[1], 4: {"a": 1.0, "b": 1.0}}
    )  # seeds that do not pair are averaged first
    assert list(other.per_seed) == ["mean"] and other.mean == pytest.approx((1.0 + 0.75) / 2 - 0.5)


def test_what_cannot_be_paired_is_refused_by_name():
    with pytest.raises(InputError, match="in only one of the two systems: c, d"):
        difference(scores([1, 0, 1]), {0: {"a": 1.0, "b": 1.0, "d": 0.0}})
    with pytest.raises(InputError, match=r"2 instances have no score .*: b, c"):
        difference(scores([1, 0, 1]), scores([1, math.nan, math.nan]))
    with pytest.raises(InputError, match="no scores"):
        estimate({})


def test_the_mean_over_sets_is_simple_and_its_interval_that_of_independent_draws():
    small, large = sample(11, n=20), sample(12, n=200)
    parts = [estimate(small), estimate(large)]
    found = mean_over_sets(parts)
    assert found.mean == pytest.approx((parts[0].mean + parts[1].mean) / 2) and found.n == 220
    assert found.stderr == pytest.approx(math.hypot(parts[0].stderr, parts[1].stderr) / 2)
    rng = np.random.default_rng(13)
    halves = [np.array(list(data[0].values())) for data in (small, large)]
    means = sum(rng.choice(half, size=(20_000, len(half))).mean(axis=1) for half in halves) / 2
    low, high = np.quantile(means, [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.05 * (high - low))
    assert found.agree
