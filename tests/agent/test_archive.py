"""The archive by hand: which lines leave it, what is found, and that the policy neither sees nor writes it."""

import numpy as np
import pytest

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.memory.schema import MemorySchema, tool_schemas
from memalpha.models.nano import make_tokenizer
from memalpha.qa.evaluator import find_passages
from memalpha.retrieval import RetrievalConfig, dense
from memalpha.retrieval.two_layer import TwoLayerRetriever
from memalpha.types import Chunk, Operation, OperationKind

TEXTS = [
    "Marta: I live in Oslo.\nMarta: I like tea.",
    "Marta: I moved from Oslo.\nMarta: Not Oslo but Rome!\nIvan: Oslo is cold.",
    "Marta: no more tea for me.\nMarta: Rome is hot.",
]
WRITTEN = ["+ Marta city Oslo\n+ Marta drink tea", "= Marta city Oslo\n> Marta city Rome", "- Marta drink tea"]


def make(archive=True, retrieval="lexical", **more):
    words = " ".join([*TEXTS, *WRITTEN, "Where does live drink which city of 2024 01 02 03 [ ] -"]).split()
    config = AgentConfig(schema="facts", codec="compact_text", archive=archive, retrieval=retrieval, embedder="hashing", **more)
    return AgentStep(config, make_tokenizer(words, 4096))


def told(step, written=WRITTEN):
    memory = step.new_memory()
    retriever, prompts = step.new_retriever(memory), []
    for index, (text, said) in enumerate(zip(TEXTS, written, strict=True)):
        chunk = Chunk(text, f"2024-0{index + 1}-01")
        prompts.append(step.prompt(memory, retriever, chunk).messages[-1]["content"])
        step.apply(memory, index, chunk, said)
    return memory, retriever, prompts


def archived(memory):
    return [line.content for line in memory.entries("_archive")]


def test_what_an_update_or_delete_took_away_leaves_the_archive_and_other_lines_stay():
    memory, _, _ = told(make())
    assert archived(memory) == ["Marta: I moved from Oslo.", "Ivan: Oslo is cold.", "Marta: Rome is hot."]
    assert [(line.timestamp, line.source_chunk) for line in memory.entries("_archive")] == [("2024-02-01", 1)] * 2 + [
        ("2024-03-01", 2)
    ]
    kept, _, _ = told(make(), [WRITTEN[0], ".", "- Marta drink water"])  # nothing is corrected
    assert len(archived(kept)) == 7


@pytest.mark.parametrize("retrieval", ["lexical", "dense", "hybrid"])
def test_lines_and_entries_are_ranked_as_one_list_and_lines_a_little_lower(retrieval, monkeypatch):
    monkeypatch.setattr(dense, "SAME", 2.0)  # nothing is outdated
    step = make(retrieval=retrieval)
    memory, retriever, _ = told(step)
    flat = step.new_memory()
    for entry in sorted([*memory.entries(), *memory.entries("_archive")], key=lambda entry: entry.created):
        flat.apply(Operation(OperationKind.INSERT, "facts", entry.content, timestamp=entry.timestamp))
    for question in ("Where is Rome?", "Marta city", "Oslo"):
        found = {hit.entry.content: (hit.score, hit.entry.section) for hit in retriever.search(question, 9)}
        assert list(found.values()) == sorted(found.values(), key=lambda pair: -pair[0])
        known = {hit.entry.content: hit.score for hit in step.new_retriever(flat).search(question, 9)}
        below = {text: score - 0.07 * (found[text][1] == "_archive") for text, score in known.items()}
        assert {text: score for text, (score, _) in found.items()} == pytest.approx(below) != {}
    assert not any("live in" in passage for passage in find_passages(memory, retriever, "Oslo", 9).passages)
    assert retriever.search("Rome", 9) == step.new_retriever(memory).search("Rome", 9)
    assert {hit.entry.section for hit in retriever.search("Rome", 5, ["facts"])} == {"facts"}
    assert {hit.entry.section for hit in retriever.search("Rome", 5)} == {"facts", "_archive"}


