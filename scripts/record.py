"""Keeps the numbers of run folders in docs/results/*.json; then ``python scripts/tables.py`` brings
the pages up to date.

python scripts/record.py run runs/mixed-1 mixed-1             a training run:
docs/results/mixed-1.json, and its curves python scripts/record.py comparison runs/main [NAME]
an evaluation: its sets replace those in comparison.json (NAME.json) python scripts/record.py
ablations runs/ablations             the runs of scripts/ablations.py
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from memalpha.errors import InputError, MemAlphaError
from memalpha.measure.evaluation_folder import LISTS, MAY_CHANGE
from memalpha.measure.tables import Summary, over_sets
from memalpha.record.folder import RunFolder

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
Json = dict[str, Any]


def read(name: str) -> Json:
    """A record; empty if it is not there."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def write(name: str, data: Json) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(
        json.dumps(data, indent=1, default=str) + "\n", encoding="utf-8"
    )


def record_run(run: Path, name: str) -> None:
    folder = RunFolder(run)
    summary = folder.read_json("summary.json")
    if "delta" not in summary:
        raise InputError(
            f"{run} has no held-out instances",
            expected="a run with eval_data, evaluated before and after",
        )
    write(name, {"summary": summary, **folder.origin(), "curve": folder.metrics()})


def record_comparison(folder: Path, name: str) -> None:
    run = RunFolder(folder)
    summary, origin = run.read_json("summary.json"), run.origin()
    part = {
        **origin,
        "inputs": run.read_json("inputs.json"),
        "false_accept": summary.pop("false_accept", None),
    }
    found = {
        "parts": [part],
        "summary": {**summary, "sets": [{"part": 0, **item} for item in summary["sets"]]},
    }
    write(name, merged(read(name), found) if read(name) else found)


def merged(old: Json, new: Json) -> Json:
    """A comparison with the sets of a newer one in the place of its own; the means over sets are
    taken anew."""
    known, fresh = (
        {(item["set"], item["reader"]): item for item in of["summary"]["sets"]} for of in (old, new)
    )
    fresh = {key: item for key, item in fresh.items() if item["cells"] or key not in known}
    kept = {key: item for key, item in known.items() if key not in fresh}
    if not kept:
        return new
    used = sorted({item["part"] for item in kept.values()})
    parts = [old["parts"][part] for part in used]
    newer, *others = (
        {**part["config"], **part["inputs"]["adapters"]} for part in (new["parts"][0], *parts)
    )
    for other in others:
        check_alike(
            other, newer, {*MAY_CHANGE, *LISTS}, "the options and weights of the sets that stay"
        )
    sets = [
        {**fresh[key], "part": len(parts)}
        if key in fresh
        else {**kept[key], "part": used.index(kept[key]["part"])}
        for key in dict.fromkeys([*known, *fresh])
    ]
    kinds = {**old["summary"]["kinds_of"], **new["summary"]["kinds_of"]}
    return {
        "parts": [*parts, *new["parts"]],
        "summary": {**old["summary"], "sets": sets, **means(sets, kinds), "kinds_of": kinds},
    }


def check_alike(before: Json, after: Json, free: set[str], expected: str) -> None:
    """See that what both name is the same in both, but for what is free."""
    for name in sorted(before.keys() & after.keys() - free):
        if before[name] != after[name]:
            raise InputError(
                f"{name} was {before[name]!r} and is {after[name]!r}", expected=expected
            )


def means(sets: Sequence[Json], kinds: Mapping[str, str]) -> Json:
    empty: Json = {"over_sets": {}, "differences": {}, "kinds_of": kinds}
    found = over_sets(Summary.from_json({**empty, "sets": sets}).sets, kinds).to_json()
    return {name: found[name] for name in ("over_sets", "differences")}


WATCHED = (
    "accuracy",
    "tool_success",
    "content",
    "memory_tokens",
    "entries",
    "update_share",
    "delete_share",
    "cut_off",
)
FREE = {
    "output_dir",
    "rows_per_forward",
    "generation_rows",
    "overwrite",
    "resume",
    "reward_weights",
    "logging_dir",
}


def record_ablations(folder: Path) -> None:
    """Every finished run of a folder, against its own start and against ``default``, from which its
    change alone sets it apart."""
    changes = {
        "default": {},
        **yaml.safe_load(
            (ROOT / "configs" / "train" / "ablations.yaml").read_text(encoding="utf-8")
        ),
    }
    runs = []
    for path in sorted(folder.glob("*/seed-*/summary.json")):
        run, name = RunFolder(path.parent), path.parent.parent.name
        reference = folder / "default" / run.path.name
        compared = None
        if (reference / "summary.json").is_file():
            other = f"what {reference} has, but for {', '.join(changes[name]) or 'nothing'}"
            check_alike(RunFolder(reference).config, run.config, FREE | changes[name].keys(), other)
            compared = difference(RunFolder(reference), "after", run, "after")
        summary, at = run.read_json("summary.json"), run.origin()["environment"]
        runs.append(
            {
                "name": name,
                "change": changes[name],
                "command": " ".join(at["command"]),
                **{key: summary[key] for key in ("seed", "steps", "seconds")},
                **{key: at[key] for key in ("started", "code", "processor", "cores")},
                **{
                    part: {key: summary[part][key] for key in WATCHED}
                    for part in ("before", "after")
                },
                "kinds": {kind: row["accuracy"] for kind, row in summary["after"]["kinds"].items()},
                "gain": difference(run, "before", run, "after"),
                "against_default": compared,
            }
        )
    if not runs:
        raise InputError(
            f"no finished run in {folder}", expected="runs of scripts/ablations.py, VARIANT/seed-N"
        )
    write("ablations", {"command": f"python scripts/record.py ablations {folder}", "runs": runs})


def difference(first: RunFolder, at_first: str, second: RunFolder, at_second: str) -> Json:
    """Mean accuracy of the second held-out evaluation minus the first, paired by instance;
    ``left_out`` lack a score."""
    rows = (
        first.read_lines(f"held_out/{at_first}.jsonl"),
        second.read_lines(f"held_out/{at_second}.jsonl"),
    )
    before, after = (
        {row["result"]["instance"]: row["result"]["accuracy"] for row in of} for of in rows
    )
    if before.keys() != after.keys():
        raise InputError(
            f"{first.path} and {second.path} were evaluated on different instances",
            expected="the same eval_data",
        )
    gaps = [
        after[key] - score
        for key, score in before.items()
        if score is not None and after[key] is not None
    ]
    stderr = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
    return {
        "mean": statistics.fmean(gaps),
        "stderr": stderr,
        "n": len(gaps),
        "left_out": len(before) - len(gaps),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "comparison", "ablations"])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "name",
        nargs="?",
        help="of the record (default: comparison, ablations, or the name of the run's folder)",
    )
    given = parser.parse_args(arguments)
    try:
        if given.what == "ablations":
            record_ablations(given.folder)
        elif given.what == "run":
            record_run(given.folder, given.name or given.folder.name)
        else:
            record_comparison(given.folder, given.name or "comparison")
    except (MemAlphaError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
