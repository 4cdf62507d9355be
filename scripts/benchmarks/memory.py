"""A memory of many messages: what importing it, keeping it and asking it cost.

The messages are made, of words by a power law, with one fact in each ``EVERY`` that a question asks
for. They are imported with their index. Then a fresh process asks a first question (its imports
included) and others, once by the index on disk and once by a search of the memory in the process.
The same messages are kept in ``other_memories``, as far as their packages are installed and there
are at most ``--beside`` messages, since they embed every line; ``left_out`` says which are not.
``found``: share of questions whose fact is among the first three passages. Ratios: processor time
of import and questions, and memory of the questions, of the others over those by the index.
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

from benchmarks.other_memories import NEEDS, installed_versions, missing_packages

ROOT = Path(__file__).parents[2]
EVERY = 50  # messages with one fact among them
WORDS = 20_000  # different ones
LINES, LENGTH = 8, 20  # of a message, and words of a line
IMPORT = """
from pathlib import Path
export, folder, way = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
if way == "memalpha":
    from memalpha.cli import run
    run(["import", str(export), "--store", str(folder / "memory.db"), "--user", "me"])
else:
    from benchmarks.other_memories import keep_messages
    keep_messages(way, export, folder)
print(json.dumps({"cpu_seconds": time.process_time()}))
"""
ASK = """
import resource
from pathlib import Path
folder, way = Path(sys.argv[1]), sys.argv[2]
if way in ("index", "process"):
    from memalpha.use import store
    if way == "process":
        store.INDEXED = 10**12
    from memalpha.use.agent import MemoryAgent
    agent = MemoryAgent.without_model(store=folder / "memory.db")
    def search(question, k):
        return [hit.entry.content for hit in agent.search(question, k, namespace="me")]
else:
    from benchmarks.other_memories import open_search
    search = open_search(way, folder)
seconds, found = [], 0
for question, answer in json.loads(sys.stdin.read()):
    began = time.process_time()
    texts = search(question, 3)
    seconds.append(time.process_time() - began)
    found += any(answer in text for text in texts)
    if len(seconds) == 1:
        first = time.process_time()
most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([first, most, seconds[1:], found]))
"""


def run(options: Any) -> dict[str, Any]:
    sizes = options.messages or ([200] if options.quick else [5_000, 50_000])
    missing = {name: missing_packages(name) for name in NEEDS}
    left_out = [f"{name}: not installed ({', '.join(of)})" for name, of in missing.items() if of]
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    for size in sizes:
        folder = Path(options.folder) / str(size)
        folder.mkdir()
        export = folder / "messages.json"
        questions = write_export(export, size)[: 5 if options.quick else 50]
        stores = {"memalpha": ["index", "process"]}
        if size <= options.beside:
            stores |= {name: [name] for name, of in missing.items() if not of}
        else:
            left_out += [f"{name}: more than {options.beside} messages ({size})" for name in NEEDS]
        of_size = [
            {"variant": way, **row}
            for name, ways in stores.items()
            for way, row in measured(export, folder / name, size, ways, questions).items()
        ]
        ours, *others = of_size
        for column in ("import_s", "first_s", "peak_mib", "p50_ms"):
            for row in others:
                ratios[f"{column}_{row['variant']}_{size}"] = row[column] / ours[column]
        rows += of_size
    details = {
        "sizes": {"messages": sizes},
        "left_out": left_out,
        "others": installed_versions(),
        "table": rows,
    }
    return {"ratios": ratios, "details": details}


def measured(
    export: Path, folder: Path, size: int, ways: list[str], questions: list[tuple[str, str]]
) -> dict[str, dict[str, float]]:
    """Keep the messages in a folder, which is named as the memory; a row for each way to search
    it.
    """
    folder.mkdir()
    taken = reading(IMPORT, [export, folder, folder.name], "")
    on_disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    shared = {
        "messages": size,
        "import_s": taken["cpu_seconds"],
        "messages_a_second": size / taken["cpu_seconds"],
        "store_over_text": on_disk / export.stat().st_size,
    }
    return {way: shared | answers(folder, way, questions) for way in ways}


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


def answers(folder: Path, way: str, questions: list[tuple[str, str]]) -> dict[str, float]:
    """What a fresh process needs for questions, searching one way."""
    first, most, others, found = reading(ASK, [folder, way], json.dumps(questions))
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
    paths = os.pathsep.join([str(ROOT), str(ROOT / "scripts")])
    offline: Mapping[str, str] = {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys, time\n{code}", *map(str, arguments)],
        env={**os.environ, **offline},
        input=given,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])
