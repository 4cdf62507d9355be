"""Prepare every data set whose original files lie in one folder.

    python scripts/prepare_all.py originals data/prepared --seed 1
    python scripts/prepare_all.py originals data/prepared --only locomo trec_fine --model HuggingFaceTB/SmolLM2-135M-Instruct

Needs: a folder with the files as their sets publish them, anywhere below it, under the names of `INPUTS`. Makes: OUTPUT/NAME-PART
for each that is found, with its manifest. Training parts are prepared last, and what repeats a question or a context of the same
set's evaluation part is left out of them and counted (`repeats a checked set`; of labelled sentences, `held out`).
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

from memalpha.data.counting import count_words_and_signs, tokenizer_counter
from memalpha.data.prepare import prepare
from memalpha.errors import MemAlphaError
from memalpha.models import resolve_model


class Input(NamedTuple):
    """One set's input: its source, the part it is, the names it goes by, and which part gives the examples of labels."""

    source: str
    part: str
    patterns: tuple[str, ...]
    examples: tuple[str, ...] = ()


INPUTS = (
    Input("squad", "test", ("squad/dev*.json", "dev-v*.json")),
    Input("hotpotqa", "test", ("hotpot_dev*.json",)),
    Input("musique", "test", ("musique*dev*.jsonl",)),
    Input("locomo", "test", ("locomo*.json",)),
    Input("longmemeval", "s", ("longmemeval_s*.json", "lme_s*.json")),
    Input("longmemeval", "m", ("longmemeval_m*.json",)),
    Input("longmemeval", "oracle", ("longmemeval_oracle*.json", "lme_oracle*.json")),
    Input("perltqa", "test", ("perltqa*.json",)),
    Input("qmsum", "test", ("qmsum/*test*.jsonl", "qmsum/*test*.jsonl.gz")),
    Input("booksum", "test", ("booksum*test*.jsonl", "booksum*test*.csv")),
    Input("trec_coarse", "test", ("trec/test.txt", "TREC_10.label"), ("trec/train.txt", "train_5500.label")),
    Input("trec_fine", "test", ("trec/test.txt", "TREC_10.label"), ("trec/train.txt", "train_5500.label")),
    Input("banking77", "test", ("banking77/test.csv",), ("banking77/train.csv",)),
    Input("hwu64", "test", ("*hwu64/test",), ("*hwu64/train",)),
    Input("pubmed_rct", "test", ("*PubMed*/test.txt",), ("*PubMed*/train.txt",)),
    Input("csabstruct", "test", ("csabstruct/test.jsonl",), ("csabstruct/train.jsonl",)),
    Input("babi", "test", ("qa*_test.txt",)),
    Input("squad", "train", ("squad/train*.json", "train-v*.json")),
    Input("hotpotqa", "train", ("hotpot*train*.json",)),
    Input("musique", "train", ("musique*train*.jsonl",)),
    Input("qmsum", "train", ("qmsum/*train*.jsonl", "qmsum/*train*.jsonl.gz")),
    Input("booksum", "train", ("booksum*train*.jsonl", "booksum*train*.csv")),
    Input("trec_coarse", "train", ("trec/train.txt", "train_5500.label")),
    Input("trec_fine", "train", ("trec/train.txt", "train_5500.label")),
    Input("banking77", "train", ("banking77/train.csv",)),
    Input("clinc150", "train", ("data_full.json",)),
    Input("hwu64", "train", ("*hwu64/train",)),
    Input("pubmed_rct", "train", ("*PubMed*/train.txt",)),
    Input("csabstruct", "train", ("csabstruct/train.jsonl",)),
    Input("babi", "train", ("qa*_train.txt",)),
    Input("msc", "train", ("session_5/*.txt", "msc*.jsonl")),
)


def find(folder: Path, patterns: tuple[str, ...]) -> Path | None:
    """The first path below the folder that matches."""
    return next((path for pattern in patterns for path in sorted(folder.rglob(pattern))), None)


def options_of(item: Input, folder: Path) -> dict[str, str]:
    """Examples of a test set's labels come from the training set; a training set leaves out the test set's sentences."""
    examples = find(folder, item.examples) if item.examples else None
    held_out = [find(folder, test.patterns) for test in INPUTS if test.source == item.source and test.examples]
    if item.part == "train" and held_out and held_out[0] is not None:
        return {"held_out": str(held_out[0])}
    return {"examples": str(examples)} if examples else {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", type=Path, help="folder of original files")
    parser.add_argument("output", type=Path, help="folder to make the prepared sets in")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", metavar="SOURCE", help="prepare these sources alone")
    parser.add_argument("--model", help="count tokens with this model's tokenizer instead of words")
    parser.add_argument("--overwrite", action="store_true", help="replace folders prepared before")
    args = parser.parse_args()
    count = tokenizer_counter(str(resolve_model(args.model))) if args.model else count_words_and_signs
    found = [(item, path) for item in INPUTS if (path := find(args.input, item.patterns)) is not None]
    wanted = [(item, path) for item, path in found if not args.only or item.source in args.only]
    if not wanted:
        print(f"error: no original file of any set below {args.input}", file=sys.stderr)
        return 2
    refused = 0
    for item, path in wanted:
        output = args.output / f"{item.source}-{item.part}"
        options = options_of(item, args.input)
        try:
            manifest = prepare(
                item.source,
                path,
                output,
                seed=args.seed,
                options=options,
                count_tokens=count,
                token_counter=args.model or "words",
                overwrite=args.overwrite,
                check_against=[args.output / f"{item.source}-test"]
                if item.part == "train" and (args.output / f"{item.source}-test").exists()
                else [],
                drop_leaks=True,
            )
        except MemAlphaError as error:
            refused += 1
            print(f"refused: {item.source}-{item.part}: {error}", file=sys.stderr)
            continue
        print(f"{output}: {manifest.instances} instances, {manifest.questions} questions, skipped {manifest.skipped or 'none'}")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
