"""Which worker answers a question: a log of what an evaluation's readers said, and what learns from
it; five seeds.

    memalpha evaluate --config configs/evaluate/readers.yaml
    python scripts/router_readers.py log runs/readers LOG sentence=sentence/rag_bm25/recall
    short=short/rag_bm25/trained ... OMP_NUM_THREADS=1 python scripts/router_readers.py compare LOG
    writes docs/results/router_readers.json

The first writes LOG/train.jsonl and LOG/test.jsonl, for ``task: log`` as well: a row a question and
worker NAME=SET/SYSTEM/READER, so the estimate from the log is the mean itself. The reward is the
question's score, the cost hundreds of tokens that a model read.
"""

import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
import yaml
from router_synthetic import COMMON, OWN, trained

from memalpha.data.routes import LogOptions, read_log
from memalpha.measure.evaluation_folder import read_results
from memalpha.models.policy import load_tokenizer
from memalpha.record.folder import environment
from memalpha.retrieval.embedders import make_embedder
from memalpha.routing.linucb import LinUCB
from memalpha.routing.logged import LogTask, logistic

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "router_readers.json"
PRICES = (0.0, 0.05, 0.2)  # reward lost for a hundred tokens
SETTINGS = {**COMMON, "steps": 38_400, "hidden": [64], "epochs": 2, "entropy": 0.003}


def log(folder, output, *workers):
    """Join the results of workers by question; a third of the instances, drawn by name, is held
    out."""
    config, found = yaml.safe_load((Path(folder) / "config.yaml").read_text()), defaultdict(dict)
    encode, free = (
        load_tokenizer(config["model"]).encode,
        {spec["name"] for spec in config["readers"] if spec["kind"] == "recall"},
    )
    for result in read_results(folder):
        rows = {(result.instance, question.id): question for question in result.questions}
        found[f"{result.set}/{result.system}/{result.reader}"] |= rows
    named, parts = dict(worker.split("=") for worker in workers), {"train": [], "test": []}
    if len({frozenset(found[place]) for place in named.values()}) > 1:
        raise SystemExit(
            "the workers were not asked the same questions; expected: sets of the same data"
        )
    for instance, id in found[next(iter(named.values()))]:
        for name, place in named.items():
            asked, reads = found[place][instance, id], place.split("/")[-1] not in free
            tokens = (
                sum(len(encode(passage, add_special_tokens=False)) for passage in asked.passages)
                if reads
                else 0
            )
            row = {
                "prompt": asked.text,
                "route": name,
                "reward": asked.score,
                "cost": tokens / 100,
                "probability": 1 / len(named),
            }
            parts["test" if crc32(instance.encode()) % 3 == 0 else "train"].append(
                {"instance": instance, **row}
            )
    Path(output).mkdir(parents=True, exist_ok=True)
    for part, rows in parts.items():
        (Path(output) / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def load(folder, price):
    """Return the task of the log's rows to train on, and that of the held-out ones."""
    logs = [
        read_log(LogOptions(str(Path(folder) / f"{part}.jsonl"), cost=price))
        for part in ("train", "test")
    ]
    names = list(dict.fromkeys(route for (route,) in logs[0].routes))
    return [LogTask(one, [names], make_embedder("minilm"), "minilm") for one in logs]


def choices(learn, held, many, seed):
    """Return what each way to choose takes of the held-out questions, (n, ``many`` workers) of 0
    and 1."""
    net, own, seen = (
        learn.rewards.reshape(-1, many),
        held.rewards.reshape(-1, many),
        held.embeddings[::many],
    )
    found = {learn.routes["workers"][0][i]: np.eye(many)[[i] * len(own)] for i in range(many)} | {
        "the best for each question": own
    }
    weights = (net - net.min(axis=1, keepdims=True)).ravel()
    found["logistic regression"] = logistic(
        learn.embeddings, learn.actions[:, 0], weights / weights.mean(), many
    )(seen)
    for name in ("mappo", "grpo", "linucb"):
        found[name] = trained(
            learn, **SETTINGS, **OWN[name], learner=name, seed=seed
        ).probabilities(seen)[:, 0]
    bandit = LinUCB(learn.shape)
    bandit.observe(learn.embeddings, learn.actions, learn.rewards)
    found["LinUCB, each row once"] = bandit.probabilities(seen)[:, 0]
    return {name: np.eye(many)[np.asarray(rows).argmax(axis=1)] for name, rows in found.items()}


def compare(folder, price, seeds):
    """A row for each way to choose: score, cost and reward, the reward less that of the worker that
    is best in training."""
    learn, held = load(folder, price)
    (names,) = learn.routes["workers"]
    given = [json.loads(line) for line in (Path(folder) / "test.jsonl").read_text().splitlines()]
    scores, costs = (
        np.array([row[name] for row in given]).reshape(-1, len(names))
        for name in ("reward", "cost")
    )
    of = np.array([row["instance"] for row in given[:: len(names)]])
    best = learn.rewards.reshape(-1, len(names)).mean(axis=0).argmax()
    net, runs, rows = (
        scores - price * costs,
        [choices(learn, held, len(names), seed) for seed in range(seeds)],
        [],
    )
    for name in runs[0]:
        took = np.mean([run[name] for run in runs], axis=0)
        score, cost, gain = ((took * what).sum(axis=1) for what in (scores, costs, net))
        row = {
            "name": name,
            "score": float(score.mean()),
            "cost": float(cost.mean()),
            "shares": took.mean(axis=0).tolist(),
        }
        for quantity, own in (
            ("reward", gain),
            ("less_best", gain - net[:, best]),
        ):  # the error: over instances
            error = np.std([own[of == one].mean() for one in set(of)], ddof=1) / len(set(of)) ** 0.5
            row[quantity] = {"mean": float(own.mean()), "stderr": float(error)}
        rows.append({**row, "seeds": [float((run[name] * net).sum(axis=1).mean()) for run in runs]})
    asked = {"train": len(learn.rewards) // len(names), "test": len(of), "instances": len(set(of))}
    return {"price": price, "workers": names, "best": names[best], **asked, "rows": rows}


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "log":
        sys.exit(log(*sys.argv[2:]))
    began = time.process_time()
    found = {"prices": [compare(sys.argv[2], price, 5) for price in PRICES], "common": SETTINGS}
    about = {"cpu_seconds": round(time.process_time() - began, 1), "environment": environment()}
    RESULTS.write_text(json.dumps({**found, **about}, indent=1) + "\n")
