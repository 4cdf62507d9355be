"""Ranking rules of both layers by hand and by brute force, also while the memory changes."""

import subprocess
import sys
from typing import get_args
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.linalg import norm

from memalpha.errors import InputError
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema, Section, SectionKind
from memalpha.retrieval import RetrievalConfig, RetrievalMode, ranking
from memalpha.retrieval.embedders import CachedEmbedder, HashingEmbedder
from memalpha.retrieval.two_layer import TwoLayerRetriever
from memalpha.types import Operation, OperationKind
from tests.helpers.brute_force import bm25, cosines, ranked, weighed

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


class Table:
    """An embedder of two numbers a text, [0, 1] where it has none."""

    dimension = 2

    def __init__(self, **rows):
        self.rows = {name.replace("_", " "): row for name, row in rows.items()}

    def embed(self, wanted):
        return np.array([self.rows.get(text, [0, 1]) for text in wanted], dtype=np.float32)


@pytest.mark.parametrize(
    ("third", "best", "value"),
    [(8, "plain 1", 0.8 * np.cos(1 / 9)), (3, "tea 3", 0.8 * np.cos(3 / 9) + 0.2)],
)
def test_a_text_that_one_ranking_leaves_out_has_its_score_in_the_other_all_the_same(
    monkeypatch, third, best, value
):
    names = [f"tea {third}", "plain 1", "plain 2", "plain 4"]
    embedder = Table(tea_0=[1, 0])
    for name in names:  # farther and farther from the query
        angle = int(name[-1]) / 9
        embedder.rows[name] = [np.cos(angle), np.sin(angle)]
    monkeypatch.setattr(ranking, "WEIGHED", 1)
    hits = retriever(holding(*names), "hybrid", embedder=embedder).search("tea 0", 1)
    assert texts(hits) == [best] and hits[0].score == pytest.approx(value, abs=1e-6)


def test_weights_worked_by_hand():
    embedder = Table(best=[1, 0], both_tea_tea=[0.6, 0.8], tea=[1, 0])
    memory = holding("tea here", "best", "both tea tea")
    hits = retriever(memory, "hybrid", embedder=embedder).search("tea", 3)
    # BM25 of "tea here", 2 words of 2 on average, is idf / 2.5, of "both tea tea", 3 words, 2 idf /
    # (2 + 1.5 * 1.375).
    assert texts(hits) == ["best", "both tea tea", "tea here"]
    assert [hit.score for hit in hits] == pytest.approx(
        [0.8, 0.8 * 0.6 + 0.2, 0.2 * (1 / 2.5) / (2 / 4.0625)], abs=1e-6
    )


@pytest.mark.parametrize(
    ("mode", "b", "section"),
    [
        ("hybrid", [0.6, 0.8], "y"),
        ("dense", [0.6, 0.8], "y"),
        ("lexical", [0.6, 0.8], "x"),
        ("hybrid", [0.5, np.sqrt(0.75)], "x"),  # .8 * .5 of b, .8 * .28 + .2 of a tea
    ],
)
def test_layer_one_weighs_a_sections_nearest_vector_and_its_best_text(mode, b, section):
    sections = tuple(Section(name, SectionKind.LIST) for name in "xy")
    memory = Memory(MemorySchema("two", sections))
    insert(memory, "x", "a tea")
    insert(memory, "y", "b")
    embedder = Table(tea=[1, 0], a_tea=[0.28, 0.96], b=b)
    hits = retriever(memory, mode, embedder=embedder, sections_kept=1).search("tea", 5)
    assert [hit.entry.section for hit in hits] == [section]


