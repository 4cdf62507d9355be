"""Keeps the numbers of run folders in docs/results/*.json; then ``python scripts/tables.py`` brings the pages up to date.

    python scripts/record.py run runs/mixed-1 mixed-1             a training run: docs/results/mixed-1.json, and its curves
    python scripts/record.py comparison runs/main                 an evaluation: its sets replace those in comparison.json
    python scripts/record.py comparison runs/mine mine            an evaluation as a record of its own: mine.json
    python scripts/record.py ablations runs/ablations             the runs of scripts/ablations.py
    python scripts/record.py curves "healthy=runs/mixed-1" "a=runs/a-1"       recipe_curves.json and its picture in docs/images
    python scripts/record.py calls "first=runs/a-1:1-16" "end=runs/rollouts"  right_calls.json: how many calls are right

``curves`` and ``calls`` take labels; a label alone keeps what was recorded under it before. ``calls`` needs dialogues with
annotated facts: sampled calls of training steps, or a folder of ``memalpha rollout``. An insertion is right if the chunk states
just that fact; an update, if it also replaces an entry about the same subject and attribute; a deletion, if the chunk changes or
withdraws what the entry is about. Saying nothing is right in a session without facts.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

from memalpha.errors import InputError, MemAlphaError
from memalpha.runs import RunFolder, trajectory_name
from memalpha.types import Fact, FactAction

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
Json = dict[str, Any]


def read(name: str) -> Json:
    """Read docs/results/NAME.json; empty if it is not there."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def write(name: str, data: Json) -> None:
    """Write docs/results/NAME.json."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1, default=str) + "\n", encoding="utf-8")


def record_run(run: Path, name: str) -> None:
    """A training run: summary, options, environment, curve."""
    folder = RunFolder(run)
    summary = folder.read_json("summary.json")
    if "delta" not in summary:
        raise InputError(f"{run} has no held-out instances", expected="a run with eval_data, evaluated before and after")
    write(name, {"summary": summary, **folder.origin(), "curve": folder.metrics()})


# ------------------------------------------------------------------------------------------------ comparison
MAY_DIFFER = {"output_dir", "overwrite", "endpoint_url", "endpoint_timeout", "endpoint_retries", "endpoint_backoff",
              "endpoint_concurrency", "judge_url", "sets", "systems", "readers"}  # fmt: skip


def record_comparison(folder: Path, name: str) -> None:
    """An evaluation; in ``comparison`` its sets take the place of those of the same name."""
    run = RunFolder(folder)
    summary, origin = run.read_json("summary.json"), run.origin()
    part = {**origin, "inputs": run.read_json("inputs.json"), "false_accept": summary.pop("false_accept", None)}
    sets = [{"part": 0, **item} for item in summary["sets"]]
    found = {"parts": [part], "summary": {**summary, "sets": sets}}
    write(name, merged(read(name), found) if read(name) else found)


def merged(old: Json, new: Json) -> Json:
    """A comparison with the sets of a newer one in the place of its own; the means over sets are taken anew.

    Raises:
        InputError: If both have an option or an adapter of one name that is not the same.
    """

    def named(item: Json) -> tuple[str, str]:
        return item["set"], item["reader"]

    known = {named(item): item for item in old["summary"]["sets"]}
    fresh = {named(item): item for item in new["summary"]["sets"] if item["cells"] or named(item) not in known}
    kept = {key: item for key, item in known.items() if key not in fresh}
    if not kept:
        return new
    used = sorted({item["part"] for item in kept.values()})
    parts = [old["parts"][part] for part in used]
    for part in parts:
        check_alike(part, new["parts"][0])
    sets = [
        {**fresh[key], "part": len(parts)} if key in fresh else {**kept[key], "part": used.index(kept[key]["part"])}
        for key in dict.fromkeys([*known, *fresh])
    ]
    kinds = {**old["summary"]["kinds_of"], **new["summary"]["kinds_of"]}
    return {"parts": [*parts, *new["parts"]], "summary": {**old["summary"], "sets": sets, **means(sets, kinds), "kinds_of": kinds}}


def check_alike(old: Json, new: Json) -> None:
    """See that an option or an input that two evaluations both name is the same in both."""
    before, after = (
        {name: value for name, value in part["config"].items() if name not in MAY_DIFFER} | part["inputs"]["adapters"]
        for part in (old, new)
    )
    if other := [name for name in before.keys() & after.keys() if before[name] != after[name]]:
        raise InputError(
            f"{other[0]} was {before[other[0]]!r} and is {after[other[0]]!r}",
            expected="the options and weights of the sets that stay",
            fix="evaluate all sets again, or this one with the options of before",
        )


def means(sets: Sequence[Json], kinds: Iterable[str]) -> Json:
    """Means over the sets that count, by reader: of each group that is on all of them, and of each pair's difference."""
    from memalpha.evaluation.statistics import Estimate, mean_over_sets

    def over(rows: Sequence[Json]) -> Json:
        known = [Estimate(**{key: math.nan if value is None else value for key, value in row.items()}) for row in rows]
        return asdict(mean_over_sets(known))

    found: Json = {"over_sets": {}, "differences": {}}
    for reader in dict.fromkeys(item["reader"] for item in sets):
        items = [item for item in sets if item["reader"] == reader]
        counted = [item for item in items if item["in_mean"]]
        groups = [group for group in kinds if any(group in {**item["cells"], **item["left_out"]} for item in items)]
        everywhere = [group for group in groups if counted and all(group in item["cells"] for item in counted)]
        if uneven := [group for group in everywhere if len({str(item["cells"][group]["members"]) for item in counted}) > 1]:
            raise InputError(
                f"group {uneven[0]!r} has other members on other sets", expected="the same agents on all sets of the mean"
            )
        accuracy = {group: over([item["cells"][group]["accuracy"] for item in counted]) for group in everywhere}
        found["over_sets"][reader] = {group: accuracy.get(group) for group in groups}
        pairs: Json = {}
        for first, second in combinations(everywhere, 2):
            pairs.setdefault(first, {})[second] = over([item["differences"][first][second] for item in counted])
        found["differences"][reader] = pairs
    return found


