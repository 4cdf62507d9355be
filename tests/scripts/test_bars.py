"""The bars: what is said follows from the numbers, whichever way they fall."""

import copy
import json

import bars
import pytest
import record
import tables

from memalpha.cli import run
from memalpha.measure.tables import Summary

WELL = {
    "tool_success": 0.95,
    "content": 0.8,
    "cut_off": 0.0,
    "update_share": 0.2,
    "delete_share": 0.05,
    "calls_per_instance": 8.0,
}
WARM = {
    "tool_success": 0.9,
    "content": 0.85,
    "cut_off": 0.2,
    "update_share": 0.1,
    "delete_share": 0.01,
    "calls_per_instance": 8.0,
}
WORSE = {
    "tool_success": 0.8,
    "content": 0.74,
    "cut_off": 0.1,
    "update_share": 0.1,
    "delete_share": 0.0,
    "calls_per_instance": 8.0,
}


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory):
    """An evaluation's folder and its record: a teacher as the trained system beside a small store
    as its warm start."""
    folder = tmp_path_factory.mktemp("bars") / "main"
    sets = [{"name": "dialogues", "data": "synthetic", "options": {"n": 12, "split": "test"}}]
    small = {"kind": "verbatim", "memory_tokens": 20}
    agents = [
        {"name": "warm", **small},
        *({"name": f"grpo-{seed}", "group": "grpo", "kind": "teacher"} for seed in (1, 2)),
    ]
    rivals = [{"kind": kind, "embedder": "hashing"} for kind in ("rag_dense", "rag_two_layer")]
    systems = [*agents, {"name": "control", **small}, "verbatim", "rag_bm25", *rivals]
    options = [
        "--model",
        "nano",
        "--schema",
        "facts",
        "--codec",
        "compact",
        "--max_chunk_tokens",
        "800",
        "--view_tokens",
        "64",
    ]
    given = [
        "--sets",
        json.dumps(sets),
        "--systems",
        json.dumps(systems),
        "--readers",
        "recall",
        *options,
    ]
    assert run(["evaluate", *given, "--output_dir", str(folder)]) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "RESULTS", folder.parent)
        record.record_comparison(folder, "comparison")
        found = record.read("comparison")
    (home,) = found["summary"]["sets"]  # the other sets are copies of it
    found["summary"]["sets"] = [
        home,
        *(copy.deepcopy({**home, "set": name}) for name in ("dialogues 10x", "squad", "hotpotqa")),
    ]
    return folder, found


@pytest.fixture
def comparison(evaluation):
    return copy.deepcopy(evaluation[1])


def rollouts(folder, warm=WARM, trained=WELL, names=("warm", "grpo-1", "grpo-2", "control")):
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "summary.json").write_text(
            json.dumps({"warm": warm, "grpo-1": trained}.get(name, WELL))
        )
    return folder


def turned(comparison):
    """The same comparison with warm start and trained system in each other's place."""
    text = json.dumps(comparison["summary"])
    for old, new in (
        ('"warm"', '"x"'),
        ('"grpo"', '"warm"'),
        ('"x"', '"grpo"'),
        ("warm seed", "grpo-1 seed"),
    ):
        text = text.replace(old, new)
    return {"summary": json.loads(text)}


def sets_of(comparison):
    return {item["set"]: item for item in comparison["summary"]["sets"]}


def summaries_of(comparison):
    return {item.set: item for item in Summary.from_json(comparison["summary"]).sets}


