import numpy as np
import pytest
from brute_force import cosines, ranked
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.errors import InputError
from memalpha.retrieval.faiss_index import VectorIndex


def filled(vectors):
    index = VectorIndex(len(next(iter(vectors.values()))))
    for key, vector in vectors.items():
        index.add(key, vector)
    return index


def test_vectors_of_any_length_are_compared_by_direction():
    # By raw inner product "long" would win (9.9 against 1 and 0.98).
    index = filled({"near": [1.0, 0.0], "long": [7.0, 7.0], "short": [0.0098, 0.002]})
    found = index.search([3.0, 0.0], 3)
    assert found.ids == ("near", "short", "long")
    assert found.scores == pytest.approx((1.0, 0.0098 / np.hypot(0.0098, 0.002), np.sqrt(0.5)), abs=1e-6)


def test_exact_search_is_numpy_brute_force():
    rng = np.random.default_rng(0)
    vectors = {f"v{i}": rng.standard_normal(24) * rng.uniform(0.1, 9) for i in range(700)}
    index = filled(vectors)
    for query in rng.standard_normal((20, 24)):
        scores = cosines(vectors, query)
        found = index.search(query, 15)
        assert list(found.ids) == ranked(scores, list(vectors), 15, decimals=6)
        assert found.scores == pytest.approx([scores[key] for key in found.ids], abs=2e-6)


def test_ties_put_the_vector_added_last_first_even_across_the_cut():
    index = filled({f"v{i}": [1.0, 1.0] for i in range(60)} | {"far": [-1.0, 0.0]})
    assert index.search([1.0, 1.0], 3).ids == ("v59", "v58", "v57")
    index.update("v5", [2.0, 2.0])  # keeps its place
    index.remove("v59")
    assert index.search([1.0, 1.0], 2).ids == ("v58", "v57")
    assert index.search([1.0, 1.0], 60).ids == (*(f"v{i}" for i in range(58, -1, -1)), "far")


def test_an_updated_vector_is_found_where_it_points_now():
    index = filled({"a": [1.0, 0.0], "b": [0.0, 1.0]})
    index.update("a", [0.0, -2.0])
    assert index.search([0.0, -1.0], 2) == (("a", "b"), (1.0, -1.0))
    assert index.search([1.0, 0.0], 1).scores == (0.0,)


def test_zero_vectors_score_zero():
    index = filled({"zero": [0.0, 0.0], "back": [-1.0, 0.0], "front": [1.0, 0.0]})
    assert index.search([1.0, 0.0], 3) == (("front", "zero", "back"), (1.0, 0.0, -1.0))
    assert index.search([0.0, 0.0], 3).scores == (0.0, 0.0, 0.0)


def test_what_is_not_there_is_not_found():
    assert VectorIndex(3).search([1, 0, 0], 5) == ((), ())
    index = filled({"a": [1.0, 0.0, 0.0]})
    assert index.search([1, 0, 0], 0).ids == ()
    assert index.search([1, 0, 0], 9).ids == ("a",)


@pytest.mark.parametrize("bad", [[1.0], [1.0, 2.0, 3.0], [np.nan, 1.0], [np.inf, 1.0], [[1.0, 2.0]]])
def test_a_vector_that_does_not_fit_is_refused(bad):
    index = filled({"a": [1.0, 0.0]})
    for act in (lambda: index.add("b", bad), lambda: index.update("a", bad), lambda: index.search(bad, 1)):
        with pytest.raises(InputError, match="2 finite numbers"):
            act()
    assert index.search([1.0, 0.0], 5).ids == ("a",)


def test_misuse_names_the_id():
    index = filled({"a": [1.0, 0.0]})
    with pytest.raises(InputError, match="'a' is in the vector index already"):
        index.add("a", [1.0, 0.0])
    for act in (lambda: index.remove("b"), lambda: index.update("b", [1.0, 0.0]), lambda: index.vectors(["b"])):
        with pytest.raises(InputError, match="'b' is not in the vector index"):
            act()


STEP = st.tuples(st.sampled_from(["add", "update", "remove", "search"]), st.integers(0, 11), st.integers(0, 10**6))


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_any_sequence_of_writes_agrees_with_a_dict(steps):
    index, truth = VectorIndex(4), {}
    for action, number, seed in [*steps, ("search", 0, 0)]:
        key, vector = f"k{number}", np.random.default_rng(seed).standard_normal(4)
        if action == "add" and key not in truth:
            index.add(key, vector)
            truth[key] = vector
        elif action == "update" and key in truth:
            index.update(key, vector)
            truth[key] = vector
        elif action == "remove" and key in truth:
            index.remove(key)
            del truth[key]
        elif action == "search":
            assert len(index) == len(truth)
            assert list(index.search(vector, 5).ids) == ranked(cosines(truth, vector), list(truth), 5, decimals=6)
