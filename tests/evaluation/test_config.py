"""A configuration is read whole, or refused with one message that names the value."""

from pathlib import Path

import pytest
import yaml

from memalpha.errors import InputError
from memalpha.evaluation.config import parse_evaluate_arguments
from memalpha.evaluation.specs import ReaderKind, ReaderSpec, SetSpec, read_set

ROOT = Path(__file__).parents[2]
SMALL = {
    "sets": ["runs/data/some-set", {"name": "toy", "data": "toy", "options": {"n": 3}, "instances": 2, "readers": "recall"}],
    "systems": ["verbatim", {"name": "a", "kind": "agent", "group": "g", "adapter": "x", "sets": ["toy"]}],
    "readers": ["recall", {"name": "short", "kind": "base", "max_new_tokens": 4}],
    "seeds": [1, 2],
    "schema": "facts",
}


def parse(tmp_path, changes, *more):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **changes}))
    return parse_evaluate_arguments(["--config", str(path), *more])


def test_lists_hold_names_or_mappings_and_flags_go_before_the_file(tmp_path):
    found = parse(tmp_path, {}, "--reader_tokens", "77", "--seeds", "5")
    assert found.sets == (SetSpec("runs/data/some-set", "some-set"), SetSpec("toy", "toy", {"n": 3}, 2, readers=("recall",)))
    verbatim, agent = found.systems
    assert (verbatim.name, verbatim.group, verbatim.options) == ("verbatim", "verbatim", {"memory_tokens": 0})
    assert (agent.name, agent.group, agent.sets) == ("a", "g", ("toy",))
    assert agent.options == {"adapter": "x", "settings": "shared"}
    assert found.readers == (ReaderSpec(ReaderKind.RECALL, "recall"), ReaderSpec(ReaderKind.BASE, "short", 4))
    assert (found.arguments.reader_tokens, found.arguments.seeds, found.agent.schema) == (77, [5], "facts")


def test_lists_can_be_given_at_the_command_line(tmp_path):
    found = parse(tmp_path, {}, "--systems", "[gold, {kind: rag_bm25, piece_tokens: 3}]", "--sets", "toy", "--readers", "base")
    assert [(system.name, system.kind) for system in found.systems] == [("gold", "gold"), ("rag_bm25", "rag_bm25")]
    assert found.systems[1].options["piece_tokens"] == 3
    assert [one.data for one in found.sets] == ["toy"] and found.readers[0].kind is ReaderKind.BASE


def test_the_resolved_configuration_reads_back_as_itself(tmp_path):
    found = parse(tmp_path, {})
    resolved = found.to_json()
    path = tmp_path / "again.yaml"
    path.write_text(yaml.safe_dump(resolved))
    assert yaml.safe_load(path.read_text()) == resolved
    again = parse_evaluate_arguments(["--config", str(path)])
    assert again.to_json() == resolved
    assert (again.sets, again.systems, again.readers) == (found.sets, found.systems, found.readers)


WRONG = {
    "no systems": ({"systems": None}, "systems is None"),
    "systems are no list": ({"systems": 3}, "systems is 3"),
    "unknown kind": ({"systems": ["rag"]}, "unknown kind of system 'rag'"),
    "a system without a kind": ({"systems": [{"name": "a"}]}, "a system is {'name': 'a'}"),
    "unknown option": ({"systems": [{"kind": "gold", "adapter": "x"}]}, "system 'gold' has no option 'adapter'"),
    "unknown options, one no text": ({"systems": [{"kind": "gold", 3: 1, "y": 2}]}, "system 'gold' has no option 3, 'y'"),
    "option of the wrong type": ({"systems": [{"kind": "verbatim", "memory_tokens": []}]}, "'memory_tokens' of system"),
    "name twice": ({"systems": ["gold", "gold"]}, "two systems are called 'gold'"),
    "unknown set": ({"systems": [{"kind": "gold", "sets": ["squad"]}]}, "sets of 'gold' name 'squad'"),
    "unknown reader of a set": ({"sets": [{"data": "toy", "readers": ["big"]}]}, "readers of 'toy' name 'big'"),
    "unknown reader": ({"readers": ["gpt"]}, "reader 'gpt'"),
    "unknown key of a set": ({"sets": [{"data": "toy", "split": "test"}]}, "unknown key 'split'"),
    "set without data": ({"sets": [{"name": "toy"}]}, "a set is {'name': 'toy'}"),
    "negative": ({"sets": [{"data": "toy", "instances": -1}]}, "instances of set 'toy' is -1"),
    "negative skip": ({"sets": [{"data": "toy", "skip": -1}]}, "skip of set 'toy' is -1"),
    "set option of the wrong type": ({"sets": [{"data": "toy", "instances": "many"}]}, "instances of a set is 'many'"),
    "true is no number": ({"sets": [{"data": "toy", "instances": True}]}, "instances of a set is True"),
    "a number is not true": ({"sets": [{"data": "toy", "in_mean": 1}]}, "in_mean of a set is 1"),
    "names that are no names": ({"sets": [{"data": "toy", "readers": [1]}]}, "a list of names"),
    "unknown flat option": ({"reader_token": 3}, "reader_token"),
    "no budget": ({"reader_tokens": 0}, "reader_tokens is 0"),
    "cold": ({"temperature": -1.0}, "temperature is -1"),
    "no temperature": ({"temperature": float("nan")}, "temperature is nan"),
    "no end of temperature": ({"temperature": float("inf")}, "temperature is inf"),
    "a seed of text": ({"seeds": ["a"]}, r"seeds is \['a'\]"),
    "half a seed": ({"seeds": [1, 1.5]}, r"seeds is \[1, 1.5\]"),
    "true is no seed": ({"seeds": [True]}, r"seeds is \[True\]"),
    "seed twice": ({"seeds": [1, 1]}, r"seeds is \[1, 1\]"),
    "endpoint without a server": ({"readers": ["endpoint"]}, "endpoint_url or endpoint_model is empty"),
    "no tokens to answer in": ({"readers": [{"kind": "base", "max_new_tokens": 0}]}, "max_new_tokens 0"),
}


def test_a_set_is_named_after_its_folder(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert [read_set(data).name for data in (".", "..", "a/b", "a/b/")] == ["here", "..", "b", "b"]


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_one_clear_message(name, tmp_path):
    changes, said = WRONG[name]
    with pytest.raises(InputError, match=said):
        parse(tmp_path, {"sets": ["toy"], "systems": ["verbatim"], **changes})


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "evaluate").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_of_the_repository_is_read(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    found = parse_evaluate_arguments(["--config", str(path)])
    assert found.sets and found.systems and found.readers
