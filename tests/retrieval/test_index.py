import numpy as np
import pytest
from brute_force import cosines, ranked
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.errors import InputError
from memalpha.retrieval.faiss_index import VectorIndex, centroids


def filled(vectors, **options):
    index = VectorIndex(len(next(iter(vectors.values()))), **options)
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
    allowed = {key for i, key in enumerate(vectors) if i % 3}
    for query in rng.standard_normal((20, 24)):
        scores = cosines(vectors, query)
        found = index.search(query, 15)
        assert list(found.ids) == ranked(scores, list(vectors), 15, decimals=6)
        assert found.scores == pytest.approx([scores[key] for key in found.ids], abs=2e-6)
        inside = {key: scores[key] for key in allowed}
        assert list(index.search(query, 15, allowed).ids) == ranked(inside, list(vectors), 15, decimals=6)


def test_ties_put_the_vector_added_last_first_even_across_the_cut():
    index = filled({f"v{i}": [1.0, 1.0] for i in range(60)} | {"far": [-1.0, 0.0]})
    assert index.search([1.0, 1.0], 3).ids == ("v59", "v58", "v57")
    index.update("v5", [2.0, 2.0])  # keeps its place
    index.remove("v59")
    assert index.search([1.0, 1.0], 2).ids == ("v58", "v57")
    assert index.search([1.0, 1.0], 60).ids == (*(f"v{i}" for i in range(58, -1, -1)), "far")


def test_zero_vectors_score_zero():
    index = filled({"zero": [0.0, 0.0], "back": [-1.0, 0.0], "front": [1.0, 0.0]})
    assert index.search([1.0, 0.0], 3) == (("front", "zero", "back"), (1.0, 0.0, -1.0))
    assert index.search([0.0, 0.0], 3).scores == (0.0, 0.0, 0.0)


def test_what_is_not_there_is_not_found():
    assert VectorIndex(3).search([1, 0, 0], 5) == ((), ())
    index = filled({"a": [1.0, 0.0, 0.0]})
    assert index.search([1, 0, 0], 0).ids == ()
    assert index.search([1, 0, 0], 9).ids == ("a",)
    assert index.search([1, 0, 0], 9, []).ids == ()
    assert index.search([1, 0, 0], 9, ["b"]).ids == ()


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
    with pytest.raises(InputError, match="dimension is 0"):
        VectorIndex(0)


STEP = st.tuples(st.sampled_from(["add", "update", "remove", "search"]), st.integers(0, 11), st.integers(0, 10**6))


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, max_size=40), st.sampled_from([1, 3, 1000]))
def test_any_sequence_of_writes_agrees_with_a_dict(steps, exact_limit):
    """With a limit of 1 or 3 the graph answers; at this size its beam covers everything, so it must agree too."""
    index, truth = VectorIndex(4, exact_limit=exact_limit), {}
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
            some = dict(list(truth.items())[::2])
            assert list(index.search(vector, 3, some).ids) == ranked(cosines(some, vector), list(truth), 3, decimals=6)


@pytest.fixture(scope="module")
def large():
    """5,000 vectors of 64 dimensions, 16 of them intrinsic; more than half of what was added was removed or rewritten since."""
    rng = np.random.default_rng(1)
    spread = rng.standard_normal((16, 64))

    def draw(n):
        return rng.standard_normal((n, 16)) @ spread + 0.3 * rng.standard_normal((n, 64))

    truth = {f"v{i}": vector for i, vector in enumerate(draw(6000))}
    index = filled(truth, exact_limit=500)
    index.search(draw(1)[0], 1)  # the graph is built here: what follows leaves tombstones
    for i in range(1000):
        index.remove(f"v{i}")
        del truth[f"v{i}"]
    for i, vector in enumerate(draw(500), start=1000):
        index.update(f"v{i}", vector)
        truth[f"v{i}"] = vector
    return index, truth, draw(100)


def test_approximate_search_finds_the_neighbours(large):
    index, truth, queries = large
    assert len(index) == 5000
    assert not index.exact
    matrix = np.stack(list(truth.values()))
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    keys, recalls = list(truth), []
    for query in queries:
        exact = matrix @ (query / np.linalg.norm(query))
        best = {keys[row] for row in np.argsort(-exact)[:10]}
        found = index.search(query, 10)
        assert found.scores == pytest.approx([exact[keys.index(key)] for key in found.ids], abs=2e-6)
        recalls.append(len(best & set(found.ids)) / 10)
    assert np.mean(recalls) >= 0.95


def test_approximate_search_respects_removals_and_allowed_ids(large):
    index, truth, queries = large
    allowed = [key for i, key in enumerate(truth) if i % 4 == 0]  # 1,250: above the limit, so the graph filters
    for query in queries[:20]:
        assert set(index.search(query, 200).ids) <= set(truth)
        inside = index.search(query, 10, allowed).ids
        best = ranked(cosines({key: truth[key] for key in allowed}, query), list(truth), 10, decimals=6)
        assert len(inside) == 10
        assert set(inside) <= set(allowed)
        assert len(set(inside) & set(best)) >= 8


def test_few_allowed_ids_are_searched_exactly(large):
    index, truth, queries = large
    few = dict(list(truth.items())[::50])
    for query in queries[:20]:
        assert list(index.search(query, 10, few).ids) == ranked(cosines(few, query), list(truth), 10, decimals=6)


def test_centroids_are_the_unit_means_of_the_vectors_nearest_to_them():
    rng = np.random.default_rng(2)
    vectors = np.concatenate([axis + 0.05 * rng.standard_normal((50, 4)) for axis in np.eye(4)])
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    found = centroids(vectors, 3)
    nearest = (vectors @ found.T).argmax(axis=1)
    assert len(set(nearest)) == 3
    for i, centre in enumerate(found):
        mean = vectors[nearest == i].mean(axis=0)
        assert centre == pytest.approx(mean / np.linalg.norm(mean), abs=1e-5)
    assert (centroids(vectors, 3) == found).all()
    with pytest.raises(InputError, match="4 clusters of 3 vectors"):
        centroids(vectors[:3], 4)
