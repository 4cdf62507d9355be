"""Prepare synthetic dialogues: facts, later changes, retractions, chit-chat, and questions about what holds at the end.

    python scripts/prepare_synthetic.py data/synthetic-train --n 500 --split train --seed 1
    python scripts/prepare_synthetic.py data/synthetic-test --n 100 --split test --seed 1 --preset medium

Needs: nothing. Makes: OUTPUT/instances.jsonl and OUTPUT/manifest.json. Train and test share no name and no value.
The same as `memalpha prepare synthetic`; that command takes every option of memalpha.data.registry.SyntheticOptions.
"""

import argparse
import sys

from memalpha.data.prepare import prepare
from memalpha.data.registry import SyntheticOptions
from memalpha.errors import MemAlphaError


def main() -> int:
    default = SyntheticOptions()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", help="folder to make")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=default.n, help="how many instances")
    parser.add_argument("--preset", default=default.preset, help="small, medium or long")
    parser.add_argument("--split", default=default.split, help="train or test")
    parser.add_argument("--templates", default=default.templates, help="train, held_out or all")
    parser.add_argument("--max-questions", type=int, help="of an instance; 0 = all")
    parser.add_argument("--overwrite", action="store_true", help="replace a folder made before")
    args = vars(parser.parse_args())
    fixed = {key: args.pop(key) for key in ("output", "seed", "overwrite")}
    try:
        manifest = prepare("synthetic", None, **fixed, options=args)
    except MemAlphaError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{manifest.instances} instances, {manifest.chunks} chunks, {manifest.questions} questions: {fixed['output']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
