"""Measure a learned section router on real memories: nine categories, held-out dialogues, three
seeds.

    OMP_NUM_THREADS=1 python scripts/router_memories.py            writes
    docs/results/router_memories.json

Trains on 30 dialogues of the train split, measures on 12 of the test split, which share no name and
no value with them. Sections of
a question: all; FAISS layer 1 keeping 1, 2 or 3; the learned router; an oracle. Settings that the
file holds are not run again.
"""

import json
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from memalpha.record.folder import environment
from memalpha.retrieval import RetrievalConfig, RetrievalMode
from memalpha.retrieval.dense import LearnedSectionRouter
from memalpha.retrieval.embedders import make_embedder
from memalpha.retrieval.two_layer import TwoLayerRetriever
from memalpha.routing.run import fit, load_config, make_learner
from memalpha.routing.tasks import SectionOptions, SectionTask

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results" / "router_memories.json"
CONFIG = ROOT / "configs" / "router" / "sections_mappo.yaml"
DENSE = SectionOptions(instances=30, wording="verbatim", mode=RetrievalMode.DENSE, k=1)
LEXICAL = replace(DENSE, mode=RetrievalMode.LEXICAL, k=3)
KNOWN, UNSEEN = (
    ("city", "job", "food", "sport", "car", "pet"),
    ("colour", "instrument", "language", "drink", "hobby"),
)
SETTINGS = {
    "dense, k = 1": (DENSE, DENSE),
    "lexical, k = 3": (LEXICAL, LEXICAL),
    "dense, k = 1, attributes never asked in training": (
        replace(DENSE, only=KNOWN),
        replace(DENSE, only=UNSEEN),
    ),
}


def faiss_sections(kept, embedder):
    config, retrievers = RetrievalConfig(retrieval=RetrievalMode.DENSE, sections_kept=kept), {}

    def rank(query, memory):
        if id(memory) not in retrievers:
            retrievers[id(memory)] = TwoLayerRetriever(memory, config, embedder=embedder)
        return retrievers[id(memory)].route(query)

    return rank


def trained(task, embedder, seed):
    config = load_config(CONFIG, ["--seed", str(seed)])
    learner = make_learner(config, task.shape)
    list(fit(learner, task, config.run))
    return LearnedSectionRouter([agent.policy for agent in learner.agents], task.routes, embedder)


def compare(task, config, embedder, routers):
    """A row for all sections, each router, and the oracle; time: processor time of a search, both
    layers."""
    rows = []
    for name, router in {"everything": None, **routers}.items():
        memories = {id(case.memory): case.memory for case in task.cases}
        retrievers = {
            key: TwoLayerRetriever(memory, config, embedder=embedder, router=router)
            for key, memory in memories.items()
        }
        chosen, seconds = [], 0.0
        for question, memory, _ in task.cases:
            names = retrievers[id(memory)].route(
                question.text
            )  # also embeds the question and reads the memory
            began = time.process_time()
            retrievers[id(memory)].search(question.text, task.evaluator.k)
            seconds += time.process_time() - began
            chosen.append(np.array([section in names for section in task.sections]))
        rows.append(row(task, name, chosen, 1000 * seconds / len(task.cases)))
    return [
        *rows,
        row(task, "oracle", [task.best(number) for number in range(len(task.cases))], None),
    ]


def over_memories(task, values):
    """Mean over questions, and its standard error over memories: questions about one are not
    independent."""
    memories = np.array([id(case.memory) for case in task.cases])
    means = np.array(
        [values[memories == memory].mean() for memory in dict.fromkeys(memories.tolist())]
    )
    return float(values.mean()), float(means.std(ddof=1) / np.sqrt(len(means)))


def row(task, name, chosen, milliseconds):
    """``searched``: entries searched; ``share``: of the memory; ``sections``: opened ones that hold
    an entry."""
    scores, shares = (
        np.array(c)
        for c in zip(*(task.found(i, sections) for i, sections in enumerate(chosen)), strict=True)
    )
    accuracy, error = over_memories(task, scores)
    searched, opened = (
        (shares * task.sizes.sum(axis=1)).mean(),
        (np.array(chosen) & (task.sizes > 0)).sum(axis=1).mean(),
    )
    means = {
        "searched": float(searched),
        "share": float(shares.mean()),
        "sections": float(opened),
        "milliseconds": milliseconds,
    }
    return {"name": name, "accuracy": accuracy, "stderr": error, **means, "scores": scores}


def run(name, embedder):
    train_options, test_options = SETTINGS[name]
    task, held_out = (
        SectionTask(o, embedder)
        for o in (train_options, replace(test_options, split="test", instances=12))
    )
    faiss = {f"FAISS layer 1, {kept} kept": faiss_sections(kept, embedder) for kept in (1, 2, 3)}
    routers = {f"learned, seed {seed}": trained(task, embedder, seed).rank for seed in range(3)}
    rows = compare(
        held_out, RetrievalConfig(retrieval=test_options.mode), embedder, {**faiss, **routers}
    )
    scores = {one["name"]: one.pop("scores") for one in rows}
    learned = np.mean([scores[name] for name in routers], axis=0)
    gaps = {
        name: over_memories(held_out, learned - own)
        for name, own in scores.items()
        if name not in routers
    }
    differences = {name: {"mean": mean, "stderr": error} for name, (mean, error) in gaps.items()}
    entries, asked = (
        float(held_out.sizes.sum(axis=1).mean()),
        {"train_questions": len(task.cases), "questions": len(held_out.cases)},
    )
    return {
        "train": asdict(train_options),
        **asked,
        "entries": entries,
        "rows": rows,
        "differences": differences,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    held = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"settings": {}}
    for name in [name for name in SETTINGS if name not in held["settings"]]:
        held["settings"][name] = run(name, make_embedder("minilm"))
        machine = {**environment(), "command": ["python", "scripts/router_memories.py"]}
        held |= {"environment": machine, "config": load_config(CONFIG).flat()}
        RESULTS.write_text(json.dumps(held, indent=1) + "\n")
