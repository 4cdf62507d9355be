"""Time and peak memory of preparing a data set.

    python scripts/bench_prepare.py squad --input train-v1.1.json            # an original file
    python scripts/bench_prepare.py squad --megabytes 1000                   # a made-up file of that size, in the published form
    python scripts/bench_prepare.py longmemeval memalpha --megabytes 1000    # one after another, each in a process of its own

Needs: nothing (a made-up input) or a file. Makes: nothing that stays; made-up inputs and outputs lie in a temporary folder
(TMPDIR), which needs about three times the input's size. Prints one line of JSON a source: seconds of wall clock, questions,
questions a second, bytes of input, and the peak resident memory of the process (``ru_maxrss``), also without what was resident
before the work began (Python and the libraries).
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SOURCES = ("squad", "hotpotqa", "longmemeval", "memalpha", "trec_coarse")
_WORDS = [f"{start}{middle}{end}" for start in "bdgklmnprst" for middle in "aeiou" for end in ("n", "r", "l", "st", "ma", "to")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", help=f"made-up inputs there are for {', '.join(SOURCES)}")
    parser.add_argument("--input", help="original file; made up otherwise")
    parser.add_argument("--megabytes", type=int, default=1000, help="size of a made-up input")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.sources[0], Path(args.input))), flush=True)
        return 0
    for source in args.sources:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(args.input) if args.input else make_up(source, Path(folder), args.megabytes * 1_000_000)
            command = [sys.executable, __file__, source, "--input", str(path), "--child"]
            subprocess.run(command, check=True)  # a process of its own: peak memory is that of this source alone
    return 0


def measure(source: str, path: Path) -> dict[str, object]:
    """Prepare and return what it took."""
    import datasets  # noqa: F401  # resident before the work begins
    import pyarrow.parquet  # noqa: F401

    from memalpha.data.prepare import prepare

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        manifest = prepare(source, path, Path(folder) / "out", seed=1)
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "source": source,
        "bytes": path.stat().st_size,
        "asked": manifest.asked,
        "questions": manifest.questions,
        "instances": manifest.instances,
        "seconds": round(seconds, 1),
        "questions_a_second": round(manifest.asked / seconds),
        "peak_mib": round(peak),
        "peak_mib_of_the_work": round(peak - before),
    }


# ------------------------------------------------------------------------------------------------ made-up inputs
def make_up(source: str, folder: Path, size: int) -> Path:
    """Write a file of about ``size`` bytes in the published form of a set."""
    rng = random.Random(f"{source}:{size}")
    if source == "trec_coarse":
        path = folder / "train.txt"
        _write(path, (f"{rng.choice('ABCDEF')}:{rng.randrange(9)} {_text(rng, 12)} ?\n" for _ in _forever()), size, "", "")
        return path
    if source not in _ROWS:
        raise SystemExit(f"no made-up input for {source!r}; give one with --input, or choose among {', '.join(SOURCES)}")
    path, rows = folder / ("rows.jsonl" if source == "memalpha" else "rows.json"), (_ROWS[source](rng, n) for n in _forever())
    lines = (json.dumps(row) + "\n" for row in rows)
    if source == "memalpha":
        _write(path, lines, size, "", "")
    else:
        _write(path, (("," if n else "") + line for n, line in enumerate(lines)), size, "[", "]")
    return path


def _write(path: Path, pieces: Iterator[str], size: int, first: str, last: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        written = file.write(first)
        while written < size:
            written += file.write(next(pieces))
        file.write(last)


def _forever() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(_WORDS, k=words))


def _squad(rng: random.Random, number: int) -> dict[str, object]:
    context = f"Paragraph {number // 3}. {_text(random.Random(number // 3), 120)}."
    return {"context": context, "question": f"What is {number} {_text(rng, 6)}?", "answer": context.split()[rng.randrange(120)]}


def _hotpotqa(rng: random.Random, number: int) -> dict[str, object]:
    titles = [f"Title {number} {n}" for n in range(10)]
    return {
        "_id": str(number),
        "question": f"{_text(rng, 12)}?",
        "answer": _text(rng, 2),
        "supporting_facts": [[titles[2], 0], [titles[7], 1]],
        "context": [[title, [_text(rng, 20) + "." for _ in range(4)]] for title in titles],
        "type": "bridge",
        "level": "easy",
    }


def _longmemeval(rng: random.Random, number: int) -> dict[str, object]:
    session = [{"role": role, "content": _text(rng, 150)} for role in ("user", "assistant") * 4]
    return {
        "question_id": str(number),
        "question_type": "multi-session",
        "question": f"{_text(rng, 10)}?",
        "answer": _text(rng, 3),
        "question_date": "2023/06/01 (Thu) 00:58",
        "haystack_dates": [f"2023/05/{1 + n % 28:02d} (Mon) 10:00" for n in range(50)],
        "haystack_session_ids": [f"s{n}" for n in range(50)],
        "haystack_sessions": [session] * 50,
        "answer_session_ids": ["s7"],
    }


def _memalpha(rng: random.Random, number: int) -> dict[str, object]:
    asked = [{"question": f"{_text(rng, 10)}?", "answer": _text(rng, 2)} for _ in range(50)]
    return {
        "instance_id": str(number),
        "prompt": "",
        "chunks": json.dumps([_text(rng, 1000) for _ in range(10)]),
        "questions_and_answers": json.dumps(asked),
        "data_source": "squad",
        "metadata": "{}",
        "num_chunks": 10,
        "num_questions": 50,
    }


_ROWS: dict[str, Callable[[random.Random, int], dict[str, object]]] = {
    "squad": _squad,
    "hotpotqa": _hotpotqa,
    "longmemeval": _longmemeval,
    "memalpha": _memalpha,
}


if __name__ == "__main__":
    sys.exit(main())