# ------------------------------------------------------------------------------------------------ ablations
WATCHED = ("accuracy", "tool_success", "content", "memory_tokens", "entries", "update_share", "delete_share", "cut_off")
FREE = {"output_dir", "rows_per_forward", "generation_rows", "overwrite", "resume", "reward_weights", "logging_dir"}


def record_ablations(folder: Path) -> None:
    """Every finished run of a folder, against its own start and against ``default``; records of other runs stay.

    Raises:
        InputError: If there is no run, a run differs from ``default`` in more than its change, or ``default`` comes out otherwise
            than in the record while runs stay that were compared with it.
    """
    changes = {"default": {}, **yaml.safe_load((ROOT / "configs" / "train" / "ablations.yaml").read_text(encoding="utf-8"))}
    found = {}
    for path in sorted(folder.glob("*/seed-*/summary.json")):
        run, name = RunFolder(path.parent), path.parent.parent.name
        reference = folder / "default" / run.path.name
        compared = None
        if (reference / "summary.json").is_file():
            check_change(RunFolder(reference), run, changes[name])
            compared = difference(RunFolder(reference), "after", run, "after")
        summary, at = run.read_json("summary.json"), run.origin()["environment"]
        found[name, summary["seed"]] = {
            "name": name,
            "change": changes[name],
            "command": " ".join(at["command"]),
            **{key: summary[key] for key in ("seed", "steps", "seconds")},
            **{key: at[key] for key in ("started", "code", "processor", "cores")},
            **{part: {key: summary[part][key] for key in WATCHED} for part in ("before", "after")},
            "kinds": {kind: row["accuracy"] for kind, row in summary["after"]["kinds"].items()},
            "gain": difference(run, "before", run, "after"),
            "against_default": compared,
        }
    if not found:
        raise InputError(f"no finished run in {folder}", expected="runs of scripts/ablations.py, VARIANT/seed-N")
    earlier = {(run["name"], run["seed"]): run for run in read("ablations").get("runs", [])}
    stay = {key: run for key, run in earlier.items() if key not in found}
    for seed in {seed for _, seed in stay}:
        now, then = found.get(("default", seed)), earlier.get(("default", seed))
        if now and then and now["after"] != then["after"]:
            raise InputError(
                f"default with seed {seed} has accuracy {now['after']['accuracy']} and had {then['after']['accuracy']}",
                expected="the same numbers, since the recorded runs that stay were compared with them",
                fix="train all variants again",
            )
    runs = [*found.values(), *stay.values()]
    write("ablations", {"command": f"python scripts/record.py ablations {folder}", "runs": runs})


