"""Makes the comparison of docs/comparison.md: prepares the sets that are not there yet, evaluates, writes the page.

    python scripts/evaluate_all.py ORIGINALS                       with configs/evaluate/main.yaml, into runs/main
    python scripts/evaluate_all.py ORIGINALS --readers recall      further arguments are options of memalpha evaluate
    python scripts/evaluate_all.py ORIGINALS --join PART ...       such as parts that other cores or GPUs have evaluated
    python scripts/evaluate_all.py ORIGINALS --only locomo,squad   some sets anew; on the page the others stay as they were
    python scripts/evaluate_all.py --page-only runs/main           the page alone, from an evaluation that is there
    python scripts/evaluate_all.py --record runs/mine mine.json    what any evaluation was and found, as one file

Needs: a folder with the sets' original files (squad/, hotpotqa_train_100q.json, locomo_first2.json, trec/, csabstruct/; see
docs/data.md), and the adapters that the configuration names. Run again after an interruption, it goes on where it stopped.
Makes: runs/data/test-*, the evaluation's folder, docs/comparison.md and docs/results/comparison.json.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from memalpha.errors import InputError, MemAlphaError
from memalpha.evaluation.config import rows_of
from memalpha.evaluation.published import Published
from memalpha.evaluation.specs import read_reader, read_set, read_system
from memalpha.files import read_object, write_object

ROOT = Path(__file__).resolve().parent.parent
CONFIG = "configs/evaluate/main.yaml"
MODEL = "smollm2-135m-instruct"


class TestSet(NamedTuple):
    """A set to prepare: its source, the file it is made from, its options, and the training set that it must not repeat.

    ``{examples}`` in an option stands for the file with the examples.
    """

    source: str
    pattern: str = ""
    seed: int = 0
    options: tuple[str, ...] = ()
    examples: str = ""
    against: str = ""


LABELLED = ("chunk_tokens=200", "chunks=3", "questions=8", "max_instances=64", "metric=label", "examples={examples}")
SHORT = ("chunk_tokens=80-200", "chunks=2-2", "max_answer_tokens=8")
SETS = {
    "test-dialogues": TestSet("synthetic", seed=11, options=("n=64", "split=test")),
    "test-dialogues-10x": TestSet("synthetic", seed=12, options=("n=64", "split=test", "n_chunks=30", "max_questions=40")),
    "test-dialogues-100x": TestSet(
        "synthetic", seed=13, options=("n=12", "split=test", "n_chunks=300", "people=12", "max_questions=60")
    ),
    "test-dependent": TestSet("synthetic", seed=14, options=("n=64", "split=test", "preset=dependent")),
    "squad-train": TestSet("squad", "squad/train_flat.json", options=SHORT),
    "test-squad": TestSet("squad", "squad/dev_half_v2.json", options=SHORT, against="squad-train"),
    "test-hotpotqa": TestSet("hotpotqa", "hotpotqa_train_100q.json", options=("chunk_tokens=100-200", "instance_tokens=450")),
    "test-locomo": TestSet("locomo", "locomo_first2.json", options=("chunk_tokens=200",)),
    "test-trec_coarse": TestSet("trec_coarse", "trec/test.txt", options=LABELLED, examples="trec/train.txt"),
    "test-csabstruct": TestSet("csabstruct", "csabstruct/test.jsonl", options=LABELLED, examples="csabstruct/train.jsonl"),
}


def find(originals: Path, pattern: str) -> str:
    """The path of an original file below the folder."""
    found = sorted(originals.rglob(pattern))
    if not found:
        sys.exit(f"error: no {pattern} below {originals}\n  expected: the sets' original files, see docs/data.md")
    return str(found[0])


def listed(config: Path, name: str) -> list[Any]:
    """The rows of one of a configuration's lists, each a name or a mapping; InputError if it has none."""
    if not config.is_file():
        raise InputError(f"no config file {str(config)!r}", expected="--config FILE with a YAML file, see configs/evaluate/")
    return rows_of(name, read_object(config).get(name, "recall" if name == "readers" else None), f"that of {CONFIG}")


def needed(config: Path) -> dict[str, TestSet]:
    """The sets of ``SETS`` that a configuration names, after those that they must not repeat."""
    data = {read_set(row).data for row in listed(config, "sets")}
    named = {name for name in SETS if f"runs/data/{name}" in data}
    against = {SETS[name].against for name in named}
    return {name: item for name, item in SETS.items() if name in named | against}


def prepare_arguments(name: str, item: TestSet, originals: Path) -> list[str]:
    """Arguments of ``memalpha prepare`` that make a set."""
    arguments = ["prepare", item.source, "--output", f"runs/data/{name}", "--seed", str(item.seed), "--model", MODEL]
    if item.pattern:
        arguments += ["--input", find(originals, item.pattern)]
    examples = find(originals, item.examples) if item.examples else ""
    for option in item.options:
        arguments += ["--option", option.format(examples=examples)]
    return [*arguments, "--check-against", f"runs/data/{item.against}", "--drop-leaks"] if item.against else arguments


