"""Joins evaluations that were run side by side: one folder takes over what others have found for the same question asked.

    memalpha evaluate --config all.yaml --join runs/part-1 runs/part-2

A part is the folder of an evaluation of some of the sets, systems and readers, on another core, GPU or machine. What always holds:
a result is taken over only if the joined evaluation would have got it in the same way (same options, set, system, reader, instances
and weights; a set's instances are batched alike, so the numbers are those of one process); a part that differs is refused whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.errors import RunFolderError
from memalpha.evaluation.folder import LISTS, EvaluationFolder, differences
from memalpha.evaluation.gathering import read_config
from memalpha.evaluation.results import ResultKey, SystemResult, read_results
from memalpha.runs import RunFolder

Made = tuple[Mapping[str, Any], Mapping[str, Mapping[str, Any]]]
"""What an evaluation was made with: its resolved options, and the digests of its inputs (``inputs.json``)."""

_WHERE_ASKED = ("sets", "readers", "group")
"""What a system's row says besides what it is: on what it is evaluated, and with whom it is shown."""


class Part(NamedTuple):
    """What a part has found: its folder, its results that did not fail, how many did, and its ``environment.json``."""

    folder: Path
    results: list[SystemResult]
    failed: int
    environment: dict[str, Any]


def read_part(path: str | Path, config: Mapping[str, Any], inputs: Mapping[str, Mapping[str, Any]]) -> Part:
    """Read a part's results and check that they may stand among those of another evaluation.

    Args:
        path: The part's folder.
        config: Resolved options of the other evaluation.
        inputs: Digests of what it is made of, as in ``EvaluationFolder``.

    Raises:
        RunFolderError: If an option, or a set, system or reader that both name, or its instances, weights or settings differ.
        InputError: If the part is no evaluation's folder, or a line is damaged.
    """
    run = RunFolder(path)
    if different := unlike((read_config(path), run.read_json("inputs.json")), (config, inputs)):
        raise RunFolderError(
            f"{str(path)!r} cannot be joined: " + "; ".join(different),
            expected="a part of the same evaluation: the same options, sets, systems, readers, instances, weights and settings",
            fix="evaluate that part again with this configuration, or take what differs out of one of the two",
        )
    results = list(read_results(path))
    found = [result for result in results if result.failed is None]
    return Part(Path(path), found, len(results) - len(found), run.read_json("environment.json"))


def take_over(folder: EvaluationFolder, part: Part, wanted: Collection[ResultKey]) -> set[ResultKey]:
    """Add those of a part's results that are wanted to a folder, and where they were made; return their keys."""
    new = [result for result in part.results if result.key in wanted]
    if new:
        folder.append(new)
        folder.add_environment(part.environment)
    return {result.key for result in new}


def unlike(part: Made, other: Made) -> list[str]:
    """Return what keeps results of one evaluation from standing among those of another, one text each.

    Each of the two is its resolved options and the digests of its inputs. Sets, systems and readers that only one
    of them names are no difference.
    """
    return differences(_common(part[0], other[0]), _common(other[0], part[0])) + _other_inputs(part[1], other[1])


def _other_inputs(its: Mapping[str, Any], inputs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is another under the same name; the base model and agents' own settings, as far as both say which they were."""
    if lacking := [kind for kind in ("sets", "adapters") if kind in inputs and not isinstance(its.get(kind), dict)]:
        return [f"its inputs.json does not say which {' and '.join(lacking)} it was made of"]
    return [
        f"{kind[:-1]} {name!r} is not the same"
        for kind, digests in inputs.items()
        for name, digest in digests.items()
        if its.get(kind, {}).get(name, digest) != digest
    ]


def _common(config: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with the sets, systems and readers alone that the other names too, without where systems are asked."""
    rows = {part: [row for row in config[part] if any(row["name"] == its["name"] for its in other[part])] for part in LISTS}
    rows["systems"] = [{key: value for key, value in row.items() if key not in _WHERE_ASKED} for row in rows["systems"]]
    return {**config, **rows}


__all__ = ["Made", "Part", "read_part", "take_over", "unlike"]