def check_change(reference: RunFolder, run: RunFolder, change: Json) -> None:
    """See that a run differs from another in its change alone."""
    options = [reference.config, run.config]
    other = {key for key in options[0].keys() & options[1].keys() if options[0][key] != options[1][key]} - FREE - change.keys()
    if other:
        name = min(other)
        raise InputError(
            f"{run.path} has {name} {options[1][name]!r} and {reference.path} has {options[0][name]!r}",
            expected=f"runs that differ in {', '.join(change) or 'nothing'}",
            fix="train one of them again",
        )


def difference(first: RunFolder, at_first: str, second: RunFolder, at_second: str) -> Json:
    """Mean accuracy of the second held-out evaluation minus the first, paired by instance; ``left_out`` lack a score."""
    scores = [
        {row["result"]["instance"]: row["result"]["accuracy"] for row in run.read_lines(f"held_out/{name}.jsonl")}
        for run, name in ((first, at_first), (second, at_second))
    ]
    if scores[0].keys() != scores[1].keys():
        raise InputError(f"{first.path} and {second.path} were evaluated on different instances", expected="the same eval_data")
    known = [key for key, score in scores[0].items() if score is not None and scores[1][key] is not None]
    gaps = [scores[1][key] - scores[0][key] for key in known]
    stderr = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
    return {"mean": statistics.fmean(gaps), "stderr": stderr, "n": len(known), "left_out": len(scores[0]) - len(known)}


# ------------------------------------------------------------------------------------------------ labelled runs
def record_labelled(name: str, labels: Sequence[str], read_run: Callable[[str], Json]) -> Json:
    """Write a record from ``LABEL=RUN`` (read now) and ``LABEL`` (as it was recorded before), in that order; return it."""
    before = read(name)
    pairs = [label.partition("=") for label in labels]
    if unknown := [label for label, _, run in pairs if not run and label not in before]:
        raise InputError(f"no run is recorded as {unknown[0]!r}", expected=f"LABEL=RUN, or one of {list(before)}")
    record = {label: read_run(run) if run else before[label] for label, _, run in pairs}
    write(name, record)
    return record


PANELS = {
    "accuracy of the rollouts": {"": "memory/reward_accuracy"},
    "op success, content quality": {"op success": "memory/reward_tool", "content": "memory/reward_content"},
    "calls a chunk": {"": "memory/calls_per_chunk"},
    "share of the calls": {"update": "memory/update_share", "delete": "memory/delete_share", "duplicate": "memory/duplicates"},
    "share of the chunks without calls": {"": "memory/silent_chunks"},
}
KEPT = {"step", "loss", "entropy", "memory/entry_words", "memory/verbatim", "memory/tokens", "memory/cut_off"}
WINDOW = 5


def read_curves(run: str) -> Json:
    """Options, environment and what is drawn of a training run."""
    folder, keys = RunFolder(run), KEPT | {key for lines in PANELS.values() for key in lines.values()}
    return {**folder.origin(), "curve": [{key: row[key] for key in sorted(keys & row.keys())} for row in folder.metrics()]}


