"""Learn from a log which of the 64 intents of HWU64 a sentence has, and compare the estimates with
the truth; three seeds.

    OMP_NUM_THREADS=1 python scripts/router_hwu64.py FOLDER       writes
    docs/results/router_hwu64.json

FOLDER holds HWU64 (train and test, each with label and seq.in). The sentences and intents are real,
the log is drawn: a logistic regression on 600 labelled sentences, mixed with a fifth of chance,
takes the routes of 3,000 others and of the test; a right one earns 1.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

from memalpha.data.routes import Log
from memalpha.policies import PolicyOptions
from memalpha.record.folder import environment
from memalpha.retrieval.embedders import make_embedder
from memalpha.routing.learner import MAPPO
from memalpha.routing.linucb import LinUCB
from memalpha.routing.logged import LogTask, logistic
from memalpha.routing.ppo import PPOOptions

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "router_hwu64.json"
PPO = PPOOptions(
    lr_actor=3e-3, lr_critic=3e-3, epochs=2, batch_size=250, target_kl=0.05, entropy=0.003
)
UPDATES, ROWS = 40, 2000


def sentences(folder, part, n, seed):
    """Return ``n`` sentences (all if there are fewer) and their intents."""
    texts, labels = (
        (folder / part / name).read_text().splitlines() for name in ("seq.in", "label")
    )
    order = np.random.default_rng(seed).permutation(len(texts))[:n]
    return [texts[i] for i in order], [labels[i] for i in order]


class Embedded:
    """The embeddings of sentences that were embedded before."""

    def __init__(self, texts, vectors):
        self.at, self.vectors, self.dimension = (
            {text: i for i, text in enumerate(texts)},
            vectors,
            vectors.shape[1],
        )

    def embed(self, texts):
        return self.vectors[[self.at[text] for text in texts]]


def logged(texts, labels, names, chances, rng):
    """Draw a route for each sentence; return the log."""
    chosen = [int(rng.choice(len(names), p=row / row.sum())) for row in chances]
    rewards = np.array(
        [float(names[route] == label) for route, label in zip(chosen, labels, strict=True)]
    )
    shares = chances[np.arange(len(texts)), chosen]
    return Log(list(texts), [(names[route],) for route in chosen], rewards, shares)


def run(seed, train, test, embedder, names, updates, labelled=600):
    """Return a row for each learner: the estimate from the held-out log, and the share that is
    truly right."""
    rng, index = np.random.default_rng(seed), {name: i for i, name in enumerate(names)}
    old = [np.array([index[label] for label in part]) for part in (train[1][:labelled], test[1])]
    first = logistic(embedder.embed(train[0][:labelled]), old[0], np.ones(labelled), len(names))
    logs = []
    for texts, labels in ((train[0][labelled:], train[1][labelled:]), test):
        chances = 0.8 * first(embedder.embed(texts)) + 0.2 / len(names)
        logs.append(logged(texts, labels, names, chances, rng))
    task, held = (LogTask(log, [names], embedder, "minilm") for log in logs)
    learner, bandit = (
        MAPPO(task.shape, PolicyOptions("team", hidden=(128,)), PPO, seed),
        LinUCB(task.shape),
    )
    for i in range(updates):
        learner.update(task, ROWS, 1, 1000 * seed + i, 1.0)
    bandit.observe(task.embeddings, task.actions, task.rewards)
    weighted = logistic(
        task.embeddings, task.actions[:, 0], task.rewards / task.probabilities, len(names)
    )
    found = {"the policy that logged": first, "logistic regression, weighted": weighted}
    found |= {
        name: (lambda seen, own=own: own.probabilities(seen)[:, 0])
        for name, own in (("LinUCB", bandit), ("MAPPO", learner))
    }
    rows = {}
    for name, choose in found.items():
        best = choose(held.embeddings).argmax(axis=-1)
        rows[name] = {
            **held.estimate(np.eye(len(names))[best][:, None]),
            "right": float((best == old[1]).mean()),
        }
    return rows


def main(folder, seeds=3, rows=3600, embedder="minilm", updates=UPDATES):
    began = time.perf_counter()
    train, test = sentences(folder, "train", rows, 0), sentences(folder, "test", 10**6, 0)
    texts = list(dict.fromkeys([*train[0], *test[0]]))
    held = Embedded(texts, make_embedder(embedder).embed(texts))
    names = sorted(set(train[1]) | set(test[1]))
    runs = [run(seed, train, test, held, names, updates) for seed in range(seeds)]
    command = ["python", "scripts/router_hwu64.py", "FOLDER"]
    spent = {
        "command": command,
        "seeds": list(range(seeds)),
        "seconds": round(time.perf_counter() - began, 1),
    }
    return {
        **spent,
        "environment": environment(),
        "intents": len(names),
        "train": rows - 600,
        "test": len(test[0]),
        "runs": runs,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = main(Path(sys.argv[1]))
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["runs"], indent=1))
