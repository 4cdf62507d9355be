import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from brute_force import bm25, cosines, ranked, weighed

from memalpha.errors import InputError
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema, Section, SectionKind
from memalpha.retrieval import RetrievalConfig, RetrievalMode, two_layer
from memalpha.retrieval.dense import HashingEmbedder
from memalpha.retrieval.two_layer import TwoLayerRetriever
from memalpha.types import Operation, OperationKind

FACTS = {
    "semantic": [
        "Ann lives in Oslo",
        "Bob likes green tea",
        "Cid owns two parrots",
        "Ann likes black tea",
    ],
    "episodic": ["Ann moved to Oslo", "Bob met Ann at a tea house", "Cid lost a chess match"],
}


def insert(memory, section, content):
    return memory.apply(Operation(OperationKind.INSERT, section, content)).entry_id


def holding(*contents):
    memory = Memory(MemorySchema.load("mem_alpha"))
    for content in contents:
        insert(memory, "semantic", content)
    return memory


@pytest.fixture
def memory():
    memory = holding(*FACTS["semantic"])
    memory.apply(Operation(OperationKind.REPLACE, "core", "Ann, Bob and Cid drink tea in Oslo"))
    for content in FACTS["episodic"]:
        insert(memory, "episodic", content)
    return memory


def retriever(memory, mode, embedder=None, **settings):
    return TwoLayerRetriever(
        memory, RetrievalConfig(retrieval=mode, **settings), embedder or HashingEmbedder()
    )


def texts(hits):
    return [hit.entry.content for hit in hits]


EMBED = HashingEmbedder().embed
QUERIES = [
    "Who likes tea?",
    "where does Ann live",
    "Oslo",
    "parrots and chess",
    "the quick brown fox",
    "tea tea Ann",
]


def expected(memory, mode, query, k, *, sections=None, embed=EMBED):
    """Ids and scores by brute force over the entries of the sections; BM25's statistics are those
    of all entries."""
    entries = memory.entries()
    order = [entry.id for entry in entries]
    inside = {entry.id for entry in entries if sections is None or entry.section in sections}
    dense = cosines(
        {entry.id: embed([entry.content])[0] for entry in entries if entry.id in inside},
        embed([query])[0],
    )
    lexical = {
        key: score
        for key, score in bm25({e.id: e.content for e in entries}, query).items()
        if key in inside
    }
    if mode == "dense":
        return ranked(dense, order, k, decimals=6), dense
    if mode == "lexical":
        best = max(lexical.values(), default=0) or 1
        return ranked(lexical, order, k, decimals=9, positive=True), {
            key: score / best for key, score in lexical.items()
        }
    scores = weighed(dense, lexical)
    return ranked(scores, order, k, decimals=9), scores


@pytest.mark.parametrize("mode", ["lexical", "dense", "hybrid"])
@pytest.mark.parametrize("sections", [None, ["episodic"], ["semantic", "episodic"], []])
def test_open_sections_give_brute_force_over_their_entries(memory, mode, sections):
    for query in QUERIES:
        for k in (1, 3, 20):
            keys, scores = expected(memory, mode, query, k, sections=sections)
            hits = retriever(memory, mode).search(query, k, sections)
            assert [hit.entry for hit in hits] == [memory.get(key) for key in keys]
            assert [hit.score for hit in hits] == pytest.approx(
                [scores[key] for key in keys], abs=2e-6
            )


def test_a_text_that_one_ranking_leaves_out_has_its_score_in_the_other_all_the_same(monkeypatch):
    class Fan:
        dimension = 2

        def embed(
            self, wanted
        ):  # entries in order of their number, farther and farther from the query
            return np.float32(
                [[np.cos(int(text[-1]) / 9), np.sin(int(text[-1]) / 9)] for text in wanted]
            )

    monkeypatch.setattr(two_layer, "WEIGHED", 1)
    memory = holding("tea 8", "plain 1", "plain 2", "plain 3", "plain 4")
    hits = retriever(memory, "hybrid", embedder=Fan()).search(
        "tea 0", 1
    )  # "tea 8": .8 cos(8 / 9) + .2
    assert texts(hits) == ["plain 1"] and hits[0].score == pytest.approx(
        0.8 * np.cos(1 / 9), abs=1e-6
    )
    memory = holding("tea 3", "plain 1", "plain 2")
    hits = retriever(memory, "hybrid", embedder=Fan()).search("tea 0", 1)
    assert texts(hits) == ["tea 3"] and hits[0].score == pytest.approx(
        0.8 * np.cos(3 / 9) + 0.2, abs=1e-6
    )


def test_weights_worked_by_hand():
    class Table:
        dimension = 2

        def embed(self, wanted):
            rows = {"tea here": [0, 1], "best": [1, 0], "both tea tea": [0.6, 0.8], "tea": [1, 0]}
            return np.array([rows[text] for text in wanted], dtype=np.float32)

    hits = retriever(
        holding("tea here", "best", "both tea tea"), "hybrid", embedder=Table()
    ).search("tea", 3)
    # BM25 of "tea here", 2 words of 2 on average, is idf / 2.5, of "both tea tea", 3 words, 2 idf /
    # (2 + 1.5 * 1.375).
    assert texts(hits) == ["best", "both tea tea", "tea here"]
    assert [hit.score for hit in hits] == pytest.approx(
        [0.8, 0.8 * 0.6 + 0.2, 0.2 * (1 / 2.5) / (2 / 4.0625)], abs=1e-6
    )


