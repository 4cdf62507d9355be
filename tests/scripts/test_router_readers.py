"""A log made of an evaluation's results, what is said of each way to choose from it, and the
environment of both PPOs."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import router_readers
import yaml

from memalpha.measure.evaluation_folder import QuestionResult, SystemResult
from memalpha.retrieval.embedders import HashingEmbedder
from memalpha.routing.tasks import SyntheticOptions, SyntheticTask

WORKERS = ("free=short/rag/recall", "model=long/rag/trained")
HELD = ("i0", "i2", "i8")  # whose name has a checksum that three divides


def evaluated(folder, scores):
    """An evaluation of two workers; ``scores`` of (free, model) by instance, a question each."""
    folder.mkdir()
    readers = [{"name": "recall", "kind": "recall"}, {"name": "trained", "kind": "trained"}]
    (folder / "config.yaml").write_text(yaml.safe_dump({"model": "words", "readers": readers}))
    rows = []
    for instance, pair in scores.items():
        text = "who was it" if pair[0] < pair[1] else "on which day"
        asked = QuestionResult("q", "single", text, 0.0, "x", ("a b c", "d e"))
        for score, (place, reader) in zip(
            pair, (("short", "recall"), ("long", "trained")), strict=True
        ):
            result = SystemResult(
                place, "rag", reader, 0, instance, 1, 5, questions=(replace(asked, score=score),)
            )
            rows.append(json.dumps(result.to_json()) + "\n")
    (folder / "results.jsonl").write_text("".join(rows))
    return str(folder)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    words = SimpleNamespace(encode=lambda text, add_special_tokens: text.split())
    monkeypatch.setattr(router_readers, "load_tokenizer", lambda name: words)
    monkeypatch.setattr(router_readers, "make_embedder", lambda name: HashingEmbedder(64))
    monkeypatch.setattr(
        router_readers,
        "SETTINGS",
        {**router_readers.SETTINGS, "steps": 3840, "hidden": [8], "lr_actor": 0.02},
    )


def test_a_log_joins_workers_by_question_and_counts_what_a_model_read(tmp_path):
    folder = evaluated(tmp_path / "run", {"i0": (0.5, 1.0), "i1": (0.25, 0.75)})
    router_readers.log(folder, str(tmp_path / "log"), *WORKERS)
    (first, second), (third, _) = (
        [json.loads(line) for line in (tmp_path / "log" / f"{part}.jsonl").read_text().splitlines()]
        for part in ("test", "train")
    )
    assert (first["route"], first["reward"], first["cost"], first["probability"]) == (
        "free",
        0.5,
        0.0,
        0.5,
    )
    assert (second["route"], second["reward"], second["cost"]) == (
        "model",
        1.0,
        0.05,
    )  # 3 + 2 tokens
    assert (first["instance"], third["instance"], third["prompt"]) == ("i0", "i1", "who was it")
    with (tmp_path / "run" / "results.jsonl").open("a") as file:
        file.write(
            json.dumps(
                SystemResult("short", "rag", "recall", 0, "i9", 1, 5, questions=()).to_json()
            )
            + "\n"
        )
    router_readers.log(
        folder, str(tmp_path / "log"), *WORKERS
    )  # an instance without questions is none
    evaluated(tmp_path / "other", {"i0": (0.5, 1.0)})
    lines = (tmp_path / "other" / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "other" / "results.jsonl").write_text(lines[0])
    with pytest.raises(SystemExit, match="same questions"):
        router_readers.log(str(tmp_path / "other"), str(tmp_path / "log"), *WORKERS)


def test_what_is_said_of_a_choice_by_hand_and_every_learner_tells_two_kinds_apart(tmp_path):
    scores = {f"i{n}": (0.3, 0.8) if n % 2 else (1.0, 0.6) for n in range(60)}
    router_readers.log(evaluated(tmp_path / "run", scores), str(tmp_path / "log"), *WORKERS)
    found = router_readers.compare(
        str(tmp_path / "log"), 2.0, seeds=1
    )  # the model's 5 tokens take .1
    rows = {row["name"]: row for row in found["rows"]}
    held = {
        json.loads(line)["instance"]
        for line in (tmp_path / "log" / "test.jsonl").read_text().splitlines()
    }
    odd = sum(int(name[1:]) % 2 for name in held) / len(held)
    assert (
        found["workers"] == ["free", "model"] and found["test"] == len(held) and set(HELD) <= held
    )
    assert rows["free"]["reward"]["mean"] == pytest.approx(0.3 * odd + 1.0 * (1 - odd))
    assert rows["model"]["reward"]["mean"] == pytest.approx(0.7 * odd + 0.5 * (1 - odd))
    assert rows["model"]["score"] == pytest.approx(0.8 * odd + 0.6 * (1 - odd)) and rows["model"][
        "cost"
    ] == pytest.approx(0.05)
    spread = (odd * (1 - odd) / (len(held) - 1)) ** 0.5  # of the mean of a share
    assert rows["free"]["reward"]["stderr"] == pytest.approx(0.7 * spread)
    best = rows["the best for each question"]
    assert best["reward"]["mean"] == pytest.approx(0.7 * odd + 1.0 * (1 - odd)) and best["shares"][
        1
    ] == pytest.approx(odd)
    assert found["best"] == "free" and best["less_best"]["mean"] == pytest.approx(0.4 * odd)
    assert rows["free"]["less_best"]["mean"] == 0
    for name in ("logistic regression", "mappo", "grpo", "linucb", "LinUCB, each row once"):
        assert rows[name]["seeds"] == pytest.approx([best["reward"]["mean"]], abs=0.1), name


def test_the_environment_of_both_pays_what_the_task_or_the_log_says(tmp_path):
    pytest.importorskip("gymnasium")
    from router_sb3 import Choice

    router_readers.log(
        evaluated(tmp_path / "run", {"i0": (0.5, 1.0), "i1": (0.25, 0.75)}),
        str(tmp_path / "log"),
        *WORKERS,
    )
    place, task = (
        Choice(router_readers.load(str(tmp_path / "log"), 1.0)[0]),
        SyntheticTask(SyntheticOptions(noise=0.0, facets=2)),
    )
    place.reset(seed=0)
    assert [place.step(action)[1] for action in (0, 1)] == pytest.approx([0.25, 0.7])
    place = Choice(task)
    seen, _ = place.reset(seed=3)
    wanted = np.einsum("afd,d->af", task.specialties[0], seen).max(axis=1)
    assert [place.step(action)[1] for action in range(4)] == pytest.approx(
        wanted, abs=1e-6
    ) and place.step(0)[2]
