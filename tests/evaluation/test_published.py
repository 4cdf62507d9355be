"""A published comparison: what is read is what was written, and a set evaluated again takes its place, whole."""

import json
from dataclasses import replace

import pytest
import yaml
from examples import MARTA, recalled, result, write_results
from test_tables import configure, some_results

from memalpha.data.schema import write_instances
from memalpha.errors import InputError
from memalpha.evaluation.published import Published
from memalpha.evaluation.results import read_results
from memalpha.evaluation.statistics import mean_over_sets
from memalpha.files import write_object

DIGEST = {"instances": 3, "chunks": 3, "questions": 7, "sha256": "0"}


@pytest.fixture
def evaluated(tmp_path):
    """Write an evaluation of sets by name: ``evaluated("first", {"small": results}, option=value)``."""

    def make(name, sets, adapters=None, **options):
        folder = configure(tmp_path / name, sets=tuple(sets), **{"model": "nano", **options})
        write_results(folder, (replace(row, set=of) for of, rows in sets.items() for row in rows))
        environment = {"command": ["memalpha", "evaluate", name], "started": "2026-01-01T00:00:00", "code": name}
        (folder / "environment.json").write_text(json.dumps(environment))
        inputs = {"sets": dict.fromkeys(sets, DIGEST), "adapters": adapters or {}}
        (folder / "inputs.json").write_text(json.dumps(inputs))
        return folder

    return make


def of_agent(*scores):
    """Results of all systems of which the agent's are these."""
    return [row for row in some_results() if row.system != "agent"] + [
        result(name, (score,), system="agent") for name, score in zip("abc", scores, strict=True)
    ]


def test_what_is_read_is_what_was_written(evaluated, tmp_path):
    write_instances(tmp_path / "marta.jsonl", [replace(MARTA, id=name) for name in "abc"])  # with a scorecard
    data = str(tmp_path / "marta.jsonl")
    rows = [result(name, questions=[recalled(question, "Marta city Oslo") for question in MARTA.questions]) for name in "abc"]
    folder = evaluated("first", {"small": of_agent(0, 0.5, 1), "large": of_agent(1, 1, 1)})
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["sets"].append({**config["sets"][0], "name": "scored", "data": data})
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    write_results(folder, [*read_results(folder), *(replace(row, set="scored") for row in rows)])
    first = Published.from_folder(folder)
    assert first.summary.sets[2].cells["agent"].scorecard["stale answers"].mean == 0.25  # of four, Oslo for Marta
    write_object(tmp_path / "published.json", first.to_json())
    again = Published.read(tmp_path / "published.json")
    assert again.to_json()["summary"]["sets"][0]["cells"]["agent"]["accuracy"]["mean"] == 0.5
    write_object(tmp_path / "again.json", again.to_json())
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "published.json").read_bytes()
    assert again.made_by == (0, 0, 0) and again.parts[0].environment["code"] == "first"


def test_a_set_evaluated_again_takes_its_place_and_the_means_are_taken_anew(evaluated):
    first = Published.from_folder(evaluated("first", {"small": of_agent(0, 0, 0), "large": of_agent(1, 0, 1)}))
    newer = Published.from_folder(evaluated("newer", {"small": of_agent(1, 0.5, 1), "third": of_agent(0, 0, 1)}))
    both = first.with_newer(newer)
    assert [item.set for item in both.summary.sets] == ["small", "large", "third"] and both.made_by == (1, 0, 1)
    assert both.summary.sets[0] == newer.summary.sets[0] and both.summary.sets[1] == first.summary.sets[1]
    assert [row["name"] for row in both.parts[0].config["sets"]] == list(both.parts[0].inputs["sets"]) == ["large"]
    cells = [item.cells["agent"].accuracy for item in both.summary.sets]
    assert both.summary.over_sets["recall"]["agent"] == mean_over_sets(cells)
    assert both.summary.over_sets["recall"]["agent"].mean == pytest.approx((2.5 / 3 + 2 / 3 + 1 / 3) / 3)
    gains = [item.differences["warm"]["agent"] for item in both.summary.sets]
    assert both.summary.differences["recall"]["warm"]["agent"] == mean_over_sets(gains)


def test_systems_in_another_order_are_still_paired(evaluated):
    first = Published.from_folder(evaluated("first", {"large": of_agent(1, 0, 1)}))
    folder = evaluated("newer", {"small": of_agent(1, 0.5, 1)})
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["systems"].reverse()
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    newer = Published.from_folder(folder)
    both = first.with_newer(newer).summary.differences["recall"]
    gains = first.summary.sets[0].differences["warm"]["agent"].mean, -newer.summary.sets[0].differences["agent"]["warm"].mean
    assert both["warm"]["agent"].mean == pytest.approx(sum(gains) / 2) and "warm" not in both.get("agent", {})


def test_members_of_a_group_in_another_order_are_refused(evaluated):
    groups, rows = {"a": "grpo", "b": "grpo"}, {name: [result("x", (1.0,), system=name)] for name in "ab"}
    first = Published.from_folder(evaluated("first", {"large": rows["a"] + rows["b"]}, systems="ab", groups=groups))
    newer = Published.from_folder(evaluated("newer", {"small": rows["b"]}, systems="b", groups=groups))
    with pytest.raises(InputError, match="member 0 of group 'grpo' is 'b seed 0' on 'small' and 'a seed 0' elsewhere"):
        first.with_newer(newer)


def test_where_nothing_of_before_is_left_it_is_the_newer_one(evaluated):
    first = Published.from_folder(evaluated("first", {"small": of_agent(0, 0, 0)}, model="other"))
    newer = Published.from_folder(evaluated("newer", {"small": of_agent(1, 1, 1)}))
    assert first.with_newer(newer) is newer


def test_a_set_that_the_newer_one_has_not_evaluated_yet_stays(evaluated):
    first = Published.from_folder(evaluated("first", {"small": of_agent(0, 1, 0), "large": of_agent(0, 0, 1)}))
    newer = Published.from_folder(evaluated("newer", {"large": of_agent(1, 1, 1), "small": [], "third": []}))
    both = first.with_newer(newer)
    assert [(item.set, bool(item.cells)) for item in both.summary.sets] == [("small", True), ("large", True), ("third", False)]
    assert both.made_by == (0, 1, 1) and both.summary.sets[0] == first.summary.sets[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "other"}, "model was 'nano' and is 'other'"),
        ({"adapters": {"runs/a": "1"}}, "adapter 'runs/a' is not the same"),
    ],
)
def test_what_was_made_otherwise_cannot_stand_beside_it(evaluated, options, said):
    first = Published.from_folder(evaluated("first", {"large": of_agent(0, 0, 0)}, adapters={"runs/a": "0"}))
    newer = Published.from_folder(evaluated("newer", {"small": of_agent(0, 0, 0)}, **options))
    with pytest.raises(InputError, match=said):
        first.with_newer(newer)


def test_a_system_that_is_something_else_under_the_same_name_is_refused(evaluated):
    first = Published.from_folder(evaluated("first", {"large": of_agent(0, 0, 0)}))
    folder = evaluated("newer", {"small": of_agent(0, 0, 0)})
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["systems"][2]["kind"] = "verbatim"
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(InputError, match="system 'agent' was"):
        first.with_newer(Published.from_folder(folder))


@pytest.mark.parametrize("text", ["{}", '{"summary": {"sets": [{}], "bootstrap": {}, "kinds_of": {}}}'])
def test_another_file_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match=r"x\.json is no published comparison"):
        Published.read(tmp_path / "x.json")