def test_of_what_says_nearly_the_same_the_newest_ranks_highest_or_stands_alone():
    rows = {
        "city?": [1, 0],
        "old": [0.96, 0.28],
        "near": [0.87, 0.493],
        "far": [0.85, 0.527],
        "new": [0.8, -0.6],
        "same day": [0.6, -0.8],
        "other": [0.28, -0.96],
    }

    class Table:
        dimension = 2

        def embed(self, wanted):
            return np.array([rows[text] for text in wanted], dtype=np.float32)

    def found(*lines, facts=(), times=("2024-01-01", "2024-01-02", "2024-01-03")):
        memory = make().new_memory()
        for section, said in (("facts", facts), ("_archive", lines)):
            for text, chunk in said:
                memory.apply(Operation(OperationKind.INSERT, section, text), chunk=chunk, time=times[chunk])
        made = TwoLayerRetriever(memory, RetrievalConfig(retrieval="dense"), Table())
        return {hit.entry.content: round(hit.score, 3) for hit in made.search("city?", 9)}

    # old x new = .6, new x same day = .96, old x same day = .352, new x other = .8
    assert found(("old", 0), ("new", 1), ("same day", 1)) == {"new": 0.73, "old": 0.74, "same day": 0.53}
    rows["new"] = [0.8, 0.6]  # old x new = .936
    assert found(("old", 0), ("new", 1)) == {"new": 0.73, "old": 0.74}
    assert list(found(("old", 0), ("new", 1), ("same day", 1))) == ["old", "new", "same day"]
    assert found(("new", 1), ("other", 2), facts=[("old", 0)]) == {"old": 0.81, "new": 0.73, "other": 0.21}  # entries, too
    assert found(("old", 1), ("new", 1)) == {"old": 0.89, "new": 0.73}  # of one chunk
    for times in ([None, None], ["2024", "2024"]):  # of one text
        assert found(("old", 0), ("new", 1), times=times) == {"old": 0.89, "new": 0.73}
    assert found(("old", 0), ("new", 1), times=["2024", None]) == {"new": 0.73, "old": 0.74}
    assert found(facts=[("old", 0), ("new", 1)]) == {"old": 0.96, "new": 0.8}  # nothing is archived

    # a newer one that scores at most .1 less (old .96, near .87, far .85; all three nearly the same) stands for a line or by a line
    assert found(("old", 0), ("near", 1)) == found(("near", 1), facts=[("old", 0)]) == {"near": 0.8}
    assert found(("old", 0), ("far", 1)) == {"old": 0.74, "far": 0.78}
    assert found(("old", 0), facts=[("near", 1)]) == {"near": 0.87}
    assert found(("other", 0), facts=[("old", 0), ("near", 1)]) == {"old": 0.81, "near": 0.87, "other": 0.21}  # two entries
    assert found(("old", 0), ("near", 1), times=["2024", "2024"]) == {"old": 0.89, "near": 0.8}


def test_lines_of_an_assistant_lose_a_tenth_more_and_entries_do_not():
    step = make(retrieval="lexical")
    memory, others = step.new_memory(), step.new_memory()
    for section in ("_archive", "facts"):
        for number, speaker in enumerate(("Assistant", "Ivan", "assistant", "Assistants")):
            for held, name in ((memory, speaker), (others, "Anna")):
                held.apply(Operation(OperationKind.INSERT, section, f"{name}: Oslo {number}"), chunk=0)
    lost = {}
    for held in (memory, others):
        for hit in step.new_retriever(held).search("Oslo", 9):
            lost.setdefault(hit.entry.created, []).append(hit.score)
    assert [round(score - plain, 9) for _, (score, plain) in sorted(lost.items())] == [-0.1, 0, -0.1, 0, 0, 0, 0, 0]


def test_k_is_of_entries_and_of_lines():
    memory, retriever, _ = told(make(retrieval="hybrid"))
    sections = {"facts": len(memory.entries("facts")), "_archive": len(memory.entries("_archive"))}
    for k in (1, 2, 9):
        found = retriever.search("Rome city of Marta", k)
        assert [hit.score for hit in found] == sorted([hit.score for hit in found], reverse=True)
        for section, held in sections.items():
            alone = [hit.entry for hit in found if hit.entry.section == section]
            assert alone == [hit.entry for hit in retriever.search("Rome city of Marta", 9) if hit.entry.section == section][:k]
            assert len(alone) == min(k, held)


def test_the_policy_neither_sees_nor_writes_it_and_it_costs_no_memory():
    (memory, _, prompts), (plain, _, without) = told(make()), told(make(archive=False))
    assert prompts == without and archived(plain) == []
    assert (memory.tokens, len(memory), [e.id for e in memory]) == (plain.tokens, len(plain), [e.id for e in plain])
    step = make()
    line = memory.entries("_archive")[0].id
    for codec, text in (
        ("compact", f"- {line}"),
        ("compact", f"= {line} Marta is a thief"),
        ("compact", "+_archive Marta is a thief"),
    ):
        other = AgentStep(AgentConfig(schema="facts", codec=codec, archive=False), step.encoder.tokenizer)
        outcome = other.apply(memory, 9, Chunk("x"), text)
        assert not outcome.results[0].ok and not outcome.changes
    assert "archive" not in str(tool_schemas(MemorySchema.load("mem_alpha")))


def test_snapshots_hold_it():
    memory, _, _ = told(make())
    copy = memory.copy()
    assert archived(copy) == archived(memory) and copy.tokens == memory.tokens


def test_lines_are_units_a_long_line_is_cut_and_a_label_stays_with_its_sentence():
    step = make()
    memory = step.new_memory()
    step.apply(memory, 0, Chunk("Marta: I like tea. " * 30 + "\n  Rome is hot.\nLabel: city\nOslo is cold.\nLabel: city"), "")
    held = archived(memory)
    assert held[-2:] == ["Rome is hot.\nLabel: city", "Oslo is cold.\nLabel: city"]
    assert set(held[:-2]) == {"Marta: I like tea."}
