"""Makes the comparison of docs/comparison.md: prepares the sets that are not there yet, evaluates, writes the page.

    python scripts/evaluate_all.py ORIGINALS                       with configs/evaluate/main.yaml, into runs/main
    python scripts/evaluate_all.py ORIGINALS --readers recall      further arguments are options of memalpha evaluate
    python scripts/evaluate_all.py ORIGINALS --join PART ...       such as parts that other cores or GPUs have evaluated
    python scripts/evaluate_all.py --page-only runs/main           the page alone, from an evaluation that is there

Needs: a folder with the sets' original files (squad/, hotpotqa_train_100q.json, locomo_first2.json, trec/, csabstruct/; see
docs/data.md), and the adapters that the configuration names. Run again after an interruption, it goes on where it stopped.
Makes: runs/data/test-*, the evaluation's folder, docs/comparison.md and docs/results/comparison.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

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
    "test-dialogues-10x": TestSet("synthetic", seed=12, options=("n=16", "split=test", "n_chunks=30", "max_questions=40")),
    "test-dialogues-100x": TestSet(
        "synthetic", seed=13, options=("n=4", "split=test", "n_chunks=300", "people=12", "max_questions=60")
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


def prepare_arguments(name: str, item: TestSet, originals: Path) -> list[str]:
    """Arguments of ``memalpha prepare`` that make a set."""
    arguments = ["prepare", item.source, "--output", f"runs/data/{name}", "--seed", str(item.seed), "--model", MODEL]
    if item.pattern:
        arguments += ["--input", find(originals, item.pattern)]
    examples = find(originals, item.examples) if item.examples else ""
    for option in item.options:
        arguments += ["--option", option.format(examples=examples)]
    return [*arguments, "--check-against", f"runs/data/{item.against}", "--drop-leaks"] if item.against else arguments


def page(folder: Path) -> str:
    """The Markdown page of an evaluation: how it was made, then its tables."""
    from memalpha.runs import RunFolder

    environment = RunFolder(folder).origin()["environment"]
    parts = [environment, *environment.get("continued", [])]
    began, ended = min(part["started"] for part in parts)[:10], max(part["started"] for part in parts)[:10]
    code = ", ".join(sorted({part["code"] for part in parts}))
    command = environment["command"]
    own = Path(command[0]).name == Path(__file__).name
    made_by = "python scripts/evaluate_all.py ORIGINALS" if own else " ".join(command)
    table = (folder / "table.md").read_text(encoding="utf-8").removeprefix("# Evaluation\n")
    packages = ", ".join(f"{name} {environment['packages'][name]}" for name in ("memalpha", "torch", "transformers", "peft"))
    lines = [
        "# All systems, one protocol",
        "",
        f"Made by `{made_by}` ({began}{'' if began == ended else f' to {ended}'}, {environment['processor']}, "
        f"{environment['cores']} cores; code {code}; {packages}). What each system is and where it departs from its "
        "source: [evaluation.md](evaluation.md). Every number, and the configuration: "
        "[results/comparison.json](results/comparison.json).",
        "",
        "",
    ]
    return "\n".join(lines) + table.lstrip("\n")


def record(folder: Path) -> str:
    """Everything the page is made of, as JSON."""
    from memalpha.runs import RunFolder

    run = RunFolder(folder)
    parts = {**run.origin(), "inputs": run.read_json("inputs.json"), "summary": run.read_json("summary.json")}
    return json.dumps(parts, indent=1, ensure_ascii=False) + "\n"


def write_page(folder: Path, docs: Path) -> None:
    """Write the page and its record."""
    (docs / "results").mkdir(parents=True, exist_ok=True)
    (docs / "results" / "comparison.json").write_text(record(folder), encoding="utf-8")
    (docs / "comparison.md").write_text(page(folder), encoding="utf-8")
    print(f"{docs / 'comparison.md'}")


def main() -> int:
    from memalpha.cli import run

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("originals", nargs="?", type=Path, help="folder of original files")
    parser.add_argument("--page-only", type=Path, metavar="FOLDER", help="write the page of an evaluation that is there")
    parser.add_argument("--config", default=CONFIG)
    parser.add_argument("--output_dir", default="runs/main")
    args, rest = parser.parse_known_args()
    if args.page_only:
        write_page(args.page_only, ROOT / "docs")
        return 0
    if args.originals is None or not args.originals.is_dir():
        parser.error(f"ORIGINALS is {args.originals}; expected: the folder of the sets' original files")
    for name, item in SETS.items():
        if not (ROOT / "runs" / "data" / name / "manifest.json").is_file() and run(prepare_arguments(name, item, args.originals)):
            return 1
    if code := run(["evaluate", "--config", args.config, "--output_dir", args.output_dir, *rest]):
        return code
    write_page(Path(args.output_dir), ROOT / "docs")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
