"""Time and peak memory of preparing a data set: an original file (``--input``), or a made-up one of ``--megabytes`` in its form.

The peak resident memory (``ru_maxrss``) is that of the process; it is shown also without what was resident before the work began
(Python and the libraries). Made-up files lie in a temporary folder (TMPDIR), which needs three times their size.
"""

from __future__ import annotations

import json
import random
import resource
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

_WORDS = [f"{start}{middle}{end}" for start in "bdgklmnprst" for middle in "aeiou" for end in ("n", "r", "l", "st", "ma", "to")]


def add_arguments(parser: Any) -> None:
    parser.add_argument("--source", default="squad", help=f"made-up inputs there are for {', '.join(_ROWS)}")
    parser.add_argument("--input", help="original file; made up otherwise")
    parser.add_argument("--megabytes", type=int, default=1000, help="size of a made-up input (default 1000)")


def run(options: Any) -> dict[str, Any]:
    """Prepare and return what it took."""
    import datasets  # noqa: F401  # resident before the work begins
    import pyarrow.parquet  # noqa: F401

    from memalpha.data.prepare import prepare

    size = 1 if options.quick else options.megabytes
    path = Path(options.input) if options.input else make_up(options.source, Path(options.folder), size * 1_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began = time.perf_counter()
    manifest = prepare(options.source, path, Path(options.folder) / "out", seed=1)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    row = {
        "source": options.source,
        "bytes": path.stat().st_size,
        "asked": manifest.asked,
        "questions": manifest.questions,
        "instances": manifest.instances,
        "seconds": seconds,
        "questions_s": manifest.asked / seconds,
        "peak_mib": round(peak),
        "peak_mib_of_the_work": round(peak - before),
    }
    return {
        "name": "prepare",
        "ratios": {"questions_s": row["questions_s"]},
        "details": {"sizes": {"bytes": row["bytes"]}, "table": [row]},
    }


# ------------------------------------------------------------------------------------------------ made-up inputs
def make_up(source: str, folder: Path, size: int) -> Path:
    """Write a file of about ``size`` bytes in the published form of a set: one row a line, or one JSON list."""
    if source not in _ROWS:
        raise SystemExit(f"no made-up input for {source!r}; give one with --input, or choose among {', '.join(_ROWS)}")
    rng, path = (
        random.Random(f"{source}:{size}"),
        folder / {"trec_coarse": "train.txt", "memalpha": "rows.jsonl"}.get(source, "rows.json"),
    )
    lines = path.suffix != ".json"
    with path.open("w", encoding="utf-8") as file:
        written = file.write("" if lines else "[")
        for number in count():
            if written >= size:
                break
            row = _ROWS[source](rng, number)
            written += file.write(("" if lines or not number else ",") + (row if isinstance(row, str) else json.dumps(row)) + "\n")
        file.write("" if lines else "]")
    return path


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(_WORDS, k=words))


def _squad(rng: random.Random, number: int) -> Any:
    context = f"Paragraph {number // 3}. {_text(random.Random(number // 3), 120)}."
    return {"context": context, "question": f"What is {number} {_text(rng, 6)}?", "answer": context.split()[rng.randrange(120)]}


def _hotpotqa(rng: random.Random, number: int) -> Any:
    titles = [f"Title {number} {n}" for n in range(10)]
    return {
        "_id": str(number), "question": f"{_text(rng, 12)}?", "answer": _text(rng, 2), "type": "bridge", "level": "easy",
        "supporting_facts": [[titles[2], 0], [titles[7], 1]],
        "context": [[title, [_text(rng, 20) + "." for _ in range(4)]] for title in titles],
    }  # fmt: skip


def _longmemeval(rng: random.Random, number: int) -> Any:
    session = [{"role": role, "content": _text(rng, 150)} for role in ("user", "assistant") * 4]
    return {
        "question_id": str(number), "question_type": "multi-session", "question": f"{_text(rng, 10)}?", "answer": _text(rng, 3),
        "question_date": "2023/06/01 (Thu) 00:58",
        "haystack_dates": [f"2023/05/{1 + n % 28:02d} (Mon) 10:00" for n in range(50)],
        "haystack_session_ids": [f"s{n}" for n in range(50)],
        "haystack_sessions": [session] * 50,
        "answer_session_ids": ["s7"],
    }  # fmt: skip


def _memalpha(rng: random.Random, number: int) -> Any:
    asked = [{"question": f"{_text(rng, 10)}?", "answer": _text(rng, 2)} for _ in range(50)]
    chunks = json.dumps([_text(rng, 1000) for _ in range(10)])
    return {
        "instance_id": str(number), "prompt": "", "chunks": chunks, "questions_and_answers": json.dumps(asked),
        "data_source": "squad", "metadata": "{}", "num_chunks": 10, "num_questions": 50,
    }  # fmt: skip


def _trec(rng: random.Random, number: int) -> Any:
    return f"{rng.choice('ABCDEF')}:{rng.randrange(9)} {_text(rng, 12)} ?"


_ROWS: dict[str, Callable[[random.Random, int], Any]] = {
    "squad": _squad, "hotpotqa": _hotpotqa, "longmemeval": _longmemeval, "memalpha": _memalpha, "trec_coarse": _trec,
}  # fmt: skip
