"""Intervals by value: hand-worked, against a loop and scipy's bootstrap, against formulas, and by
how often they hold the truth."""

import math
import random

import numpy as np
import pytest

from memalpha.errors import InputError
from memalpha.record import statistics
from memalpha.record.statistics import difference, estimate, mean_over_sets


def scores(*rows):
    """One seed a row, instances a, b, c, ..."""
    return {
        seed: {chr(97 + i): float(value) for i, value in enumerate(row)}
        for seed, row in enumerate(rows)
    }


def sample(seed, n=40, seeds=1):
    rng = np.random.default_rng(seed)
    return {
        s: {f"i{k:03}": float(x) for k, x in enumerate(rng.beta(2, 3, n))} for s in range(seeds)
    }


def test_worked_by_hand(monkeypatch):
    # Two instances 0 and 1: a resample is (0, 0), a mixture or (1, 1) with probability 1/4, 1/2,
    # 1/4.
    found = estimate(scores([0, 1]))
    assert (found.mean, found.low, found.high, found.n) == (0.5, 0.0, 1.0, 2)
    assert found.stderr == pytest.approx(0.5)  # sd sqrt(1/2) over sqrt(2)
    same = estimate(scores([0.25, 0.25, 0.25]))
    assert (same.mean, same.low, same.high, same.stderr, same.agree) == (
        0.25,
        0.25,
        0.25,
        0.0,
        True,
    )
    monkeypatch.setattr(statistics, "LEVEL", 0.4)
    narrow = estimate(scores([0, 1]))  # percentiles 30 and 70 lie in the middle half
    assert (narrow.low, narrow.high) == (0.5, 0.5)


def test_seeds_are_shown_and_averaged_and_instances_drawn_for_all_alike():
    # Seeds that mirror each other: every instance has mean 1/2, so jointly drawn the mean cannot
    # vary; drawn apart it would.
    found = estimate(scores([0, 1, 0, 1], [1, 0, 1, 0]))
    assert (found.mean, found.low, found.high, found.stderr) == (0.5, 0.5, 0.5, 0.0)
    assert found.per_seed == {0: 0.5, 1: 0.5}
    found = estimate(scores([0, 0, 1], [1, 1, 1], [0, 1, 1]))
    assert found.mean == pytest.approx(6 / 9) and found.per_seed == pytest.approx(
        {0: 1 / 3, 1: 1, 2: 2 / 3}
    )
    assert found.stderr == pytest.approx(np.std([1 / 3, 2 / 3, 1], ddof=1) / math.sqrt(3))


def test_against_scipy(monkeypatch):
    stats = pytest.importorskip("scipy.stats")
    first, second = sample(2), sample(3)
    pairs = np.array([list(first[0].values()), list(second[0].values())])
    data = pairs[1] - pairs[0]
    for level in (0.95, 0.8):
        told = stats.bootstrap(
            (data,), np.mean, n_resamples=10_000, confidence_level=level, method="percentile", rng=5
        )
        monkeypatch.setattr(statistics, "LEVEL", level)
        found = difference(first, second)
        width = told.confidence_interval.high - told.confidence_interval.low
        assert found.low == pytest.approx(told.confidence_interval.low, abs=0.05 * width)
        assert found.high == pytest.approx(told.confidence_interval.high, abs=0.05 * width)
        assert found.stderr == pytest.approx(stats.sem(data)) and found.mean == pytest.approx(
            data.mean()
        )


def test_the_interval_holds_the_truth_as_often_as_it_says(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 400)
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(400):
        before = rng.normal(0.4, 0.2, 50)
        after = before + rng.normal(0.1, 0.1, 50)  # strongly paired
        monkeypatch.setattr(statistics, "SEED", trial)
        found = difference(scores(before), scores(after))
        hits += found.low <= 0.1 <= found.high
        assert found.high - found.low < 0.1  # unpaired it would be about 0.16
    assert (
        0.91 <= hits / 400 <= 0.98
    )  # standard error .011; the percentile interval is a little short


