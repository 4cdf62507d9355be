"""Makes docs/results.md from docs/results/*.json, each a run's summary with its command, config, seed, machine and date.

python scripts/results_table.py                 writes docs/results.md
python scripts/results_table.py add RUN NAME    keeps a run folder's numbers as docs/results/NAME.json first
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
EIGHTH = 8
WATCHED = {
    "completions/mean_length": "tokens a completion",
    "completions/clipped_ratio": "completions cut off",
    "memory/calls_per_chunk": "calls a chunk",
    "memory/silent_chunks": "chunks without a call",
    "memory/unparsed": "calls that are none",
    "memory/duplicates": "calls that insert what is there",
    "memory/verbatim": "entries copied word for word",
    "memory/entry_words": "words an entry",
    "memory/entries": "entries at the end",
    "memory/tokens": "tokens of the memory at the end",
}
"""What would show a policy that games its reward, by its name in ``metrics.jsonl``."""

FIELDS = (
    "reward", "tool_success", "content", "compression", "memory_tokens", "input_tokens", "entries", "calls_per_instance",
    "update_share", "delete_share", "cut_off",
)  # fmt: skip
"""What is shown of the held-out instances beside their accuracy."""


def add(run: Path, name: str) -> None:
    """Copy what makes a run's numbers traceable."""
    from memalpha.runs import RunFolder

    folder = RunFolder(run)
    summary = folder.read_json("summary.json")
    if "delta" not in summary:
        raise SystemExit(f"error: {run} has no held-out instances\n  expected: a run with eval_data, evaluated before and after")
    record = {"summary": summary, **folder.origin(), "curve": folder.metrics()}
    RESULTS.mkdir(parents=True, exist_ok=True)
    if (run / "report" / "curves.png").is_file():
        (RESULTS / f"{name}.png").write_bytes((run / "report" / "curves.png").read_bytes())
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")


def table(name: str, record: dict) -> list[str]:
    """The Markdown of one run."""
    summary, environment = record["summary"], record["environment"]
    before, after, delta = summary["before"], summary["after"], summary["delta"]
    lines = [
        f"## {name}",
        "",
        f"`{' '.join(environment['command'])}`",
        "",
        f"Seed {summary['seed']}, {summary['steps']} steps, {summary['seconds']:.0f} s{_of_parts(environment)}, "
        f"{environment['started'][:10]}; {environment['processor']}, {environment['cores']} cores, "
        f"{environment['world_size']} process; code {environment.get('code', 'not recorded')}; "
        + ", ".join(f"{package} {environment['packages'][package]}" for package in ("memalpha", "trl", "torch"))
        + ".",
        "",
        *_since_changed(environment["command"], record["config"]),
        "| held out | before | after |",
        "| --- | --- | --- |",
        "| accuracy | " + " | ".join(f"{_number(part['accuracy'])} ± {_number(part['stderr'])}" for part in (before, after)) + " |",
        f"| paired difference | | {_number(delta['accuracy'], '+.3f')} ± {_number(delta['stderr'])} (n = {delta['n']}) |",
    ]
    for field in FIELDS:
        lines.append(f"| {field.replace('_', ' ')} | {_number(before[field])} | {_number(after[field])} |")
    for kind, row in after["kinds"].items():
        was = before["kinds"].get(kind, {}).get("accuracy")
        lines.append(f"| kind: {kind} ({row['questions']} questions) | {_number(was)} | {_number(row['accuracy'])} |")
    lines += watch(record["curve"])
    if (RESULTS / f"{name}.png").is_file():
        lines += ["", f"![curves of {name}](results/{name}.png)"]
    return [*lines, "", f"± is one standard error over instances. All numbers: [results/{name}.json](results/{name}.json).", ""]


def _number(value: float | None, form: str = ".3f") -> str:
    """A number; a dash for what is not known, as the content quality of a run that gave it no weight."""
    return "–" if value is None else format(value, form)


def _of_parts(environment: dict) -> str:
    """What the seconds of an interrupted run are of."""
    parts = 1 + len(environment.get("resumed", []))
    return f" (the last of {parts} parts, the run having been stopped and gone on with)" if parts > 1 else ""


def _since_changed(command: list[str], options: dict) -> list[str]:
    """Markdown of the options that the named configuration gives otherwise today, as the run had them."""
    if "--config" not in command or not (path := ROOT / command[command.index("--config") + 1]).is_file():
        return []
    today = yaml.safe_load(path.read_text(encoding="utf-8"))
    given = {"output_dir", "seed", *(text.removeprefix("--").partition("=")[0] for text in command if text.startswith("--"))}
    other = {key: options.get(key) for key, value in today.items() if key not in given and options.get(key) != value}
    if not other:
        return []
    return [f"The configuration has changed since; here: {', '.join(f'`{key}: {value}`' for key, value in other.items())}.", ""]


def watch(curve: list[dict]) -> list[str]:
    """Markdown of what the sampled rollouts were like, at the start and at the end of training."""
    if len(curve) < 2 * EIGHTH:
        return []
    parts = [curve[: len(curve) // EIGHTH], curve[-(len(curve) // EIGHTH) :]]
    steps = [f"steps {part[0]['step']} to {part[-1]['step']}" for part in parts]
    lines = ["", f"| sampled in training | {steps[0]} | {steps[1]} |", "| --- | --- | --- |"]
    for key, shown in WATCHED.items():
        if all(key in row for part in parts for row in part):
            first, last = (sum(row[key] for row in part) / len(part) for part in parts)
            lines.append(f"| {shown} | {first:.3f} | {last:.3f} |")
    return lines


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    adding = parser.add_subparsers(dest="verb").add_parser("add", help="keep a run folder's numbers first")
    adding.add_argument("run", type=Path)
    adding.add_argument("name")
    arguments = parser.parse_args()
    if arguments.verb:
        add(arguments.run, arguments.name)
    lines = ["# Results", "", "Made by `scripts/results_table.py` from `docs/results/*.json`; not written by hand.", ""]
    for path in sorted(RESULTS.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if "curve" in record:  # a training run; comparisons, ablations and the router have pages of their own
            lines += table(path.stem, record)
    (ROOT / "docs" / "results.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
