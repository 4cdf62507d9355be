"""Makes the tables of docs/ from docs/results/*.json, and the CSV files with all their numbers.

    python scripts/tables.py [PAGE ...]      every page, or some: ablations, bars, comparison,
    recipe, results, router, scale python scripts/tables.py --check         writes nothing; exit
    code 1 if a file is out of date

What stands between ``<!-- NAME -->`` and ``<!-- end -->`` of a page is made here. scripts/record.py
writes the JSON files.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import cost_model

from memalpha.measure.tables import (
    UNKNOWN,
    Summary,
    difference_from,
    interval,
    number,
    overall,
    table,
)
from memalpha.record.statistics import Estimate

DOCS = Path(__file__).resolve().parent.parent / "docs"
REFERENCE = {
    "comparison": "grpo",
    "archive": "memory over archive",
}  # what the differences are taken from
Row = Mapping[str, Any]


@cache
def read(name: str) -> dict[str, Any]:
    return json.loads((DOCS / "results" / f"{name}.json").read_text(encoding="utf-8"))


def decimals(value: float | None, digits: int = 3, sign: str = "") -> str:
    return UNKNOWN if value is None else format(round(value, digits) + 0.0, f"{sign},.{digits}f")


def with_error(found: Row | None, name: str = "mean") -> str:
    """``+0.137 ± 0.029``, with what was left out."""
    if found is None:
        return UNKNOWN
    out = found.get("left_out")
    text = f"{decimals(found[name], 3, '+')} ± {decimals(found['stderr'])}"
    return f"{text} ({out} of {found['n'] + out} left out)" if out else text


def arrow(values: Iterable[float | None], digits: int = 3) -> str:
    return " → ".join(decimals(value, digits) for value in values)


def as_csv(head: str, rows: Iterable[Sequence[Any]]) -> str:
    """Text of a CSV file; eight digits a number, and nothing for what is not known."""
    text = io.StringIO()
    shown = (
        ["" if cell != cell else f"{cell:.8g}" if isinstance(cell, float) else cell for cell in row]
        for row in rows
    )
    csv.writer(text, lineterminator="\n").writerows([head.split(","), *shown])
    return text.getvalue()


@cache
def comparison(name: str = "comparison") -> Summary:
    return Summary.from_json(read(name)["summary"])


def comparison_made(name: str = "comparison") -> str:
    parts = [part["environment"] for part in read(name)["parts"]]
    runs = [run for part in parts for run in (part, *part.get("continued", []))]
    days = sorted({run["started"][:10] for run in runs})
    packages = ", ".join(
        f"{name} {parts[-1]['packages'][name]}"
        for name in ("memalpha", "torch", "transformers", "peft")
    )
    code = ", ".join(sorted({run["code"] for run in runs}))
    machine = f"{parts[-1]['processor']}, {parts[-1]['cores']} cores"
    return f"Evaluated from {days[0]} to {days[-1]} on {machine}; {packages}; code {code}."


def comparison_overall(reader: str, name: str = "comparison") -> str:
    return overall(
        comparison(name),
        reader,
        REFERENCE[name],
        lambda found: number(found.mean) if found else UNKNOWN,
    )


def comparison_home(name: str = "comparison", reader: str = "recall") -> str:
    item = next(item for item in comparison(name).sets if item.reader == reader)
    rows = []
    for group, cell in item.cells.items():
        kinds, costs, stale = cell.kinds, cell.costs, cell.scorecard["stale answers"]
        rows.append(
            [
                group,
                interval(cell.accuracy),
                *(number(kinds[kind].accuracy.mean) for kind in ("single", "latest", "removed")),
                number(stale and stale.mean),
                number(costs["memory_tokens"], 1),
                number(costs["memory_tokens"] / costs["input_tokens"]),
                number(costs["seconds_write"], 2),
            ]
        )
    head = "system|accuracy|one fact|latest value|removed fact|stale answers ↓|memory tokens|of the input|s writing"
    return table(head.split("|"), rows)


def archive_differences() -> str:
    """The reference minus every other system, on each set with ``recall``."""
    summary, reference = comparison("archive"), REFERENCE["archive"]
    items = [item for item in summary.sets if item.reader == "recall"]
    others = [group for group in summary.kinds_of if group != reference]
    rows = [
        [
            f"minus `{group}`",
            *(
                interval(difference_from(item.differences, group, reference), signed=True)
                for item in items
            ),
        ]
        for group in others
    ]
    return table(["", *(f"{item.set} ({item.instances})" for item in items)], rows)


def comparison_csv() -> str:
    """One row a number: of each set, reader and system, and of the means over sets."""
    rows: list[list[Any]] = []

    def add(
        place: Sequence[str], quantity: str, found: Estimate | float | None, questions: Any = ""
    ) -> None:
        if isinstance(found, Estimate):
            rows.append(
                [
                    *place,
                    quantity,
                    found.mean,
                    found.low,
                    found.high,
                    found.stderr,
                    found.n,
                    questions,
                ]
            )
        else:
            rows.append([*place, quantity, "" if found is None else found, *[""] * 5])

    summary, reference = comparison(), REFERENCE["comparison"]
    for item in summary.sets:
        for group, cell in item.cells.items():
            place = [item.set, item.reader, group]
            add(place, "accuracy", cell.accuracy)
            if len(cell.members) > 1:
                for seed, value in cell.accuracy.per_seed.items():
                    add(place, f"accuracy of {cell.members[seed]}", value)
            if apart := difference_from(item.differences, reference, group):
                add(place, f"accuracy minus {reference}", apart)
            for kind, score in cell.kinds.items():
                add(place, f"accuracy, kind {kind}", score.accuracy, score.questions)
            for name, value in {**cell.costs, **cell.operations, **cell.scorecard}.items():
                add(place, name, value)
    for reader, means in summary.over_sets.items():
        for group, mean in means.items():
            add(["mean over sets", reader, group], "accuracy", mean)
            if apart := difference_from(summary.differences[reader], reference, group):
                add(["mean over sets", reader, group], f"accuracy minus {reference}", apart)
    return as_csv("set,reader,system,quantity,value,low,high,stderr,instances,questions", rows)


HELD_OUT = (
    "accuracy",
    "reward",
    "tool_success",
    "content",
    "compression",
    "memory_tokens",
    "input_tokens",
    "entries",
    "calls_per_instance",
    "update_share",
    "delete_share",
    "cut_off",
)
SAMPLED = {
    "completions/mean_length": "tokens a completion",
    "memory/tokens": "tokens of the memory at the end",
    "memory/entries": "entries at the end",
    "memory/entry_words": "words an entry",
    "memory/verbatim": "entries copied word for word",
    "memory/duplicates": "calls that insert what is there",
    "memory/calls_per_chunk": "calls a chunk",
    "memory/silent_chunks": "chunks without a call",
    "memory/unparsed": "calls that are none",
    "completions/clipped_ratio": "completions cut off",
}
"""What would show a policy that games its reward, by its name in ``metrics.jsonl``."""


def training_runs() -> dict[str, dict[str, Any]]:
    names = sorted(path.stem for path in (DOCS / "results").glob("*.json"))
    return {name: read(name) for name in names if "curve" in read(name)}


def results_accuracy() -> str:
    rows = []
    for name, run in training_runs().items():
        summary, gain = run["summary"], run["summary"]["delta"]
        parts = summary["before"], summary["after"]
        kinds = [
            [part["kinds"].get(kind, {}).get("accuracy") for part in parts]
            for kind in ("latest", "removed")
        ]
        rows.append(
            [
                name,
                str(summary["steps"]),
                arrow(part["accuracy"] for part in parts),
                f"{with_error(gain, 'accuracy')} ({gain['n']})",
                *(UNKNOWN if None in kind else arrow(kind) for kind in kinds),
                *(arrow((part[key] for part in parts), 2) for key in ("tool_success", "content")),
                arrow((part["memory_tokens"] for part in parts), 0),
            ]
        )
    head = "run|steps|accuracy|gain (instances)|latest value|removed fact|op success|content|memory tokens"
    return table(head.split("|"), rows)


def listed(options: Row) -> str:
    return ", ".join(f"`{key}: {value}`" for key, value in options.items()) or UNKNOWN


def results_made() -> str:
    rows = []
    for name, run in training_runs().items():
        at = run["environment"]
        parts = 1 + len(at.get("resumed", []))
        seconds = decimals(run["summary"]["seconds"], 0) + (
            f", the last part of {parts}" if parts > 1 else ""
        )
        seed = str(run["summary"]["seed"])
        rows.append(
            [name, f"`{' '.join(at['command'])}`", seed, seconds, at["started"][:10], at["code"]]
        )
    return table(["run", "command", "seed", "seconds", "day", "code"], rows)


def sampled(run: Row) -> dict[str, tuple[float, float]]:
    """Means over the first and the last eighth of the training steps; nothing for fewer than 16
    steps."""
    curve, size = run["curve"], len(run["curve"]) // 8
    if size < 2:
        return {}
    parts = curve[:size], curve[-size:]
    known = [key for key in SAMPLED if all(key in row for part in parts for row in part)]
    return {
        SAMPLED[key]: tuple(sum(row[key] for row in part) / size for part in parts) for key in known
    }  # type: ignore[misc]


def recipe_sampled() -> str:
    runs = {name: sampled(read(name)) for name in ("mixed-1", "mixed-2", "mixed-3", "control")}
    shown = [
        name
        for name in SAMPLED.values()
        if name not in ("calls that are none", "entries at the end")
    ]
    rows = []
    for name in shown:
        digits = {"tokens": 0, "words": 1, "completions": 3}.get(
            name.split()[0], 3 if "insert" in name else 2
        )
        rows.append([name, *(arrow(run[name], digits) for run in runs.values())])
    return table(["", *(f"`{name}`" for name in runs)], rows)


def results_csv() -> str:
    """One row a number of each training run, before and after (``held out``), or in the first and
    last eighth (``sampled``)."""
    rows: list[list[Any]] = []
    for name, run in training_runs().items():
        before, after, delta = (run["summary"][part] for part in ("before", "after", "delta"))
        rows += [[name, "held out", key, before[key], after[key], ""] for key in HELD_OUT]
        rows.append(
            [
                name,
                "held out",
                "standard error of the accuracy",
                before["stderr"],
                after["stderr"],
                "",
            ]
        )
        rows.append(
            [
                name,
                "held out",
                "paired difference of the accuracy",
                "",
                delta["accuracy"],
                delta["n"],
            ]
        )
        rows.append([name, "held out", "its standard error", "", delta["stderr"], ""])
        for kind, row in after["kinds"].items():
            was = before["kinds"].get(kind, {}).get("accuracy")
            rows.append(
                [name, "held out", f"accuracy, kind {kind}", was, row["accuracy"], row["questions"]]
            )
        rows += [[name, "sampled", key, *values, ""] for key, values in sampled(run).items()]
    return as_csv("run,where,quantity,before,after,n", rows)


def ablations() -> str:
    def order(run: Row) -> tuple[bool, float]:
        return run["name"] != "default", -(run["against_default"] or {"mean": 0})["mean"]

    rows = []
    for run in sorted(read("ablations")["runs"], key=order):
        before, after = run["before"], run["after"]
        rows.append(
            [
                run["name"],
                listed(run["change"]),
                f"{run['seed']}, {run['steps']}",
                decimals(before["accuracy"]),
                decimals(after["accuracy"]),
                with_error(run["gain"]),
                with_error(run["against_default"]),
                *(decimals(after[key], 2) for key in ("tool_success", "content", "memory_tokens")),
                *(decimals(after[key]) for key in ("update_share", "delete_share", "cut_off")),
            ]
        )
    columns = "run|change|seed, steps|before|after|gain|against default|op success|content|memory tokens|updates|deletes|cut off"
    return table(columns.split("|"), rows)


def bars() -> str:
    found = read("bars")["bars"]
    met = {True: "yes", False: "**no**", None: "?"}
    count, missing = (sum(bar["met"] is value for bar in found) for value in (True, None))
    rows = table(
        ["asked", "found", "met"], ([bar["asked"], bar["found"], met[bar["met"]]] for bar in found)
    )
    return f"{rows}\n\n{count} of {len(found)} are met{f'; {missing} were not evaluated' if missing else ''}."


LEARNERS = {
    "random": "random",
    "linucb": "LinUCB",
    "mappo": "MAPPO",
    "grpo": "multi-agent GRPO",
}
TASKS = {"one": "one router", "team": "a team of three", "facets": "three facets"}


def router_synthetic() -> str:
    runs = read("router_synthetic")["runs"]
    rows = []
    for learner, shown in LEARNERS.items():
        cells = []
        for task in TASKS:
            own = [run for run in runs if (run["learner"], run["task"]) == (learner, task)]
            shares = [run["fraction_of_optimal"] for run in own]
            cells += [
                f"{number(fmean(shares))} ({number(min(shares))})",
                decimals(fmean([run["cpu_seconds"] for run in own]), 1),
            ]
        rows.append([shown, *cells])
    head = [
        "learner",
        *(text for title in TASKS.values() for text in (f"{title}: mean (worst)", "processor s")),
    ]
    return table(head, rows)


def router_memories() -> str:
    rows = []
    for name, found in read("router_memories")["settings"].items():
        for row in found["rows"]:
            gap = found["differences"].get(row["name"])
            rows.append(
                [
                    f"{name} ({found['questions']} questions)" if row is found["rows"][0] else "",
                    row["name"],
                    f"{number(row['accuracy'])} ± {number(row['stderr'])}",
                    decimals(row["searched"], 1),
                    decimals(row["sections"], 2),
                    decimals(row["milliseconds"], 2),
                    with_error(gap),
                ]
            )
    head = "setting|sections chosen by|accuracy|entries searched|sections opened|ms a search|learned (mean) less this"
    return table(head.split("|"), rows)


def router_readers() -> str:
    rows = []
    for found in read("router_readers")["prices"]:
        for row in found["rows"]:
            spread = (
                f"{number(min(row['seeds']))} to {number(max(row['seeds']))}"
                if len(set(row["seeds"])) > 1
                else UNKNOWN
            )
            rows.append(
                [
                    f"{found['price']:g}" if row is found["rows"][0] else "",
                    LEARNERS.get(row["name"], row["name"]),
                    number(row["score"]),
                    decimals(100 * row["cost"], 0),
                    " / ".join(decimals(share, 2) for share in row["shares"]),
                    f"{number(row['reward']['mean'])} ± {number(row['reward']['stderr'])}",
                    spread,
                    with_error(row["less_best"]),
                ]
            )
    taken = " / ".join(found["workers"])
    return table(
        [
            "price",
            "chosen by",
            "score",
            "tokens",
            taken,
            "reward",
            "of the seeds",
            "less the best worker",
        ],
        rows,
    )


def router_sb3() -> str:
    rows = []
    for task, title in (
        ("facets", "three facets: share of the optimum"),
        ("readers", "readers, 100 tokens cost .05: reward"),
    ):
        cells = []
        for who in ("theirs", "ours"):
            own = [
                run
                for run in read("router_sb3")["runs"]
                if (run["learner"], run["task"]) == (who, task)
            ]
            found = [run.get("fraction_of_optimal", run["reward"]) for run in own]
            cells += [
                f"{number(fmean(found))} ({number(min(found))})",
                decimals(fmean([run["cpu_seconds"] for run in own]), 1),
            ]
        rows.append([title, decimals(own[0]["steps"], 0), *cells])
    head = "task|steps|PPO of stable-baselines3: mean (worst)|processor s|MAPPO: mean (worst)|processor s"
    return table(head.split("|"), rows)


def router_made() -> str:
    lines = []
    for at in (
        read(name)["environment"]
        for name in ("router_synthetic", "router_memories", "router_readers", "router_sb3")
    ):
        packages = ", ".join(
            f"{package} {at['packages'][package]}" for package in ("memalpha", "torch", "numpy")
        )
        lines.append(
            f"`{' '.join(at['command'])}`: {at['started'][:10]}; {at['processor']}, one thread a run; {packages}."
        )
    return "\n".join(lines)


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "ablations": {"ablations": ablations},
    "bars": {"bars": bars},
    "comparison": {
        "archive home": partial(comparison_home, "archive"),
        "archive trained": partial(comparison_home, "archive", "trained"),
        "archive sets": partial(comparison_overall, "recall", "archive"),
        "archive minus": archive_differences,
        "archive made": partial(comparison_made, "archive"),
        "made": comparison_made,
        "home": comparison_home,
        "recall": lambda: comparison_overall("recall"),
        "base": lambda: comparison_overall("base"),
    },
    "recipe": {"sampled": recipe_sampled},
    "results": {"accuracy": results_accuracy, "made": results_made},
    "router": {
        "synthetic": router_synthetic,
        "memories": router_memories,
        "readers": router_readers,
        "sb3": router_sb3,
        "made": router_made,
    },
    "scale": cost_model.TABLES,
}
CSV_FILES: dict[str, Callable[[], str]] = {"comparison": comparison_csv, "results": results_csv}


def filled(text: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """A page with its tables made anew; ValueError names a table that has no place in it."""
    for name, make in tables.items():
        place = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", text, re.DOTALL)
        if not place:
            raise ValueError(
                f"the page has no place for {name}; expected: <!-- {name} --> ... <!-- end -->"
            )
        text = f"{text[: place.start(1)]}\n{make()}\n\n{text[place.end(1) :]}"
    return text


def outputs(pages: Iterable[str]) -> dict[Path, str]:
    found = {}
    for page in pages:
        path = DOCS / f"{page}.md"
        found[path] = filled(path.read_text(encoding="utf-8"), PAGES[page])
        if page in CSV_FILES:
            found[DOCS / "results" / f"{page}.csv"] = CSV_FILES[page]()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "pages", nargs="*", metavar="PAGE", help=f"some of {', '.join(PAGES)}; none means all"
    )
    parser.add_argument("--check", action="store_true", help="only say which files are out of date")
    given = parser.parse_args(arguments)
    if unknown := set(given.pages) - PAGES.keys():
        parser.error(f"no page {sorted(unknown)[0]!r}; expected: some of {', '.join(PAGES)}")
    made = outputs(given.pages or PAGES)
    old = {
        path: text
        for path, text in made.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    }
    for path, text in old.items():
        if not given.check:
            path.write_text(text, encoding="utf-8")
        print(f"{'out of date' if given.check else 'written'}: {path.relative_to(DOCS.parent)}")
    return 1 if given.check and old else 0


if __name__ == "__main__":
    sys.exit(main())
