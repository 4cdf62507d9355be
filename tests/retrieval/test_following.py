"""Random insert, update, delete, restore and copy sequences against a fresh brute force, in every
mode."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from test_two_layer import expected

from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema
from memalpha.retrieval import RetrievalConfig
from memalpha.retrieval.dense import CachedEmbedder, HashingEmbedder
from memalpha.retrieval.two_layer import TwoLayerRetriever
from memalpha.types import Operation, OperationKind

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