def test_rounding_makes_no_star_and_no_difference():
    for value in (0.7, 0.1, 1 / 3):
        found = estimate(scores([value] * 3))
        assert found.agree and (found.low, found.high) == pytest.approx((value, value), abs=1e-12)
    seeds = scores([0.1] * 3, [-0.3] * 3, [0.2] * 3)
    assert sum([0.1, -0.3, 0.2]) != 0
    zero = estimate(seeds)
    assert (zero.mean, zero.low, zero.high, zero.agree) == (0.0, 0.0, 0.0, True)


def test_weights_give_the_mean_over_questions():
    data, weights = scores([1, 0, 0.5]), {"a": 1, "b": 3, "c": 4}
    found = estimate(data, weights=weights)
    assert found.mean == pytest.approx(3 / 8)
    rng = random.Random(3)
    rows = [(1, 1), (0, 3), (0.5, 4)]
    draws = [rng.choices(rows, k=3) for _ in range(20_000)]
    means = sorted(sum(x * w for x, w in draw) / sum(w for _, w in draw) for draw in draws)
    exact = estimate(data, weights=weights)
    assert (exact.low, exact.high) == pytest.approx(
        (means[500], means[19_500])
    )  # few distinct values: the very same ones
    even = dict.fromkeys("abc", 2.0)
    assert estimate(data, weights=even) == estimate(data)


def test_a_difference_is_paired_and_its_interval_is_that_of_the_differences():
    first, second = sample(8), sample(9)
    by_hand = {0: {name: second[0][name] - first[0][name] for name in first[0]}}
    assert difference(first, second) == estimate(by_hand)
    back = difference(second, first)
    assert back.mean == -difference(first, second).mean
    shifted = {0: {name: value + 0.125 for name, value in first[0].items()}}
    found = difference(first, shifted)
    assert (found.low, found.high) == pytest.approx((0.125, 0.125))


def test_a_system_with_one_seed_is_paired_with_every_seed():
    baseline, trained = (
        {7: {"a": 0.0, "b": 0.5}},
        {1: {"a": 1.0, "b": 0.5}, 2: {"a": 0.5, "b": 1.0}, 3: {"a": 0.0, "b": 0.0}},
    )
    found = difference(baseline, trained)
    assert found.per_seed == {1: 0.5, 2: 0.5, 3: -0.25} and found.mean == pytest.approx(0.25)
    assert difference(trained, baseline).per_seed == {1: -0.5, 2: -0.5, 3: 0.25}
    other = difference(
        trained, {1: trained[1], 4: {"a": 1.0, "b": 1.0}}
    )  # seeds that do not pair are averaged first
    assert list(other.per_seed) == ["mean"] and other.mean == pytest.approx((1.0 + 0.75) / 2 - 0.5)


def test_what_cannot_be_paired_is_refused_by_name():
    with pytest.raises(
        InputError, match="2 instances are scored in one system and not in the other: c, d"
    ):
        difference(scores([1, 0, 1]), {0: {"a": 1.0, "b": 1.0, "d": 0.0}})
    with pytest.raises(InputError, match=r"1 instances have no score .*: b"):
        estimate({0: {"a": 1.0, "b": 1.0}, 1: {"a": 0.0}})
    with pytest.raises(InputError, match=r"2 instances have no score .*: b, c"):
        difference(scores([1, 0, 1]), scores([1, math.nan, math.nan]))
    for nothing in ({}, {0: {}}):
        with pytest.raises(InputError, match="no scores"):
            estimate(nothing)


def test_the_mean_over_sets_is_simple_and_its_interval_that_of_independent_draws():
    small, large = sample(11, n=20), sample(12, n=200)
    parts = [estimate(small), estimate(large)]
    found = mean_over_sets(parts)
    assert found.mean == pytest.approx((parts[0].mean + parts[1].mean) / 2) and found.n == 220
    assert found.stderr == pytest.approx(math.hypot(parts[0].stderr, parts[1].stderr) / 2)
    rng = np.random.default_rng(13)
    halves = [np.array(list(data[0].values())) for data in (small, large)]
    means = sum(rng.choice(half, size=(20_000, len(half))).mean(axis=1) for half in halves) / 2
    low, high = np.quantile(means, [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.05 * (high - low))
    assert found.agree
