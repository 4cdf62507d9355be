"""Words and sentences of the synthetic dialogues, read from ``pools.yaml``.

Train and test names and values are disjoint. No word is in two pools, inside another word, or in a
sentence. The last third (rounded up) of each list of sentences is held out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from typing import Any, Literal

import yaml

Split = Literal["train", "test"]
Templates = Literal["train", "held_out", "all"]


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of a person, with values of one split and sentences by use."""

    word: str
    multiple: bool
    values: tuple[str, ...]
    sections: tuple[str, ...]  # best first
    state: tuple[str, ...]
    change: tuple[str, ...]  # none if ``multiple``
    retract: tuple[str, ...]
    mention: tuple[str, ...]  # state no lasting fact
    share: tuple[str, ...] = ()  # make the value follow another person's


@dataclass(frozen=True, slots=True)
class Pools:
    """Names, attributes (values of this split), chit-chat, and questions (``value``, ``every``,
    ``time``).
    """

    names: tuple[str, ...]
    attributes: tuple[Attribute, ...]
    chat: tuple[str, ...]
    questions: Mapping[str, tuple[str, ...]]


def part_of(sentences: Sequence[str], templates: Templates) -> tuple[str, ...]:
    """Return the part of a list; the last third, rounded up, is held out."""
    kept = len(sentences) - (len(sentences) + 2) // 3
    return tuple(
        {"train": sentences[:kept], "held_out": sentences[kept:], "all": sentences}[templates]
    )


@cache
def _raw() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(
        (resources.files("memalpha.data") / "pools.yaml").read_text(encoding="utf-8")
    )
    return data


def hostile_lines(templates: Templates) -> list[str]:
    """Return the wordings of planted orders, forged calls and lies: those of demonstrations
    (``train``), the others, or all.
    """
    lists: dict[str, list[str]] = _raw()["hostile"]
    return lists["train"] + lists["held_out"] if templates == "all" else lists[templates]


@cache
def pools(split: Split, templates: Templates = "train") -> Pools:
    """Return the pools of one split with one part of the sentences."""
    data = _raw()
    pick = partial(part_of, templates=templates)

    def attribute(word: str, row: Mapping[str, Any]) -> Attribute:
        multiple = bool(row.get("multiple", False))
        said = {
            kind: pick(row.get(kind, ()))
            for kind in ("state", "change", "retract", "mention", "share")
        }
        said["retract"] += () if multiple else pick(data["retract_any"])
        return Attribute(word, multiple, tuple(row[split].split()), tuple(row["sections"]), **said)

    return Pools(
        names=tuple(data["names"][split].split()),
        attributes=tuple(attribute(word, row) for word, row in data["attributes"].items()),
        chat=pick(data["chat"]),
        questions={kind: tuple(wordings) for kind, wordings in data["questions"].items()},
    )