def test_layer_one_weighs_a_sections_nearest_vector_and_its_best_text():
    class Table:
        dimension = 2

        def __init__(self, b):
            self.rows = {"tea": [1, 0], "a tea": [0.28, 0.96], "b": b}

        def embed(self, wanted):
            return np.array([self.rows.get(text, [0, 1]) for text in wanted], dtype=np.float32)

    memory = Memory(
        MemorySchema("two", (Section("x", SectionKind.LIST), Section("y", SectionKind.LIST)))
    )
    insert(memory, "x", "a tea")  # .8 * .28 + .2
    insert(memory, "y", "b")
    near, far = Table([0.6, 0.8]), Table([0.5, np.sqrt(0.75)])  # .8 * .5
    chosen = [
        retriever(memory, mode, embedder=near, sections_kept=1).route("tea")
        for mode in ("hybrid", "dense", "lexical")
    ]
    assert chosen == [["y"], ["y"], ["x"]]
    assert retriever(memory, "hybrid", embedder=far, sections_kept=1).route("tea") == ["x"]


def test_blocks_are_never_searched(memory):
    assert "core" not in {
        hit.entry.section
        for mode in RetrievalMode
        for hit in retriever(memory, mode).search("Ann tea Oslo", 99)
    }
    with pytest.raises(
        InputError,
        match=r"sections: \['core'\]\n  expected: list sections of the schema: semantic, episodic",
    ):
        retriever(memory, "lexical").search("tea", 5, ["core"])


@pytest.mark.parametrize("mode", ["lexical", "dense", "hybrid"])
@pytest.mark.parametrize("looked", [False, True])
def test_ties_follow_the_order_of_creation_across_restores(mode, looked):
    memory = holding("tea one", "tea two", "tea three")
    made = retriever(memory, mode)
    early = memory.snapshot()
    memory.apply(Operation(OperationKind.DELETE, "semantic", entry_id="1"))
    if looked:
        assert [hit.entry.id for hit in made.search("tea", 9)][-1] == "2" or mode != "lexical"
    memory.restore(early)
    assert [hit.entry.id for hit in made.search("tea", 9)] == expected(memory, mode, "tea", 9)[0]
    if mode == "lexical":
        assert [hit.entry.id for hit in made.search("tea", 9)] == ["3", "2", "1"]
    last, first = early.entries[0], early.entries[2]  # a history in which 3 came first and 1 last
    other = (replace(first, created=0), early.entries[1], replace(last, created=2))
    memory.restore(replace(early, entries=other))
    assert [hit.entry.id for hit in made.search("tea", 9)] == expected(memory, mode, "tea", 9)[0]


# -------------------------------------------------------------------------------------------- layer
# 1
def test_dense_layer_one_keeps_the_section_with_the_nearest_anchor(memory):
    anchors = {}
    for section in memory.schema.lists:
        mean = EMBED([entry.content for entry in memory.entries(section.name)]).sum(axis=0)
        anchors[section.name] = [EMBED([f"{section.name}: {section.description}"])[0], mean]
    made, chosen = retriever(memory, "dense", sections_kept=1), set()
    for query in [*QUERIES, "facts and knowledge", "events"]:
        vector = EMBED([query])[0]
        best = max(
            anchors, key=lambda name: max(cosines(dict(enumerate(anchors[name])), vector).values())
        )
        hits = made.search(query, 99)
        assert {hit.entry.section for hit in hits} == {best}
        assert [hit.entry.id for hit in hits] == expected(
            memory, "dense", query, 99, sections=[best]
        )[0]
        chosen.add(best)
    assert chosen == {"semantic", "episodic"}  # both answers occur, so the test can fail


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
def test_layer_one_keeps_the_best_of_the_sections_asked_for(mode):
    memory = Memory(
        MemorySchema(
            "three",
            tuple(Section(name, SectionKind.LIST) for name in ("drinks", "people", "towns")),
        )
    )
    insert(memory, "drinks", "tea tea tea")
    insert(memory, "people", "Bob likes tea")
    insert(memory, "towns", "Oslo lies in Norway")
    search = retriever(memory, mode, sections_kept=1).search
    assert texts(search("tea", 9)) == ["tea tea tea"]
    assert texts(search("tea", 9, ["people", "towns"])) == ["Bob likes tea"]


def test_lexical_mode_loads_no_model_and_no_faiss():
    code = """
import sys
from memalpha.memory.schema import MemorySchema
from memalpha.memory.memory import Memory
from memalpha.retrieval.two_layer import RetrievalConfig, retriever_factory
from memalpha.types import Operation, OperationKind
memory = Memory(MemorySchema.load("facts"))
found = retriever_factory(RetrievalConfig(embedder="no such thing", sections_kept=1))(memory)
memory.apply(Operation(OperationKind.INSERT, "facts", "Ann likes tea"))
assert found.search("tea", 1)[0].entry.content == "Ann likes tea"
print([name for name in ("faiss", "torch", "sentence_transformers", "transformers") if name in sys.modules])
"""
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_an_embedder_that_fails_leaves_nothing_behind(memory):
    class Flaky(HashingEmbedder):
        broken = False

        def embed(self, wanted):
            if self.broken:
                raise OSError("no model")
            return super().embed(wanted)

    embedder = Flaky()
    made = retriever(memory, "hybrid", embedder=embedder)
    insert(memory, "semantic", "Dan won the lottery")
    embedder.broken = True
    with pytest.raises(OSError, match="no model"):
        made.search("lottery", 1)
    embedder.broken = False
    assert texts(made.search("lottery", 1)) == ["Dan won the lottery"]
