"""The archive by hand: which lines leave it, what is found, and that the policy neither sees nor writes it."""

import pytest

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.memory.schema import MemorySchema, tool_schemas
from memalpha.models.nano import make_tokenizer
from memalpha.qa.evaluator import find_passages
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
def test_lines_and_entries_are_ranked_as_one_list_and_lines_a_little_lower(retrieval):
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
    assert retriever.faults() == []
    assert {hit.entry.section for hit in retriever.search("Rome", 5, ["facts"])} == {"facts"}
    assert {hit.entry.section for hit in retriever.search("Rome", 5)} == {"facts", "_archive"}


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
