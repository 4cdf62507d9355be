"""The first answer of a fresh process: load the shipped agent with its reader, add a text, ask.

Against the same with two models of transformers, one for the agent and one for its reader, or
against another checkout (``--against``). Time is all that the process takes, its imports included;
memory its largest resident set. Each reading is a process of its own.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
AGENT = "data/adapters/smollm2-135m-memory"
LOAD = """
from memalpha.use.agent import MemoryAgent
agent = MemoryAgent.load(sys.argv[1])
"""
LOAD_TWO = """
from pathlib import Path
from memalpha.models.agent import load_agent, own_reader
from memalpha.models.readers import trained_reader
from memalpha.qa.readers import ModelReader
from memalpha.use.agent import MemoryAgent
step, generator, *_ = load_agent(sys.argv[1])
folder = own_reader(Path(sys.argv[1]))
answering = folder and trained_reader(folder, keep_products=False)
reader = answering and ModelReader(answering, 512, step.encoder.count, own_model=True)
agent = MemoryAgent(step, generator, reader)
"""
USE = """
import resource, time
agent.add("Hi, I am Nora. I live in Porto and I work as a nurse. My cat is called Biscuit.")
agent.ask("Where does Nora live?")
print(time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def run(options: Any) -> dict[str, Any]:
    agent = nano_agent(Path(options.folder)) if options.quick else AGENT
    other = ("other checkout", LOAD) if options.against else ("two models", LOAD_TWO)
    codes = {"ours": (ROOT, LOAD), other[0]: (Path(options.against or ROOT).resolve(), other[1])}
    rounds = options.rounds or (1 if options.quick else 5)
    readings: dict[str, list[tuple[float, float, float]]] = {name: [] for name in codes}
    for _ in range(rounds):
        for name, (checkout, code) in codes.items():
            readings[name].append(reading(checkout, code, agent))
    rows = {name: row(each) for name, each in readings.items()}
    ours, theirs = rows.values()
    clock = "cpu_seconds" if options.clock == "cpu" else "seconds"
    return {
        "ratios": {
            "time": theirs[clock] / ours[clock],
            "memory": theirs["peak_mib"] / ours["peak_mib"],
        },
        "details": {
            "sizes": {"rounds": rounds},
            "table": [{"variant": name, **row} for name, row in rows.items()],
        },
    }


def reading(checkout: Path, code: str, agent: str) -> tuple[float, float, float]:
    """(wall seconds, processor seconds, peak MiB) of a process; a relative agent is the
    checkout's own.
    """
    paths = {"PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1"}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}{USE}", agent],
        cwd=checkout,
        env={**os.environ, **paths},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    wall = time.perf_counter() - began
    cpu, kib = map(float, done.stdout.split()[-2:])
    return wall, cpu, kib / 1024


def row(readings: list[tuple[float, float, float]]) -> Mapping[str, float]:
    wall, cpu, peak = map(statistics.median, zip(*readings, strict=True))
    return {"seconds": wall, "cpu_seconds": cpu, "peak_mib": peak}


def nano_agent(folder: Path) -> str:
    """An untrained agent without a reader."""
    from memalpha.agent.config import AgentConfig
    from memalpha.models.registry import build_nano, toy_texts

    build_nano(folder / "agent", toy_texts())
    config = AgentConfig(
        codec="compact", max_chunk_tokens=400, view_tokens=200, max_completion_length=8
    )
    config.save(folder / "agent")
    return str(folder / "agent")
