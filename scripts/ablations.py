"""One change at a time: trains configs/train/ablations.yaml's variants of a run; docs/results/ablations.json, docs/ablations.md.

python scripts/ablations.py --config configs/train/mixed.yaml --output_dir runs/ablations --max_steps 16 --seeds 1
python scripts/ablations.py ... --only control,no_immediate    some of them
python scripts/ablations.py --output_dir runs/ablations --collect    no training; what is finished so far

Finished runs are kept, and a run that was cut short goes on from its last checkpoint; one that was begun with other options than
are asked for now is refused, and so is a comparison of runs of different lengths. Further arguments are options of
``memalpha train`` for all variants alike. ``default`` is the run without a change; every other is compared with it, and with its
own start, on the same held-out instances; one without a score (its reader or judge failed) is left out of both, and counted.
Runs that are written down and not in the folder (they were made elsewhere) stay, if ``default`` comes out here as it did there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from memalpha.report.compare import differences
from memalpha.runs import RunFolder
from memalpha.training.config import parse_train_arguments
from memalpha.training.results import paired_difference, read_results

ROOT = Path(__file__).resolve().parent.parent
VARIANTS = ROOT / "configs" / "train" / "ablations.yaml"
RESULT = ROOT / "docs" / "results" / "ablations.json"
PAGE = ROOT / "docs" / "ablations.md"
DEFAULT = "default"
WATCHED = ("accuracy", "tool_success", "content", "memory_tokens", "entries", "update_share", "delete_share", "cut_off")


def variants(only: str) -> dict[str, dict[str, Any]]:
    """Return the changes by name, the unchanged run first."""
    known: dict[str, dict[str, Any]] = {DEFAULT: {}, **yaml.safe_load(VARIANTS.read_text(encoding="utf-8"))}
    wanted = only.split(",") if only else list(known)
    if unknown := [name for name in wanted if name not in known]:
        raise SystemExit(f"no ablation {unknown[0]!r}\n  expected: one of {', '.join(known)}")
    return {name: known[name] for name in known if name in wanted}


def train(config: Path, run: Path, seed: int, options: list[str]) -> None:
    """Train one variant with one seed, unless it is finished; a run that was begun with other options is refused."""
    command = ["--config", str(config), "--output_dir", str(run), "--seed", str(seed), *options]
    begun = (run / "config.yaml").is_file()
    if begun and (different := other_options(RunFolder(run), command)):
        said = "; ".join(f"{name} was {was!r} and is {now!r}" for name, (was, now) in different.items())
        raise SystemExit(f"{run} was begun with other options: {said}\n  to fix: give those, or another --output_dir")
    if (run / "summary.json").is_file():
        print(f"{run} is finished", flush=True)
        return
    command = ["train", *command, *(["--resume"] if begun else [])]
    print(f"memalpha {' '.join(command)}", flush=True)
    subprocess.run([sys.executable, "-m", "memalpha", *command], check=True)


def other_options(run: RunFolder, command: list[str]) -> dict[str, list[Any]]:
    """Options that matter and differ from those a run was begun with, each with both values; new ones do not count."""
    run_, agent, reward, grpo = parse_train_arguments(command)
    now = yaml.safe_load(yaml.safe_dump({**asdict(run_), **asdict(agent), **asdict(reward), **grpo.to_dict()}))
    known = run.config.keys() & now.keys()
    return differences([{name: config[name] for name in known} for config in (run.config, now)])


def given_options(command: list[str], change: dict[str, Any]) -> list[str]:
    """The options that a run's command gave to all variants: without its folder, its seed and its change."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--config", "--output_dir", "--seed", *(f"--{key}" for key in change)):
        parser.add_argument(name)
    parser.add_argument("--resume", action="store_true")
    return parser.parse_known_args(command[2:])[1]  # after: memalpha train


def difference(first: RunFolder, at_first: str, second: RunFolder, at_second: str) -> dict[str, float]:
    """Mean accuracy of the second evaluation less the first, paired by instance; ``left_out`` lack a score in either.

    Both must be of the same instances, after the same number of steps.
    """
    steps = [folder.read_json("summary.json")["steps"] for folder in (first, second)]
    if steps[0] != steps[1]:
        raise SystemExit(
            f"{first.path} has {steps[0]} steps and {second.path} has {steps[1]}\n  to fix: train both with the same --max_steps"
        )
    results = [read_results(first, at_first), read_results(second, at_second)]
    if len({frozenset(result.instance for result in found) for found in results}) > 1:
        raise SystemExit("two runs were evaluated on different instances\n  to fix: train them again with the same eval_data")
    found = paired_difference(*results)
    left_out = len(results[0]) - found["n"]
    return {"mean": found["accuracy"], "stderr": found["stderr"], "n": found["n"], "left_out": left_out}


