"""Vectors behind Qdrant's client, against brute force and against FAISS; and the retriever on top."""

from __future__ import annotations

import numpy as np
import pytest
from brute_force import cosines, ranked
from hypothesis import given, settings
from hypothesis import strategies as st
from memalpha.retrieval.vectors import make_vectors
from stores import BY, MARTA, SCHEMA, insert, update

from memalpha.errors import InputError, ServiceError
from memalpha.retrieval.config import RetrievalConfig
from memalpha.retrieval.faiss_index import VectorIndex
from memalpha.retrieval.two_layer import TwoLayerRetriever
from memalpha.store.indexed import IndexedStore
from memalpha.store.journal import Journal

pytest.importorskip("qdrant_client", reason="the extra 'qdrant' is not installed")
from memalpha.retrieval.qdrant import QdrantVectors

VECTOR = st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=3, max_size=3)
STEPS = st.lists(st.tuples(st.sampled_from(["add", "update", "remove"]), st.sampled_from("abcde"), VECTOR), max_size=14)


@settings(max_examples=20)
@given(steps=STEPS, query=VECTOR, k=st.integers(0, 6), allowed=st.none() | st.sets(st.sampled_from("abcdex")))
def test_any_sequence_of_writes_agrees_with_brute_force_and_faiss(steps, query, k, allowed):
    store, faiss, truth = make_vectors("qdrant:memory", 3, 1000), VectorIndex(3), {}
    for kind, key, vector in steps:
        if (key in truth) == (kind == "add"):
            with pytest.raises(InputError):
                store.remove(key) if kind == "remove" else getattr(store, kind)(key, vector)
            continue
        for index in (store, faiss):
            index.remove(key) if kind == "remove" else getattr(index, kind)(key, vector)
        if kind == "remove":
            del truth[key]
        else:
            truth[key] = vector
    assert set(store.ids) == truth.keys() and len(store) == len(truth)
    scores = {key: score for key, score in cosines(truth, query).items() if allowed is None or key in allowed}
    found = store.search(query, k, allowed)
    assert list(found.ids) == ranked(scores, list(truth), k, decimals=6) == list(faiss.search(query, k, allowed).ids)
    assert np.allclose(found.scores, [scores[key] for key in found.ids], atol=2e-6)
    assert np.allclose(store.vectors(list(truth)), faiss.vectors(list(truth)), atol=1e-6) if truth else True


def test_of_equal_vectors_the_one_added_last_comes_first_also_over_the_edge():
    store = QdrantVectors("qdrant:memory", 2)
    for i in range(40):
        store.add(f"k{i}", [1, 1])
    store.add("far", [1, -1])
    store.update("k3", [2, 2])  # keeps its place
    assert store.search([1, 1], 3).ids == ("k39", "k38", "k37")
    assert store.search([1, 1], 2, {"k3", "k7", "far"}).ids == ("k7", "k3")
    assert store.search([1, 1], 3, {"k3", "far", "unknown"}) == (("k3", "far"), (1.0, 0.0))


class Letters:
    """Embeds a text by counting five letters."""

    dimension = 5

    def embed(self, texts):
        raw = np.array([[text.count(letter) + 1e-3 * len(text) for letter in "aeiou"] for text in texts], dtype=np.float32)
        return (raw / np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), 1e-9)).astype(np.float32).reshape(len(texts), 5)


@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_the_retriever_finds_the_same_behind_either(folder, mode):
    stores = {
        url: IndexedStore(
            Journal.open(folder / "s.db"),
            SCHEMA,
            lambda memory, url=url: TwoLayerRetriever(memory, RetrievalConfig(mode=mode, vectors=url), embedder=Letters()),
        )
        for url in ("", "qdrant:memory")
    }
    for i, text in enumerate(["banana apple", "echo tree", "iris kiwi", "oslo moon", "guru mumu", "banana"] * 3):
        stores[""].apply(MARTA, insert(f"{text} {i}", ["facts", "notes"][i % 2]), BY)
    stores["qdrant:memory"].apply(MARTA, update("1", "umbrella unusual"), BY)
    stores[""].forget(MARTA, "6")
    for query in ("banana", "iris moon", "uuu"):
        both = [[(h.entry.id, round(h.score, 5)) for h in s.search(MARTA, query, 7)] for s in stores.values()]
        assert both[0] == both[1] and len(both[0]) == 7 and "6" not in dict(both[0])
    assert all(s.check(MARTA) == [] for s in stores.values())


def test_an_index_that_lost_or_mixed_up_a_vector_is_found(folder):
    store = IndexedStore(
        Journal.open(folder / "s.db"),
        SCHEMA,
        lambda memory: TwoLayerRetriever(memory, RetrievalConfig(mode="hybrid", vectors="qdrant:memory"), embedder=Letters()),
    )
    for text in ("banana", "echo", "iris"):
        store.apply(MARTA, insert(text), BY)
    assert store.check(MARTA) == []
    retriever = store.retriever(MARTA)
    index = retriever._dense._indexes["facts"]
    assert isinstance(index, QdrantVectors)
    index.update("2", [0, 0, 0, 0, 1])
    assert store.check(MARTA) == ["facts: vectors of ['2'] are of other texts"]
    index.remove("2")
    assert store.check(MARTA) == ["facts: vectors of ['2'] are missing or left over"]
    retriever._lexical.update("3", "other words")
    assert store.check(MARTA)[0] == "BM25 holds 3 texts, the memory 3; different: ['3']"


def test_no_text_goes_to_the_database():
    store = QdrantVectors("qdrant:memory", 3)
    store.add("secret-key", [1, 0, 0])
    points, _ = store._client.scroll(store._name, with_payload=True, with_vectors=True)
    assert [(point.id, point.payload, point.vector) for point in points] == [(0, {}, [1.0, 0.0, 0.0])]


def test_addresses_that_are_none():
    with pytest.raises(InputError, match="vectors at 'redis:x'"):
        make_vectors("redis:x", 3, 10)
    with pytest.raises(ServiceError, match="the vector database failed"):
        make_vectors("http://127.0.0.1:1", 3, 10)
