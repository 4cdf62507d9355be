"""Prepare instances from SQuAD 1.1 or 2.0.

    python scripts/prepare_squad.py train-v2.0.json data/squad-train --seed 1
    python scripts/prepare_squad.py train-v2.0.json data/squad-small --chunk-tokens 80 160 --chunks 3 5 --max-answer-tokens 4 \\
        --tokenizer HuggingFaceTB/SmolLM2-135M-Instruct

Needs: the original JSON file (or the flattened list, or `rajpurkar/squad_v2` where the Hub can be reached).
Makes: OUTPUT/instances.jsonl and OUTPUT/manifest.json. Lengths are in words, or in tokens of --tokenizer.
The same as `memalpha prepare squad`, with SQuAD's options spelled out.
"""

import argparse
import sys

from memalpha.data.counting import count_words_and_signs, tokenizer_counter
from memalpha.data.prepare import prepare
from memalpha.data.squad import SquadOptions
from memalpha.errors import MemAlphaError


def main() -> int:
    default = SquadOptions()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", help="SQuAD file, or a name on the Hub")
    parser.add_argument("output", help="folder to make")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chunk-tokens", type=int, nargs=2, metavar=("LOW", "HIGH"), default=default.chunk_tokens)
    parser.add_argument("--chunks", type=int, nargs=2, metavar=("LOW", "HIGH"), default=default.chunks, help="of an instance")
    parser.add_argument("--max-answer-tokens", type=int, default=default.max_answer_tokens, help="published: 4; 0 = off")
    parser.add_argument("--max-questions", type=int, default=default.max_questions, help="of an instance; 0 = all")
    parser.add_argument("--max-instances", type=int, default=default.max_instances, help="0 = all")
    parser.add_argument("--shuffle", action="store_true", help="put the paragraphs in random order first")
    parser.add_argument("--split", default=default.split, help="of a data set on the Hub")
    parser.add_argument("--tokenizer", help="folder or Hub name; lengths are in its tokens instead of words")
    parser.add_argument("--overwrite", action="store_true", help="replace a folder made before")
    args = vars(parser.parse_args())
    tokenizer, fixed = args.pop("tokenizer"), {key: args.pop(key) for key in ("input", "output", "seed", "overwrite")}
    try:
        manifest = prepare(
            "squad",
            **fixed,
            options=args,
            count_tokens=tokenizer_counter(tokenizer) if tokenizer else count_words_and_signs,
            token_counter=tokenizer or "words",
        )
    except MemAlphaError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(
        f"{manifest.instances} instances, {manifest.questions} questions, skipped {manifest.skipped or 'none'}: {fixed['output']}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
