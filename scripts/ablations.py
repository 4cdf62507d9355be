"""One change at a time: trains configs/train/ablations.yaml's variants of a run; docs/results/ablations.json, docs/ablations.md.

python scripts/ablations.py --config configs/train/mixed.yaml --output_dir runs/ablations --max_steps 16 --seeds 1
python scripts/ablations.py ... --only control,no_immediate    some of them
python scripts/ablations.py --output_dir runs/ablations --collect    no training; what is finished so far

Finished runs are kept, and a run that was cut short goes on from its last checkpoint. Further arguments are options of
``memalpha train`` for all variants alike. ``default`` is the run without a change; every other is compared with it, and with its
own start, on the same held-out instances.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from memalpha.evaluation.held_out import standard_error

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
    """Train one variant with one seed, unless it is finished."""
    if (run / "summary.json").is_file():
        print(f"{run} is finished", flush=True)
        return
    mode = ["--resume"] if (run / "config.yaml").is_file() else []
    command = ["train", "--config", str(config), "--output_dir", str(run), "--seed", str(seed), *options, *mode]
    print(f"memalpha {' '.join(command)}", flush=True)
    subprocess.run([sys.executable, "-m", "memalpha", *command], check=True)


def accuracies(run: Path, name: str) -> dict[str, float]:
    """Accuracy of each held-out instance, ``before`` or ``after``."""
    rows = [json.loads(line) for line in (run / "held_out" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    return {row["result"]["instance"]: float(row["result"]["accuracy"]) for row in rows}


def difference(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    """Mean of second - first over the instances, with its standard error; they must be the same instances."""
    if first.keys() != second.keys():
        raise SystemExit("two runs were evaluated on different instances\n  to fix: train them again with the same eval_data")
    values = [second[key] - first[key] for key in first]
    return {"mean": sum(values) / len(values), "stderr": standard_error(values), "n": len(values)}


def collect(folder: Path) -> list[dict[str, Any]]:
    """One record a finished run."""
    records = []
    for summary_path in sorted(folder.glob("*/seed-*/summary.json")):
        run = summary_path.parent
        summary = json.loads(summary_path.read_text(encoding="utf-8"))
        environment = json.loads((run / "environment.json").read_text(encoding="utf-8"))
        after, reference = accuracies(run, "after"), folder / DEFAULT / run.name
        compared = difference(accuracies(reference, "after"), after) if (reference / "summary.json").is_file() else None
        records.append(
            {
                "name": run.parent.name,
                "change": variants(run.parent.name)[run.parent.name],
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
                "gain": difference(accuracies(run, "before"), after),
                "against_default": compared,
            }
        )
    return records


def _signed(value: dict[str, float] | None) -> str:
    return f"{value['mean']:+.3f} ± {value['stderr']:.3f}" if value else "–"


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
        cells = [run["name"], change, f"{run['seed']}, {run['steps']}", f"{before['accuracy']:.3f}", f"{after['accuracy']:.3f}"]
        cells += [_signed(run["gain"]), _signed(run["against_default"])]
        cells += ["–" if after[key] is None else f"{after[key]:.2f}" for key in ("tool_success", "content", "memory_tokens")]
        cells += [f"{after[key]:.3f}" for key in ("update_share", "delete_share", "cut_off")]
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
    result = {"command": command, "options": options, "runs": collect(arguments.output_dir)}
    arguments.result.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    arguments.page.write_text(page(result), encoding="utf-8")


if __name__ == "__main__":
    main()