def test_blocks_are_never_searched(memory):
    assert "core" not in {
        hit.entry.section
        for mode in get_args(RetrievalMode)
        for hit in retriever(memory, mode).search("Ann tea Oslo", 99)
    }
    with pytest.raises(
        InputError,
        match=r"the sections \['core'\] are unknown\n  expected: list sections of the schema: semantic, episodic",
    ):
        retriever(memory, "lexical").search("tea", 5, ["core"])


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
        best = max(anchors, key=lambda name: max(vector @ a / norm(a) for a in anchors[name]))
        keys, _ = expected(memory, "dense", query, 99, sections=[best])
        assert [hit.entry.id for hit in made.search(query, 99)] == keys
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
retriever = retriever_factory(RetrievalConfig(embedder="none", sections_kept=1))(memory)
memory.apply(Operation(OperationKind.INSERT, "facts", "Ann likes tea"))
assert retriever.search("tea", 1)[0].entry.content == "Ann likes tea"
print({"faiss", "torch", "sentence_transformers", "transformers"} & set(sys.modules))
"""
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert printed.stdout == "set()\n"


def test_an_embedder_that_fails_leaves_nothing_behind(memory):
    embedder = HashingEmbedder()
    made = retriever(memory, "hybrid", embedder=embedder)
    insert(memory, "semantic", "Dan won the lottery")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedder, "embed", Mock(side_effect=OSError("no model")))
        with pytest.raises(OSError, match="no model"):
            made.search("lottery", 1)
    assert texts(made.search("lottery", 1)) == ["Dan won the lottery"]


# ------------------------------------------------------------------------------------------------
# a memory that changes
EMBEDDER = CachedEmbedder(HashingEmbedder(32))
WORDS = st.lists(
    st.sampled_from(["ann", "bob", "oslo", "rome", "tea", "lives", "likes", "the"]),
    min_size=1,
    max_size=4,
)
SECTION = st.sampled_from(["semantic", "episodic"])


class Following(RuleBasedStateMachine):
    @initialize(mode=st.sampled_from(["lexical", "dense", "hybrid"]))
    def start(self, mode):
        self.memory = Memory(MemorySchema.load("mem_alpha"))
        self.snapshots = [self.memory.snapshot()]
        self.mode = mode
        self.retriever = TwoLayerRetriever(
            self.memory, RetrievalConfig(retrieval=mode), embedder=EMBEDDER
        )

    @rule(section=SECTION, words=WORDS)
    def insert(self, section, words):
        self.memory.apply(Operation(OperationKind.INSERT, section, " ".join(words)))

    @rule(words=WORDS)
    def replace_core(self, words):
        self.memory.apply(Operation(OperationKind.REPLACE, "core", " ".join(words)))

    @rule(number=st.integers(0, 20), words=WORDS)
    def update(self, number, words):
        if entries := self.memory.entries():
            entry = entries[number % len(entries)]
            self.memory.apply(
                Operation(OperationKind.UPDATE, entry.section, " ".join(words), entry.id)
            )

    @rule(number=st.integers(0, 20))
    def delete(self, number):
        if entries := self.memory.entries():
            entry = entries[number % len(entries)]
            self.memory.apply(Operation(OperationKind.DELETE, entry.section, entry_id=entry.id))

    @rule()
    def snapshot(self):
        self.snapshots.append(self.memory.snapshot())

    @rule(number=st.integers(0, 20))
    def restore(self, number):
        self.memory.restore(self.snapshots[number % len(self.snapshots)])

    @rule(section=SECTION, words=WORDS)
    def restore_from_a_diverged_copy(self, section, words):
        other = self.memory.copy()
        other.apply(Operation(OperationKind.INSERT, section, " ".join(words)))
        self.snapshots.append(other.snapshot())

    @rule(
        query=WORDS,
        k=st.integers(1, 6),
        sections=st.sampled_from([None, ["semantic"], ["episodic", "semantic"]]),
    )
    def search(self, query, k, sections):
        keys, scores = expected(
            self.memory, self.mode, " ".join(query), k, sections=sections, embed=EMBEDDER.embed
        )
        hits = self.retriever.search(" ".join(query), k, sections)
        assert [hit.entry for hit in hits] == [self.memory.get(key) for key in keys]
        assert [hit.score for hit in hits] == pytest.approx([scores[key] for key in keys], abs=2e-6)

    @invariant()
    def nothing_deleted_is_found(self):
        if (
            hasattr(self, "retriever") and len(self.memory.changes) % 3 == 0
        ):  # at times many changes pass unseen
            hits = self.retriever.search("ann bob oslo rome tea lives likes", 99)
            assert {hit.entry.id for hit in hits} <= {entry.id for entry in self.memory.entries()}


Following.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestFollowing = Following.TestCase


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "status"), [('"lexical"', 0), ('"hybrid"', 0), ('"words"', 1)])
def test_a_strict_type_checker_takes_the_names_of_modes(tmp_path, mode, status):
    program = tmp_path / "program.py"
    program.write_text(
        "from memalpha import AgentConfig, MemoryAgent, RetrievalConfig\n"
        f"RetrievalConfig(retrieval={mode})\nAgentConfig(retrieval={mode})\n"
        f"MemoryAgent.without_model(retrieval={mode})\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", str(program)]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == status, checked.stdout
    assert checked.stdout.count("[arg-type]") == 3 * status
