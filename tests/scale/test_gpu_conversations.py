"""GRPO on conversations, as one GPU measures it: faults counted by hand, and the whole chain with a
model of half a million parameters."""

import json

import gpu_conversations

from memalpha.files import write_lines
from memalpha.memory.schema import MemorySchema
from memalpha.types import Fact, FactAction

FACTS = [
    Fact(0, FactAction.STATE, "User", "city", "Oslo"),
    Fact(1, FactAction.CHANGE, "User", "city", "Rome", "Oslo"),
    Fact(1, FactAction.RETRACT, "User", "pet", "Rex"),
    Fact(2, FactAction.STATE, "Ann", "job", "baker"),
]


def entry(id, content, section="semantic"):
    return {"id": id, "section": section, "content": content, "created": 1, "updated": 1} | {
        "timestamp": None,
        "source_chunk": 0,
    }


def result(code, kind=None, content=None, entry_id=None):
    operation = {"kind": kind, "section": "semantic", "content": content, "entry_id": entry_id}
    return {"code": code, "operation": kind and {**operation, "timestamp": None}}


def step(chunk, text, results, changes, stop="end"):
    place = {"chunk": chunk, "text": text, "time": "2024-01-01", "stop": stop}
    return {**place, "results": results, "changes": changes}


def rollout():
    """Three chunks read from a memory of two entries; the archive holds all lines."""
    oslo, rex = entry("1", "User lives in Oslo"), entry("2", "User has a dog Rex")
    rome, ann = entry("3", "User lives in Rome"), entry("4", "Ann is a baker")
    moved = step(
        1,
        "User: I live in Rome these days. Rex is gone.",
        [
            result("applied", "insert", "User lives in Rome"),
            result("unknown_id", "delete", entry_id="7"),
            result("unparsed"),
        ],
        [{"before": None, "after": rome}],
    )
    deleted = step(
        2,
        "User: Ann bakes.",
        [result("applied", "delete", entry_id="2"), result("applied", "insert", "Ann is a baker")],
        [{"before": rex, "after": None}, {"before": None, "after": ann}],
        stop="length",
    )
    idle = step(3, "User: hi", [], [])
    archive = entry("line-1", "User: Ann is Rex.", "_archive")
    memory = [oslo, rome, ann, archive]
    return {"instance": "a", "steps": [moved, deleted, idle], "memory": memory}


def test_faults_by_hand():
    schema = MemorySchema.load("small_core")
    assert gpu_conversations.count_faults([rollout()], {"a": FACTS}, schema) == {
        "call: fails for another reason": (0, 5),
        "call: is none": (1, 5),
        "call: names no entry": (1, 5),
        "call: repeats an entry": (0, 5),
        "chunk with facts: nothing is written": (0, 2),
        "chunk without facts: something is written": (0, 1),
        "completion: cut off": (1, 3),
        "fact ended by a change: still there": (1, 1),
        "fact ended by a retract: still there": (1, 1),
        "fact of a change: not noted": (0, 1),
        "fact of a state: not noted": (0, 1),
        "write: wrong delete": (1, 1),  # nobody took Rex back in that chunk
        "write: wrong insert": (1, 2),  # Oslo is kept beside Rome
    }


def conversation(name, before, after):
    """Two short chunks: a city, and its change."""
    question = {"text": f"Where does {name} live?", "answers": [after], "stale": [before]}
    moved = {"subject": name, "attribute": "city", "value": after, "previous": before}
    return {
        "id": name,
        "source": "own",
        "chunks": [
            {"text": f"{name}: I live in {before}."},
            {"text": f"{name}: I moved to {after}."},
        ],
        "questions": [{**question, "metric": "bound", "kind": "latest", "evidence": [1]}],
        "facts": [
            {"chunk": 0, "action": "state", **moved, "value": before, "previous": None},
            {"chunk": 1, "action": "change", **moved},
        ],
    }


def test_a_run_stops_in_time_and_goes_on_where_it_stopped(tmp_path, monkeypatch, capfd):
    names = ("Ann", "Ben", "Cem", "Dora")
    write_lines(tmp_path / "own.jsonl", [conversation(name, "Oslo", "Rome") for name in names])
    data = str(tmp_path / "own.jsonl")
    monkeypatch.setattr(gpu_conversations, "TRIAL", data)
    options = {"model": "nano", "adapter": "", "lora_r": "2", "retrieval": "lexical"}
    options |= {"train_data": data, "train_options": "{}", "eval_data": data, "max_steps": "2"}
    options["max_completion_length"] = "24"
    words = ["--small", "--output", str(tmp_path)]
    words += [word for name, value in options.items() for word in (f"--{name}", value)]

    def record():
        return json.loads((tmp_path / "conversations.json").read_text())

    assert gpu_conversations.main([*words, "--max_minutes", "0"]) == 0
    assert f"saved as {tmp_path / 'train' / 'checkpoint-1'}" in capfd.readouterr().err
    first = record()
    assert (first["steps"], first["of"]) == (1, 2)
    assert not (tmp_path / "train" / "summary.json").exists()
    assert gpu_conversations.main(words) == 0
    second = record()
    assert second["curve"][0] == first["curve"][0]
    assert [row["step"] for row in second["curve"]] == [1, 2]
    assert second["trial"]["reference"] == "warm start"
    assert (
        second["faults"]["last 1 steps"]["completion: cut off"][1] == 8 * 2
    )  # each has two chunks
    page = (tmp_path / "conversations.md").read_text()
    assert page.startswith("# GRPO on conversations, 2 of 2 steps\n\nDevice: CPU.")
    assert "dev.jsonl" not in page  # nothing was validated between
    assert "| trained | " in page and "| fact of a change: not noted | " in page
    capfd.readouterr()
    assert gpu_conversations.main(words) == 0
    assert "step 2/2" not in capfd.readouterr().out  # all is there
    assert record() == second
