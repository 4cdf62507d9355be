"""Prepare every data set whose original files lie in one folder.

    python scripts/prepare_all.py originals data/prepared --seed 1
    python scripts/prepare_all.py originals data/prepared --only locomo trec_fine --model HuggingFaceTB/SmolLM2-135M-Instruct

Needs: a folder with the files as their sets publish them, anywhere below it, under the names of `INPUTS`. Makes: OUTPUT/NAME-PART
for each that is found, with its manifest; of several files for one part the first is read (of bAbI all of the first folder), and a
note names those left. Training parts are prepared last, and what repeats a question or a context of the same
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
    """One set's input: its source, the part it is, the names it goes by, and which part gives the examples of labels.

    ``folder``: whether the folder of such a file is the input, and the part its option ``split``.
    """

    source: str
    part: str
    patterns: tuple[str, ...]
    examples: tuple[str, ...] = ()
    folder: bool = False


def tables(*stems: str) -> tuple[str, ...]:
    """The names of files of rows that begin with one of the stems."""
    return tuple(f"{stem}*.{kind}" for stem in stems for kind in ("parquet", "jsonl", "json"))


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
    Input("babi", "test", ("qa*_test.txt", "qa*_test.txt.gz"), folder=True),
    Input("msc", "test", ("session_5/test.txt", "msc*test*.jsonl", "msc_self_instruct*.jsonl")),
    *(
        Input("memoryagentbench", split.lower(), tables(split))
        for split in ("Accurate_Retrieval", "Test_Time_Learning", "Long_Range_Understanding", "Conflict_Resolution")
    ),
    Input("memalpha", "test", tables("*emalpha/**/test", "memalpha_test")),
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
    Input("babi", "train", ("qa*_train.txt", "qa*_train.txt.gz"), folder=True),
    Input("msc", "train", ("session_5/train.txt", "session_4/train.txt", "msc*train*.jsonl", "msc.jsonl")),
    Input("memalpha", "train", tables("*emalpha/**/train", "memalpha_train")),
)


def find_all(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    """The paths below the folder that match a pattern, in the order of the patterns."""
    return list(dict.fromkeys(path for pattern in patterns for path in sorted(folder.rglob(pattern))))


def find(folder: Path, patterns: tuple[str, ...]) -> Path | None:
    """The first path below the folder that matches."""
    return next(iter(find_all(folder, patterns)), None)


def input_of(item: Input, folder: Path) -> Path | None:
    """What to read of a set's part, None if nothing of it is there; what is left of it is named."""
    found = find_all(folder, item.patterns)
    first, *left = list(dict.fromkeys(path.parent for path in found) if item.folder else found) or [None]
    if left:
        print(f"note: {item.source}-{item.part} reads {first} and leaves {', '.join(map(str, left))}", file=sys.stderr)
    return first


def options_of(item: Input, folder: Path) -> dict[str, str]:
    """Examples of a test set's labels come from the training set; a training set leaves out the test set's sentences."""
    if item.folder:
        return {"split": item.part}
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
    try:
        count = tokenizer_counter(str(resolve_model(args.model))) if args.model else count_words_and_signs
    except MemAlphaError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    asked = [item for item in INPUTS if not args.only or item.source in args.only]
    wanted = [(item, path) for item in asked if (path := input_of(item, args.input)) is not None]
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