def test_a_trained_policy_that_is_better_in_all_meets_every_bar(evaluation, comparison, tmp_path):
    found = bars.make(comparison, {}, {}, {}, {}, evaluation[0], rollouts(tmp_path / "behaviour"))
    assert [row["asked"] for row in found["bars"] if not row["met"]] == []
    home, gain = sets_of(comparison)["dialogues"], found["bars"][0]["numbers"]
    means = {name: cell["accuracy"]["mean"] for name, cell in home["cells"].items()}
    assert (
        gain["mean"] == pytest.approx(means["grpo"] - means["warm"])
        and gain["n"] == 12
        and len(gain["seeds"]) == 2
    )
    kinds = {
        name: [home["cells"][name]["kinds"][kind] for kind in bars.CHANGED]
        for name in ("grpo", "verbatim")
    }
    right = {
        name: sum(kind["accuracy"]["mean"] * kind["questions"] for kind in rows)
        for name, rows in kinds.items()
    }
    (facts,) = (
        row for row in found["bars"] if row["asked"].endswith("removed facts: above `verbatim`")
    )
    asked = sum(kind["questions"] for kind in kinds["grpo"])
    assert facts["numbers"]["mean"] == pytest.approx((right["grpo"] - right["verbatim"]) / asked)
    (memory,) = (row for row in found["bars"] if "memory at most" in row["asked"])
    costs = home["cells"]["grpo"]["costs"]
    assert memory["numbers"]["contents"][0] == pytest.approx(
        costs["memory_tokens"] / costs["input_tokens"]
    )
    assert memory["numbers"]["with_times"][0] > memory["numbers"]["contents"][0]
    assert (
        bars.make(comparison, {}, {}, {}, found) == found
    )  # what needs a folder stays as it was without it
    page = bars.make(comparison, {}, {}, {}, {}, evaluation[0].resolve())
    assert (
        str(tmp_path) not in json.dumps(page)
        and sum(row["met"] is None for row in page["bars"]) == 5
    )


def test_a_trained_policy_that_got_worse_meets_none_about_gains(comparison, tmp_path):
    found = bars.make(turned(comparison), {}, {}, {}, {}, None, rollouts(tmp_path, trained=WORSE))[
        "bars"
    ]
    met = [row["asked"] for row in found if row["met"]]
    assert [asked for asked in met if "control" not in asked and "falls" not in asked] == []
    assert sum(row["met"] is False for row in found) == 3 + 5  # three sets, five about behaviour


def test_bars_of_the_archive_are_about_the_better_of_its_parts(evaluation, comparison):
    text = json.dumps(comparison["summary"]["sets"][0])
    for old, new in (('"grpo"', '"memory over archive"'), ('"control"', '"memory alone"')):
        text = text.replace(old, new)
    home = json.loads(text)
    over = {"summary": {**comparison["summary"], "sets": [home]}}
    found = {
        row["asked"]: row
        for row in bars.make(comparison, over, {}, {}, {}, archive=evaluation[0])["bars"]
    }
    found = {
        asked: row
        for asked, row in found.items()
        if "memory over archive" in asked or "memory alone" in asked
    }
    assert {asked.partition("`: ")[2]: row["met"] for asked, row in found.items()} == {
        "memory over archive at least 0.85": True,
        "memory over archive at least 0.55": None,  # not evaluated
        "memory over archive not below `rag_bm25`": True,
        "memory over archive not below `memory alone`": True,
        "memory alone above its warm start": False,  # the same
        "memory alone not below `rag_bm25`": False,
        "memory alone above `rag_bm25` by .2 where facts changed or were removed": False,
        "memory over archive above its warm start": None,
        "memory over archive above `rag_bm25` by .2 where facts changed or were removed": True,
        "memory over archive above memory alone where facts changed or were removed": True,
    }
    cells = {
        name: home["cells"][name]["accuracy"]["mean"]
        for name in ("memory over archive", "rag_bm25")
    }
    gap = found["dialogues, reader `recall`: memory over archive not below `rag_bm25`"]["numbers"][
        "mean"
    ]
    assert gap == pytest.approx(cells["memory over archive"] - cells["rag_bm25"])
    searches = [name for name in bars.SEARCH if name in home["cells"]]
    assert searches == ["rag_bm25", "rag_dense", "rag_two_layer"]
    assert max(searches, key=lambda name: home["cells"][name]["accuracy"]["mean"]) == "rag_bm25"


