"""A configuration is read whole, or refused with one message that names the value."""

from pathlib import Path

import pytest
import yaml

from memalpha.errors import InputError
from memalpha.measure.options import ReaderSpec, SetSpec, parse_evaluate_options

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
    assert agent.options == {"adapter": "x", "settings": "shared", "trust_tools": False, **same}
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
    ({"systems": ["rag"]}, "unknown kind of system 'rag'"),
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
