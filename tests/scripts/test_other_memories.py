"""The memories beside ours in ``bench.py memory``: what they find against brute force, which are
left out, and the table by hand.
"""

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
from benchmarks import memory, other_memories

from memalpha.retrieval.embedders import HashingEmbedder

QUESTION = "Which number has my locker?"


@pytest.fixture
def embedder(monkeypatch):
    made = HashingEmbedder(other_memories.DIMENSION)
    monkeypatch.setattr(other_memories, "make_embedder", lambda _: made)
    monkeypatch.setattr(other_memories, "BATCH", 7)
    return made


@pytest.mark.parametrize(("name", "whole"), [("sqlite-vec", False), ("mem0", True)])
def test_what_is_found_is_nearest_by_brute_force(tmp_path, monkeypatch, embedder, name, whole):
    if missing := other_memories.missing_packages(name):
        pytest.skip(f"not installed: {', '.join(missing)}")
    monkeypatch.setattr(os, "environ", os.environ.copy())
    draw = np.random.default_rng(0)
    words = QUESTION.strip("?").split() + [f"w{number}" for number in range(30)]
    texts = ["\n\n".join(" ".join(draw.choice(words, 9)) for _ in range(3)) for _ in range(20)]
    export = tmp_path / "messages.json"
    export.write_text(json.dumps([{"role": "user", "content": text} for text in texts]))
    other_memories.keep_messages(name, export, tmp_path)
    search = other_memories.open_search(name, tmp_path)
    kept = texts if whole else [line for text in texts for line in text.split("\n\n")]
    for question in (QUESTION, kept[-1]):  # also what was kept last
        scores = embedder.embed(kept) @ embedder.embed([question])[0]
        assert search(question, 3) == [kept[number] for number in np.argsort(-scores)[:3]]


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(other_memories.NEEDS, "mem0", {"there": "json", "none-such": "none_such"})
    assert other_memories.missing_packages("mem0") == ["none-such"]


def test_the_table_by_hand(tmp_path, monkeypatch):
    seconds = {"memalpha": 2.0, "sqlite-vec": 6.0}

    def reading(code, arguments, given):
        way = arguments[-1]
        if code is memory.IMPORT:
            (arguments[1] / "store").write_bytes(bytes(1000))
            return {"cpu_seconds": seconds[way]}
        assert len(json.loads(given)) == 2
        factor = {"index": 1, "process": 2, "sqlite-vec": 0.5}[way]
        return [4.0 * factor, 2048 * factor, [0.03 * factor, 0.01 * factor, 0.02 * factor], 1]

    monkeypatch.setattr(memory, "reading", reading)
    monkeypatch.setattr(
        memory, "missing_packages", lambda name: ["mem0ai"] if name == "mem0" else []
    )
    options = SimpleNamespace(messages=[100, 101], quick=False, beside=100, folder=tmp_path)
    monkeypatch.setattr(memory, "EVERY", 51)
    found = memory.run(options)
    details = found["details"]
    assert details["left_out"] == [
        "mem0: not installed (mem0ai)",
        "sqlite-vec: more than 100 messages (101)",
        "mem0: more than 100 messages (101)",
    ]
    named = [(row["variant"], row["messages"]) for row in details["table"]]
    beside = [("index", 100), ("process", 100), ("sqlite-vec", 100)]
    assert named == [*beside, ("index", 101), ("process", 101)]
    text = (tmp_path / "100" / "messages.json").stat().st_size
    assert details["table"][2] == {
        "variant": "sqlite-vec",
        "messages": 100,
        "import_s": 6.0,
        "messages_a_second": 100 / 6,
        "store_over_text": 1000 / text,
        "first_s": 2.0,
        "peak_mib": 1.0,
        "p50_ms": 10.0,
        "p95_ms": 10.0,  # the second of three: no more lie within .95
        "found": 0.5,
    }
    assert found["ratios"]["import_s_sqlite-vec_100"] == 3.0
    assert found["ratios"]["p50_ms_process_101"] == 2.0