def collect(folder: Path) -> list[dict[str, Any]]:
    """One record a finished run."""
    records = []
    for path in sorted(folder.glob("*/seed-*/summary.json")):
        run, name = RunFolder(path.parent), path.parent.parent.name
        summary, environment = run.read_json("summary.json"), run.origin()["environment"]
        change, reference = variants(name)[name], folder / DEFAULT / run.path.name
        compared = difference(RunFolder(reference), "after", run, "after") if (reference / "summary.json").is_file() else None
        records.append(
            {
                "name": name,
                "change": change,
                "options": given_options(environment["command"], change),
                "seed": summary["seed"],
                "steps": summary["steps"],
                "seconds": summary["seconds"],
                "started": environment["started"],
                "code": environment["code"],
                "processor": environment["processor"],
                "cores": environment["cores"],
                "before": {key: summary["before"][key] for key in WATCHED},
                "after": {key: summary["after"][key] for key in WATCHED},
                "kinds": {kind: row["accuracy"] for kind, row in summary["after"]["kinds"].items()},
                "gain": difference(run, "before", run, "after"),
                "against_default": compared,
            }
        )
    return records


def with_earlier(records: list[dict[str, Any]], earlier: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of the folder's runs, and after them those written down before of runs that are not in it."""
    here = {(record["name"], record["seed"]): record for record in records}
    there = {(record["name"], record["seed"]): record for record in earlier}
    kept = [record for key, record in there.items() if key not in here]
    for seed in {record["seed"] for record in kept}:
        now, then = here.get((DEFAULT, seed)), there.get((DEFAULT, seed))
        if now and then and now["after"] != then["after"]:
            raise SystemExit(
                f"{DEFAULT} with seed {seed} has accuracy {now['after']['accuracy']} and had {then['after']['accuracy']}\n"
                "  expected: the same numbers, since what is written down was compared with them\n"
                "  to fix: train all variants here, or write them down elsewhere: --result FILE --page FILE"
            )
    return [*records, *kept]


def shared_options(records: list[dict[str, Any]]) -> list[str]:
    """The options that all runs were given; none where they differ, which each record says of itself."""
    first: list[str] = records[0]["options"]
    return first if all(record["options"] == first for record in records) else []


def _signed(value: dict[str, float] | None) -> str:
    if not value:
        return "–"
    left_out = f" ({value['left_out']} of {value['n'] + value['left_out']} left out)" if value["left_out"] else ""
    return f"{value['mean']:+.3f} ± {value['stderr']:.3f}{left_out}"


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def page(result: dict[str, Any]) -> str:
    """Return the Markdown page of all runs: each against its own start and against ``default`` of its seed."""
    runs = sorted(result["runs"], key=lambda run: (run["name"] != DEFAULT, (run["against_default"] or {"mean": 0})["mean"] * -1))
    columns = "run|change|seed, steps|before|after|gain|against default|op success|content|memory tokens|updates|deletes|cut off"
    lines = [
        "# Ablations",
        "",
        f"Made by `{result['command']}`; not written by hand. Accuracy on the held-out instances, greedy;",
        "± is one standard error of the difference paired by instance, and says nothing of other seeds. All numbers:",
        "[results/ablations.json](results/ablations.json).",
        "",
        f"| {columns.replace('|', ' | ')} |",
        "| --- " * len(columns.split("|")) + "|",
    ]
    for run in runs:
        before, after = run["before"], run["after"]
        change = ", ".join(f"`{key}: {value}`" for key, value in run["change"].items()) or "–"
        cells = [run["name"], change, f"{run['seed']}, {run['steps']}", _number(before["accuracy"]), _number(after["accuracy"])]
        cells += [_signed(run["gain"]), _signed(run["against_default"])]
        cells += [_number(after[key], 2) for key in ("tool_success", "content", "memory_tokens")]
        cells += [_number(after[key]) for key in ("update_share", "delete_share", "cut_off")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train what is missing and write the numbers down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "train" / "mixed.yaml")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--only", default="")
    parser.add_argument("--collect", action="store_true")
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--page", type=Path, default=PAGE)
    arguments, options = parser.parse_known_args()
    for name, change in variants(arguments.only).items() if not arguments.collect else ():
        for seed in map(int, arguments.seeds.split(",")):
            changed = [text for key, value in change.items() for text in (f"--{key}", str(value))]
            train(arguments.config, arguments.output_dir / name / f"seed-{seed}", seed, [*options, *changed])
    command = " ".join(["python", "scripts/ablations.py", *sys.argv[1:]])
    records = collect(arguments.output_dir)
    if not records:
        raise SystemExit(f"no finished run in {arguments.output_dir}\n  expected: runs of this script, VARIANT/seed-N")
    if arguments.result.is_file():
        records = with_earlier(records, json.loads(arguments.result.read_text(encoding="utf-8"))["runs"])
    result = {"command": command, "options": shared_options(records), "runs": records}
    arguments.result.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    arguments.page.write_text(page(result), encoding="utf-8")


if __name__ == "__main__":
    main()