def draw(record: Json, picture: Path) -> None:
    """One row of panels a run: a thin line is each step, a thick one the mean of the last five."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(PANELS), 2.3 * len(record)), layout="constrained")
    FigureCanvasAgg(figure)
    for row, (label, run) in zip(figure.subplots(len(record), len(PANELS), squeeze=False), record.items(), strict=True):
        for axes, (title, lines) in zip(row, PANELS.items(), strict=True):
            for (name, key), colour in zip(lines.items(), ("#0072b2", "#d55e00", "#009e73"), strict=False):
                points = [(step["step"], step[key]) for step in run["curve"] if step.get(key) is not None]
                values = [value for _, value in points]
                mean = [statistics.fmean(values[max(0, i - WINDOW + 1) : i + 1]) for i in range(len(values))]
                steps = [step for step, _ in points]
                axes.plot(steps, values, color=colour, linewidth=0.7, alpha=0.35)
                axes.plot(steps, mean, color=colour, linewidth=1.8, label=name or None)
            axes.set_title(title, fontsize=8)
            axes.tick_params(labelsize=7)
            axes.grid(color="#e4e7eb")
            axes.set_ylim(bottom=0)
            if len(lines) > 1:
                axes.legend(fontsize=7, frameon=False)
        row[0].set_ylabel(label, fontsize=8)
    figure.savefig(picture, dpi=110, metadata={"Software": None})


def is_right(kind: str, old: str, new: str, here: Sequence[Fact]) -> bool:
    """Whether a call that replaced ``old`` by ``new`` (one of them empty) follows from the facts of its chunk."""

    def about(fact: Fact) -> str:
        return f"{fact.subject} {fact.attribute} ".lower()

    said = [fact for fact in here if fact.action is not FactAction.RETRACT and about(fact) + fact.value.lower() == new.lower()]
    if kind == "insert":
        return bool(said)
    if kind == "update":
        return any(old.lower().startswith(about(fact)) for fact in said)
    return any(fact.action is not FactAction.STATE and old.lower().startswith(about(fact)) for fact in here)


def count_rollout(steps: Sequence[Mapping[str, Any]], facts: Sequence[Fact]) -> Counter[str]:
    """Calls of one rollout by kind, all that were applied and those that are right; those that failed; sessions, silent ones."""
    counts: Counter[str] = Counter()
    entries: dict[str, str] = {}
    for step in steps:
        here = [fact for fact in facts if fact.chunk == step["chunk"]]
        session = "session_with_facts" if here else "session_without"
        counts[session] += 1
        counts[f"{session}_silent"] += not step["results"]
        for result in step["results"]:
            operation = result["operation"]
            if not result["ok"] or operation is None:
                counts["failed"] += 1
            elif result["code"] == "duplicate":
                counts["duplicate"] += 1
            else:
                kind, key = operation["kind"], result["entry"]
                old, new = entries.pop(key, ""), operation["content"] or ""
                counts[kind] += 1
                counts[f"{kind}_right"] += is_right(kind, old, new, here)
                if kind != "delete":
                    entries[key] = new
    return counts


def read_calls(place: str) -> Json:
    """Counts of ``RUN:FIRST-LAST``, steps of training, or of ``RUN``, a folder of ``memalpha rollout``."""
    from memalpha.data.load import load_data

    name, _, steps = place.rpartition(":")
    folder = RunFolder(name or place)
    span = [int(step) for step in steps.split("-")] if name else []
    files = [trajectory_name(step, 0) for step in range(span[0], span[1] + 1)] if span else ["held_out/rollouts.jsonl"]
    rows = (row if span else row["rollout"] for file in files for row in folder.read_lines(file))
    origin = folder.origin()
    data = origin["config"]["train_data" if span else "eval_data"]
    facts = {instance.id: instance.facts for instance in load_data(data) if instance.facts}
    counts: Counter[str] = Counter()
    for row in rows:
        if row["instance"] in facts:
            counts["rollouts"] += 1
            counts.update(count_rollout(row["steps"], facts[row["instance"]]))
    if not counts["rollouts"]:
        raise InputError(f"no rollouts on dialogues with facts among {data}", expected="a run on generated data, and its steps")
    right = {kind: counts[f"{kind}_right"] / counts[kind] for kind in ("insert", "update", "delete") if counts[kind]}
    return {**({"steps": span} if span else {}), "counts": dict(sorted(counts.items())), "right": right, **origin}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run, comparison = verbs.add_parser("run"), verbs.add_parser("comparison")
    for verb in (run, comparison, verbs.add_parser("ablations")):
        verb.add_argument("folder", type=Path)
    run.add_argument("name", help="of the record")
    comparison.add_argument("name", nargs="?", default="comparison", help="of the record")
    for name in ("curves", "calls"):
        verbs.add_parser(name).add_argument("labels", nargs="*", metavar="LABEL[=RUN]")
    given = parser.parse_args(arguments)
    try:
        if given.verb == "run":
            record_run(given.folder, given.name)
        elif given.verb == "comparison":
            record_comparison(given.folder, given.name)
        elif given.verb == "ablations":
            record_ablations(given.folder)
        elif given.verb == "calls":
            record_labelled("right_calls", given.labels or list(read("right_calls")), read_calls)
        else:
            found = record_labelled("recipe_curves", given.labels or list(read("recipe_curves")), read_curves)
            draw(found, ROOT / "docs" / "images" / "recipe_curves.png")
    except (MemAlphaError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
