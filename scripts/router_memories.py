"""Measure a learned section router on real memories: nine categories, held-out dialogues, three seeds.

    OMP_NUM_THREADS=1 python scripts/router_memories.py            writes docs/results/router_memories.json

Every setting trains on 30 dialogues of the train split (questions answered from their memories) and measures on 12 of the test
split, which share no name and no value with them. Ways to choose the sections of a question: all of them; FAISS layer 1 (centroids
and descriptions) keeping 1, 2 or 3; the learned router; an oracle that has seen the answers. Layer 2, k and reader are the same for
all. Settings that the file holds already are not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from memalpha.memory.memory import Memory
from memalpha.protocols import Embedder
from memalpha.retrieval import RetrievalConfig, RetrievalMode
from memalpha.retrieval.dense import LearnedSectionRouter
from memalpha.retrieval.embedders import make_embedder
from memalpha.retrieval.two_layer import Router, TwoLayerRetriever
from memalpha.routing.learner import MAPPO
from memalpha.routing.run import fit, load_config, make_learner
from memalpha.routing.sections import SectionOptions, Sections, SectionTask
from memalpha.runs import environment

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results" / "router_memories.json"
CONFIG = ROOT / "configs" / "router" / "sections_mappo.yaml"
DENSE = SectionOptions(instances=30, wording="verbatim", mode=RetrievalMode.DENSE, k=1)
KNOWN, UNSEEN = ("city", "job", "food", "sport", "car", "pet"), ("colour", "instrument", "language", "drink", "hobby")
SETTINGS: dict[str, tuple[SectionOptions, SectionOptions]] = {
    "dense, k = 1": (DENSE, DENSE),
    "lexical, k = 3": (replace(DENSE, mode=RetrievalMode.LEXICAL, k=3), replace(DENSE, mode=RetrievalMode.LEXICAL, k=3)),
    "dense, k = 1, attributes never asked in training": (replace(DENSE, only=KNOWN), replace(DENSE, only=UNSEEN)),
}


class FaissSections:
    """FAISS layer 1 in front of any layer 2."""

    def __init__(self, kept: int, embedder: Embedder) -> None:
        self._config = RetrievalConfig(retrieval=RetrievalMode.DENSE, sections_kept=kept)
        self._embedder = embedder
        self._retrievers: dict[int, TwoLayerRetriever] = {}

    def rank(self, query: str, memory: Memory) -> list[str]:
        if id(memory) not in self._retrievers:
            self._retrievers[id(memory)] = TwoLayerRetriever(memory, self._config, embedder=self._embedder)
        return self._retrievers[id(memory)].route(query)


def trained(task: SectionTask, embedder: Embedder, seed: int) -> LearnedSectionRouter:
    config = load_config(CONFIG, ["--seed", str(seed)])
    learner = make_learner(config, task.shape)
    assert isinstance(learner, MAPPO)
    for updates, row in fit(learner, task, config.run):
        if updates % 5 == 0:
            print(f"  seed {seed}, update {updates} of {config.run.updates}: reward {row['reward']:.3f}", flush=True)
    return LearnedSectionRouter([agent.policy for agent in learner.agents], task.routes(), embedder)


def run(name: str, seeds: list[int], embedder: Embedder) -> dict[str, Any]:
    train_options, test_options = SETTINGS[name]
    task = SectionTask(train_options, embedder)
    held_out = SectionTask(replace(test_options, split="test", instances=12), embedder)
    print(f"{name}: {len(task.cases)} training questions, {len(held_out.cases)} held out", flush=True)
    routers: dict[str, Router] = {f"learned, seed {seed}": trained(task, embedder, seed).rank for seed in seeds}
    faiss: dict[str, Router] = {f"FAISS layer 1, {kept} kept": FaissSections(kept, embedder).rank for kept in (1, 2, 3)}
    rows = compare(held_out, test_options.retrieval(), embedder, {**faiss, **routers})
    return {
        "train": asdict(train_options),
        "train_questions": len(task.cases),
        "questions": len(held_out.cases),
        "entries": float(np.mean([sum(case.memory.section_size(s) for s in held_out.sections) for case in held_out.cases])),
        "rows": [{key: value for key, value in row.items() if key != "scores"} for row in rows],
        "differences": differences(held_out, rows),
    }


def compare(task: SectionTask, config: RetrievalConfig, embedder: Embedder, routers: Mapping[str, Router]) -> list[dict[str, Any]]:
    """Measure all sections, each router and the oracle, which has no time: it knows the answers. ``row`` says what is measured."""
    rows = []
    for name, router in {"everything": None, **routers}.items():
        memories = {id(case.memory): case.memory for case in task.cases}
        retrievers = {key: TwoLayerRetriever(memory, config, embedder=embedder, router=router) for key, memory in memories.items()}
        chosen, seconds = [], 0.0
        for question, memory, _ in task.cases:
            retriever = retrievers[id(memory)]
            names = retriever.route(question.text)  # also embeds the question and reads the memory
            began = time.process_time()
            retriever.search(question.text, task.evaluator.k)
            seconds += time.process_time() - began
            chosen.append(np.array([section in names for section in task.sections]))
        rows.append(row(task, name, chosen, 1000 * seconds / len(task.cases)))
    return [*rows, row(task, "oracle", [task.best(number) for number in range(len(task.cases))], None)]


def row(task: SectionTask, name: str, chosen: Sequence[Sections], milliseconds: float | None) -> dict[str, Any]:
    """Means over questions; the standard error is over memories, since questions about one memory are not independent.

    ``searched`` is the number of entries searched, ``share`` their share of the memory, ``sections`` the number of sections opened
    that hold an entry, ``milliseconds`` processor time of a search, both layers, with the question's embedding known.
    """
    scores, shares = (np.array(c) for c in zip(*(task.found(i, sections) for i, sections in enumerate(chosen)), strict=True))
    memories = np.array([id(case.memory) for case in task.cases])
    means = np.array([scores[memories == memory].mean() for memory in dict.fromkeys(memories.tolist())])
    return {
        "name": name,
        "accuracy": float(scores.mean()),
        "stderr": float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else float("nan"),
        "searched": float((shares * task.sizes.sum(axis=1)).mean()),
        "share": float(shares.mean()),
        "sections": float(np.mean([(sections & (sizes > 0)).sum() for sections, sizes in zip(chosen, task.sizes, strict=True)])),
        "milliseconds": milliseconds,
        "scores": tuple(scores.tolist()),
    }


def differences(task: SectionTask, rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Accuracy of the learned router, mean over its seeds, less that of each other way; standard error over memories."""
    learned = np.mean([row["scores"] for row in rows if row["name"].startswith("learned")], axis=0)
    memories = [id(case.memory) for case in task.cases]
    found = {}
    for row in rows:
        if not row["name"].startswith("learned"):
            gaps = learned - np.array(row["scores"])
            means = np.array([gaps[[m == memory for m in memories]].mean() for memory in dict.fromkeys(memories)])
            found[row["name"]] = {"mean": float(gaps.mean()), "stderr": float(means.std(ddof=1) / len(means) ** 0.5)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    args = parser.parse_args()
    torch.set_num_threads(1)
    held = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"settings": {}}
    embedder = make_embedder("minilm")
    for name in SETTINGS:
        if name in held["settings"]:
            continue
        held["settings"][name] = run(name, args.seeds, embedder)
        machine = environment()
        machine["command"] = ["python", "scripts/router_memories.py"]
        held |= {"environment": machine, "config": load_config(CONFIG).flat()}
        RESULTS.write_text(json.dumps(held, indent=1) + "\n")
        print(json.dumps(held["settings"][name]["rows"]), flush=True)


if __name__ == "__main__":
    main()