def page(found: Published) -> str:
    """The Markdown page of a comparison: how it was made, then its tables."""
    from memalpha.evaluation.tables import markdown, reference_group

    environments = [part.environment for part in found.parts]
    runs = [run for environment in environments for run in (environment, *environment.get("continued", []))]
    began, ended = min(run["started"] for run in runs)[:10], max(run["started"] for run in runs)[:10]
    code = ", ".join(sorted({run["code"] for run in runs}))
    made_by = ", ".join(dict.fromkeys(_shown(environment["command"]) for environment in environments))
    newest, judge = environments[-1], next((part.false_accept for part in reversed(found.parts) if part.false_accept), None)
    packages = ", ".join(f"{name} {newest['packages'][name]}" for name in ("memalpha", "torch", "transformers", "peft"))
    lines = [
        "# All systems, one protocol",
        "",
        f"Made by {made_by} ({began}{'' if began == ended else f' to {ended}'}, {newest['processor']}, "
        f"{newest['cores']} cores; code {code}; {packages}). What each system is and where it departs from its "
        "source: [evaluation.md](evaluation.md). Every number, and the configuration: "
        "[results/comparison.json](results/comparison.json).",
        "",
        *markdown(found.summary, reference_group(found.summary), judge)[2:],
    ]
    return "\n".join(lines) + "\n"


def _shown(command: list[str]) -> str:
    """A command as one would give it."""
    own = Path(command[0]).name == Path(__file__).name
    return f"`{'python scripts/evaluate_all.py ORIGINALS' if own else ' '.join(command)}`"


def write_page(folder: Path, docs: Path) -> None:
    """Write the page and its record; sets that are on it and not in the evaluation stay as they are."""
    record = docs / "results" / "comparison.json"
    found = Published.from_folder(folder)
    found = Published.read(record).with_newer(found) if record.is_file() else found
    write_object(record, found.to_json())
    (docs / "comparison.md").write_text(page(found), encoding="utf-8")
    print(f"{docs / 'comparison.md'}")


def some_sets(config: Path, only: str, output_dir: Path) -> Path:
    """Write a configuration with some of its sets alone, beside the evaluation's folder."""
    sets = [(read_set(row).name, row) for row in listed(config, "sets")]
    names = [name for name, _ in sets]
    wanted = [name.strip() for name in only.split(",")]
    if unknown := [name for name in wanted if name not in names]:
        sys.exit(f"error: no set {unknown[0]!r} in {config}\n  expected: some of {', '.join(names)}")
    systems = []
    for row in (row if isinstance(row, dict) else {"kind": row} for row in listed(config, "systems")):
        given = read_system(row).sets  # none = all
        kept = [name for name in given if name in wanted]
        if kept or not given:
            systems.append({**row, "sets": kept} if kept else row)
    asked = [read_set(row).readers for name, row in sets if name in wanted]  # none = all
    readers = [row for row in listed(config, "readers") if not all(named and read_reader(row).name not in named for named in asked)]
    rows = {"sets": [row for name, row in sets if name in wanted], "systems": systems, "readers": readers}
    data = {**read_object(config), **rows}
    path = output_dir.with_name(f"{output_dir.name}.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


def main() -> int:
    """Do what the arguments say; what is wrong with them is one message, and 1."""
    try:
        return _main()
    except (MemAlphaError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _main() -> int:
    from memalpha.cli import run

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("originals", nargs="?", type=Path, help="folder of original files")
    parser.add_argument("--page-only", type=Path, metavar="FOLDER", help="write the page of an evaluation that is there")
    parser.add_argument("--record", nargs=2, metavar=("FOLDER", "FILE"), help="write down an evaluation that is there, no page")
    parser.add_argument("--config", default=CONFIG)
    parser.add_argument("--output_dir", default="runs/main")
    parser.add_argument("--only", default="", help="names of some sets of the configuration, with commas between them")
    args, rest = parser.parse_known_args()
    if args.record:
        write_object(Path(args.record[1]), Published.from_folder(args.record[0]).to_json())
        return 0
    if args.page_only:
        write_page(args.page_only, ROOT / "docs")
        return 0
    if args.originals is None or not args.originals.is_dir():
        parser.error(f"ORIGINALS is {args.originals}; expected: the folder of the sets' original files")
    config = some_sets(Path(args.config), args.only, Path(args.output_dir)) if args.only else Path(args.config)
    for name, item in needed(config).items():
        if not (ROOT / "runs" / "data" / name / "manifest.json").is_file() and run(prepare_arguments(name, item, args.originals)):
            return 1
    if code := run(["evaluate", "--config", str(config), "--output_dir", args.output_dir, *rest]):
        return code
    write_page(Path(args.output_dir), ROOT / "docs")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