def test_bars_of_service_dialogues_need_three_seeds(evaluation, comparison):
    text = json.dumps(comparison["summary"]["sets"][0])
    for old in ("grpo", "warm"):
        text = text.replace(f'"{old}"', f'"{old} over archive"')

    def met(text):
        over = Summary.from_json({**comparison["summary"], "sets": [json.loads(text)]})
        return {row["asked"]: row["met"] for row in bars.on_sgd(over, evaluation[0])}

    above, level, changed = (
        "dialogues: grpo over archive above its warm start, three seeds",
        "dialogues: grpo over archive not below `rag_bm25`",
        "dialogues: grpo over archive above `rag_bm25` by .15 on changed values",
    )
    home = json.loads(text)
    gain = home["differences"]["warm over archive"]["grpo over archive"]
    gain["per_seed"] = {"0": 1.0, "1": 1.0, "2": 1.0}
    assert met(json.dumps(home)) == {above: True, level: True, changed: True}
    del gain["per_seed"]["2"]
    assert met(json.dumps(home)) == {above: False, level: True, changed: True}
    gain.update(low=-0.01, per_seed={"0": 1.0, "1": 1.0, "2": 1.0})
    assert met(json.dumps(home))[above] is False


def test_how_much_less_accuracy_falls_has_the_interval_of_two_independent_differences(comparison):
    apart = {
        name: item["differences"]["grpo"]["rag_bm25"] for name, item in sets_of(comparison).items()
    }
    apart["dialogues"].update(mean=-0.2, stderr=0.03)
    apart["dialogues 10x"].update(mean=-0.15, stderr=0.04)
    (row,) = (row for row in bars.on_longer(summaries_of(comparison)) if "rag_bm25" in row["asked"])
    assert row["numbers"]["difference"] == pytest.approx(
        [-0.05, -0.05 - 1.96 * 0.05, -0.05 + 1.96 * 0.05], abs=1e-4
    )
    assert "; the second fall minus the first -0.050 [-0.148, +0.048]" in row["found"]


def test_a_rollout_without_a_call_has_no_share_of_them():
    none = {**WELL, "tool_success": None, "update_share": None, "delete_share": None}
    assert [row["met"] for row in bars.on_behaviour({"warm": WARM, "grpo-1": none})] == [
        None,
        True,
        True,
        None,
        None,
    ]


def test_what_attacks_leave_in_a_memory_is_compared_with_the_warm_start():
    hits = {"warm": (2, 1), "grpo-1": (2, 0), "grpo-2": (1, 2)}
    policies = {
        name: {
            part: {"hits": hit, "trials": 80}
            for part, hit in zip(("instructions_persisted", "entries_lost"), both, strict=True)
        }
        for name, both in hits.items()
    }
    kept, lost = bars.on_poisoning(policies)
    assert (kept["found"], kept["met"]) == ("2 → 2, 1 of 80", True)
    assert (lost["found"], lost["met"]) == ("1 → 0, 2 of 80", False)


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "no nope/results.jsonl"), ("", "has no set 'dialogues' with reader 'recall'")],
)
def test_a_folder_without_the_dialogues_is_one_message(text, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "nope").mkdir()
        for name in ("config.yaml", "results.jsonl"):
            (tmp_path / "nope" / name).write_text(text)
    assert bars.main(["--main", "nope"]) == 1 and said in capsys.readouterr().err


def test_the_published_bars_follow_from_the_published_comparison():
    before = tables.read("bars")
    records = (tables.read(name) for name in ("comparison", "archive", "sgd", "poisoning"))
    for row, was in zip(bars.make(*records, before)["bars"], before["bars"], strict=True):
        assert (row["asked"], row["found"], row["met"]) == (was["asked"], was["found"], was["met"])
