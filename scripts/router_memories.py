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
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from memalpha.memory.memory import Memory
from memalpha.protocols import Embedder
from memalpha.provenance import environment
from memalpha.retrieval.config import RetrievalConfig, RetrievalMode
from memalpha.retrieval.embedders import make_embedder
from memalpha.retrieval.two_layer import SectionRouter, TwoLayerRetriever
from memalpha.routing.compare import Routed, compare, standard_ways
from memalpha.routing.config import load_config
from memalpha.routing.env import RoutingVectorEnv
from memalpha.routing.learner import shape_of
from memalpha.routing.mappo import MAPPO
from memalpha.routing.memories import SectionOptions, section_task
from memalpha.routing.run import make_learner, update_seed
from memalpha.routing.sections import LearnedSectionRouter
from memalpha.routing.sections_task import SectionTask

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results" / "router_memories.json"
CONFIG = ROOT / "configs" / "router" / "sections_mappo.yaml"
DENSE = SectionOptions(instances=30, wording="verbatim", mode="dense", k=1)
KNOWN, UNSEEN = ("city", "job", "food", "sport", "car", "pet"), ("colour", "instrument", "language", "drink", "hobby")
SETTINGS: dict[str, tuple[SectionOptions, SectionOptions]] = {
    "dense, k = 1": (DENSE, DENSE),
    "lexical, k = 3": (replace(DENSE, mode="lexical", k=3), replace(DENSE, mode="lexical", k=3)),
    "dense, k = 1, attributes never asked in training": (replace(DENSE, only=KNOWN), replace(DENSE, only=UNSEEN)),
}


class FaissSections:
    """FAISS layer 1 in front of any layer 2."""

    def __init__(self, kept: int, embedder: Embedder) -> None:
        self._config = RetrievalConfig(mode=RetrievalMode.DENSE, sections_kept=kept)
        self._embedder = embedder
        self._retrievers: dict[int, TwoLayerRetriever] = {}

    def rank(self, query: str, memory: Memory) -> list[str]:
        if id(memory) not in self._retrievers:
            self._retrievers[id(memory)] = TwoLayerRetriever(memory, self._config, embedder=self._embedder)
        return self._retrievers[id(memory)].route(query)


def trained(task: SectionTask, embedder: Embedder, seed: int) -> LearnedSectionRouter:
    config = load_config(CONFIG)
    learner = make_learner(replace(config, run=replace(config.run, seed=seed)), shape_of(task))
    assert isinstance(learner, MAPPO)
    env = RoutingVectorEnv(task, config.run.envs)
    length = config.run.update_every // config.run.envs
    for i in range(config.run.updates):
        row = learner.update(env, length, update_seed(seed, i), 1 - i / config.run.updates)
        if i % 5 == 4:
            print(f"  seed {seed}, update {i + 1} of {config.run.updates}: reward {row['reward']:.3f}", flush=True)
    return LearnedSectionRouter([learner.policy], task.routes(), embedder)


def run(name: str, seeds: list[int], embedder: Embedder) -> dict[str, Any]:
    train_options, test_options = SETTINGS[name]
    task = section_task(train_options, embedder)
    held_out = section_task(replace(test_options, split="test", instances=12), embedder)
    print(f"{name}: {len(task.cases)} training questions, {len(held_out.cases)} held out", flush=True)
    routers: dict[str, SectionRouter] = {f"learned, seed {seed}": trained(task, embedder, seed) for seed in seeds}
    faiss: dict[str, SectionRouter] = {f"FAISS layer 1, {kept} kept": FaissSections(kept, embedder) for kept in (1, 2, 3)}
    rows = compare(held_out, standard_ways(test_options.retrieval(), embedder, {**faiss, **routers}, kept=()))
    return {
        "train": asdict(train_options),
        "train_questions": len(task.cases),
        "questions": len(held_out.cases),
        "entries": float(np.mean([sum(case.memory.section_size(s) for s in held_out.sections) for case in held_out.cases])),
        "rows": [{key: value for key, value in asdict(row).items() if key != "scores"} for row in rows],
        "differences": differences(held_out, rows),
    }


def differences(task: SectionTask, rows: list[Routed]) -> dict[str, dict[str, float]]:
    """Accuracy of the learned router, mean over its seeds, less that of each other way; standard error over memories."""
    learned = np.mean([row.scores for row in rows if row.name.startswith("learned")], axis=0)
    memories = [id(case.memory) for case in task.cases]
    found = {}
    for row in rows:
        if not row.name.startswith("learned"):
            gaps = learned - np.array(row.scores)
            means = np.array([gaps[[m == memory for m in memories]].mean() for memory in dict.fromkeys(memories)])
            found[row.name] = {"mean": float(gaps.mean()), "stderr": float(means.std(ddof=1) / len(means) ** 0.5)}
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
