"""A comparison as it is published: one JSON file, to which sets may be added, or evaluated again, one at a time.

    {"parts": [{"config": ..., "environment": ..., ...}, ...],    each evaluation that has made some of the sets
     "summary": {"sets": [{"part": 0, "set": ..., ...}, ...], ...}}         as in ``summary.json``; ``part`` says which

A set with a reader is of one evaluation, whole, so that all systems on it are compared on the same instances; a set evaluated again
takes the place of what was there. The parts were made with the same options, and with the same system, reader and weights under one
name. The means over sets are taken anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from memalpha.errors import InputError
from memalpha.evaluation.folder import unlike
from memalpha.evaluation.statistics import Bootstrap
from memalpha.evaluation.summary import SetSummary, Summary, over_sets, reference_group, summarise_evaluation
from memalpha.evaluation.tables import judge_report
from memalpha.files import read_object
from memalpha.runs import RunFolder


class Origin(NamedTuple):
    """An evaluation: its options, where and when it was made, of what (``inputs.json``), and what its judge let pass."""

    config: dict[str, Any]
    environment: dict[str, Any]
    inputs: dict[str, Any]
    false_accept: dict[str, Any] | None = None

    def of_sets(self, kept: set[str]) -> Origin:
        """Return the part without the sets that are not named, and without the instances they had."""
        sets = {name: digest for name, digest in self.inputs.get("sets", {}).items() if name in kept}
        rows = [row for row in self.config["sets"] if row["name"] in kept]
        return self._replace(config={**self.config, "sets": rows}, inputs={**self.inputs, "sets": sets})


@dataclass(frozen=True, slots=True)
class Published:
    """A comparison of one or more evaluations.

    Attributes:
        parts: The evaluations, oldest first.
        summary: All sets, and the means over them.
        made_by: For each set of the summary, the index of its evaluation.
    """

    parts: tuple[Origin, ...]
    summary: Summary
    made_by: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-ready data; what is not known is NaN."""
        summary = self.summary.to_json()
        sets = [{"part": part, **item} for part, item in zip(self.made_by, summary["sets"], strict=True)]
        reference = reference_group(self.summary)
        return {"parts": [part._asdict() for part in self.parts], "summary": {**summary, "sets": sets, "reference": reference}}

    @classmethod
    def from_folder(cls, folder: str | Path) -> Published:
        """Sum up an evaluation's folder. InputError as ``summarise_evaluation``."""
        run, summary = RunFolder(folder), summarise_evaluation(folder)
        origin = run.origin()
        part = Origin(origin["config"], origin["environment"], run.read_json("inputs.json"), judge_report(run.path))
        return cls((part,), summary, (0,) * len(summary.sets))

    @classmethod
    def read(cls, path: str | Path) -> Published:
        """Read a published file; InputError if it is none."""
        data = read_object(Path(path))
        try:
            parts = tuple(Origin(**part) for part in data["parts"])
            made_by = tuple(row["part"] for row in data["summary"]["sets"])
            sets = TypeAdapter(list[SetSummary]).validate_python(data["summary"]["sets"])
            kinds, bootstrap = data["summary"]["kinds_of"], Bootstrap(**data["summary"]["bootstrap"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path} is no published comparison: {error!r}", expected="what scripts/evaluate_all.py wrote"
            ) from error
        return cls(parts, over_sets(sets, kinds, bootstrap), made_by)

    def with_newer(self, newer: Published) -> Published:
        """Return the comparison with the sets of a newer one in the place of its own.

        Sets and groups stand in the order of this one, what is new after them; if nothing of this one is left, it is the newer
        one. What the newer has no result for yet stays as it was.

        Raises:
            InputError: If the two were made with other options, or with something else under the same name.
        """
        own, its = (list(zip(found.made_by, found.summary.sets, strict=True)) for found in (self, newer))
        had = [_name(item) for _, item in own if item.cells]
        fresh = [(part, item) for part, item in its if item.cells or _name(item) not in had]
        kept = [(part, item) for part, item in own if _name(item) not in [_name(item) for _, item in fresh]]
        if not kept:
            return newer
        used = sorted({part for part, _ in kept})
        parts = [self.parts[index].of_sets({item.set for part, item in kept if part == index}) for index in used]
        different = [
            text for part in parts for new in newer.parts for text in unlike(part.config, part.inputs, new.config, new.inputs)
        ]
        if different:
            raise InputError(
                f"a set evaluated anew cannot stand beside those of before: {'; '.join(different)}",
                expected="the same options, and the same systems, readers and weights under the same names",
                fix="evaluate all sets again, or this one with the options of before",
            )
        rows = [(used.index(part), item) for part, item in kept] + [(len(parts) + part, item) for part, item in fresh]
        order = [_name(item) for _, item in (*own, *fresh)]
        rows.sort(key=lambda row: order.index(_name(row[1])))
        kinds = {**self.summary.kinds_of, **newer.summary.kinds_of}
        summary = over_sets([item for _, item in rows], kinds, newer.summary.bootstrap)
        return Published((*parts, *newer.parts), summary, tuple(part for part, _ in rows))


def _name(item: SetSummary) -> tuple[str, str]:
    return item.set, item.reader
