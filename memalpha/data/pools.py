"""Words and sentences of the generated dialogues, read from ``pools.yaml`` and ``natural*.yaml``.

Train and test names and values are disjoint. No word is in two pools, inside another word, or in a
sentence. The last third (rounded up) of each list of sentences is held out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Literal

import yaml

from memalpha.types import JsonMapping, JsonObject

Split = Literal["train", "test"]
Templates = Literal["train", "held_out", "all"]
_USES = ("state", "change", "retract", "mention", "share", "ask")


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of a person, with values of one split and sentences by use."""

    word: str
    values: tuple[str, ...]
    sections: tuple[str, ...]  # best first
    state: tuple[str, ...]
    change: tuple[str, ...]  # none if ``multiple``
    retract: tuple[str, ...]
    mention: tuple[str, ...]  # state no lasting fact
    share: tuple[str, ...]  # make the value follow another person's
    ask: tuple[str, ...]
    multiple: bool = False  # has several values at a time
    dated: bool = False  # its values are days
    others: bool = False  # people tell it of others, too
    things: tuple[str, ...] = ("",)  # what tells two of them apart: which dentist, which pet
    note: str = ""


@dataclass(frozen=True, slots=True)
class Pools:
    """The names, values and sentences of one split and one part, with relations and pronouns."""

    names: Mapping[str, str]
    relations: Mapping[str, str]
    attributes: Mapping[str, Attribute]
    lines: Mapping[str, tuple[str, ...]]  # sentences of no attribute, by use


def part_of(sentences: Sequence[str], templates: Templates) -> tuple[str, ...]:
    """Return the part of a list; the last third, rounded up, is held out."""
    end = len(sentences) - (len(sentences) + 2) // 3
    parts = {"train": sentences[:end], "held_out": sentences[end:], "all": sentences}
    return tuple(parts[templates])


@cache
def read_words(name: str) -> JsonObject:
    """Return a YAML file of this package."""
    text = (resources.files("memalpha.data") / f"{name}.yaml").read_text(encoding="utf-8")
    data: JsonObject = yaml.safe_load(text)
    return data


def hostile_lines(templates: Templates) -> list[str]:
    """Return the wordings of planted orders, forged calls and lies: those of demonstrations
    (``train``), the others, or all.
    """
    lists: dict[str, list[str]] = read_words("pools")["hostile"]
    return lists["train"] + lists["held_out"] if templates == "all" else lists[templates]


def natural_words() -> JsonObject:
    """Return natural.yaml with the traits of the files beside it."""
    files = ("natural", "natural_practical", "natural_personal")
    traits = {word: row for name in files for word, row in read_words(name)["traits"].items()}
    return {**read_words("natural"), "traits": traits}


def _attribute(
    word: str, row: JsonMapping, values: Sequence[str], split: Split, templates: Templates
) -> Attribute:
    uses: JsonObject = {use: part_of(row.get(use, ()), templates) for use in _USES}
    more = {key: row[key] for key in ("multiple", "dated", "others", "note") if key in row}
    things = tuple(row["things"][split].split(", ")) if "things" in row else ("",)
    return Attribute(word, tuple(values), tuple(row["sections"]), **uses, **more, things=things)


@cache
def pools(split: Split, templates: Templates = "train") -> Pools:
    """Return the pools of the synthetic dialogues."""
    data = read_words("pools")
    attributes = {}
    for word, row in data["attributes"].items():
        attribute = _attribute(word, row, row[split].split(), split, templates)
        again = () if attribute.multiple else part_of(data["retract_any"], templates)
        attributes[word] = replace(attribute, retract=attribute.retract + again)
    lines = {**data["questions"], "chat": part_of(data["chat"], templates)}
    return Pools(dict.fromkeys(data["names"][split].split(), ""), {}, attributes, lines)


@cache
def natural_pools(split: Split, templates: Templates) -> Pools:
    """Return the pools of the natural conversations."""
    data = natural_words()
    attributes = {
        word: _attribute(word, row, row.get(split, "").split(", "), split, templates)
        for word, row in data["traits"].items()
    }
    names, relations = (
        {word: he for he, row in data[kind][split].items() for word in row.split(", ")}
        for kind in ("names", "relations")
    )
    lines = {use: part_of(sentences, templates) for use, sentences in data["frames"].items()}
    return Pools(names, relations, attributes, lines)
