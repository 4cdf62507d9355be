"""A memory of many messages: what importing it, keeping it and asking it cost.

The messages are made, of words by a power law, with one fact in each ``EVERY`` that a question asks
for. They are imported with their index. Then a fresh process asks a first question (its imports
included) and others, once by the index on disk and once by a search of the memory in the process.
``found``: share of questions whose fact is among the first three passages. Ratios: processor time
of the first question, and its memory, in the process over those by the index.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
EVERY = 50  # messages with one fact among them
WORDS = 20_000  # different ones
LINES, LENGTH = 8, 20  # of a message, and words of a line
IMPORT = """
from memalpha.cli import run
run(["import", sys.argv[1], "--store", sys.argv[2], "--user", "me"])
print(json.dumps({"cpu_seconds": time.process_time()}))
"""
ASK = """
import json, resource, sys, time
from memalpha.use import store
if sys.argv[3] == "process":
    store.INDEXED = 10**12
from memalpha.use.agent import MemoryAgent
agent = MemoryAgent.without_model(store=sys.argv[2])
seconds, found = [], 0
for question, answer in json.loads(sys.stdin.read()):
    began = time.process_time()
    hits = agent.search(question, 3, namespace="me")
    seconds.append(time.process_time() - began)
    found += any(answer in hit.entry.content for hit in hits)
    if len(seconds) == 1:
        first = time.process_time()
most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([first, most, seconds[1:], found]))
"""


def run(options: Any) -> dict[str, Any]:
    sizes = options.messages or ([200] if options.quick else [5_000, 50_000])
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    for size in sizes:
        folder = Path(options.folder) / str(size)
        folder.mkdir()
        export, store = folder / "messages.json", folder / "memory.db"
        questions = write_export(export, size)
        taken = reading(IMPORT, [export, store], "")
        index = store.with_name(f"{store.name}.index")
        on_disk = sum(path.stat().st_size for path in (store, *index.rglob("*")) if path.is_file())
        shared = {
            "messages": size,
            "import_s": taken["cpu_seconds"],
            "messages_a_second": size / taken["cpu_seconds"],
            "store_over_text": on_disk / export.stat().st_size,
        }
        found = {
            way: answers(store, way, questions[: 5 if options.quick else 50])
            for way in ("index", "process")
        }
        rows += [{"variant": way, **shared, **row} for way, row in found.items()]
        for name in ("first_s", "peak_mib"):
            ratios[f"{name}_{size}"] = found["process"][name] / found["index"][name]
    return {"ratios": ratios, "details": {"sizes": {"messages": sizes}, "table": rows}}


def write_export(path: Path, size: int) -> list[tuple[str, str]]:
    """Write messages; return questions with a text that the right passage has."""
    draw = np.random.default_rng(0)
    share = 1 / np.arange(1, WORDS + 1)
    words = np.array([f"w{number}" for number in range(WORDS)])
    questions = []
    messages = []
    for number in range(size):
        drawn = draw.choice(words, (LINES, LENGTH), p=share / share.sum())
        lines = [" ".join(line) for line in drawn]
        if number % EVERY == 0:
            code = f"code{number}"
            lines[number % LINES] = (
                f"The number of my locker at the station of town{number} is {code}."
            )
            questions.append((f"Which number has my locker in town{number}?", code))
        role = "user" if number % 2 == 0 else "assistant"
        messages.append({"role": role, "content": "\n\n".join(lines)})
    path.write_text(json.dumps(messages))
    return questions


def answers(store: Path, way: str, questions: list[tuple[str, str]]) -> dict[str, float]:
    """What a fresh process needs for questions, searching one way."""
    first, most, others, found = reading(ASK, ["", store, way], json.dumps(questions))
    ordered = sorted(others)
    return {
        "first_s": first,
        "peak_mib": most / 1024,
        "p50_ms": 1000 * statistics.median(ordered),
        "p95_ms": 1000 * ordered[int(0.95 * (len(ordered) - 1))],
        "found": found / len(questions),
    }


def reading(code: str, arguments: list[Any], given: str) -> Any:
    """The last line of what a fresh process prints, as JSON."""
    paths: Mapping[str, str] = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys, time\n{code}", *map(str, arguments)],
        env={**os.environ, **paths},
        input=given,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])
