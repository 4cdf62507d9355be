"""LinUCB against ridge regression solved in one go; random choice against chance."""

import numpy as np
import pytest

from memalpha.errors import InputError
from memalpha.routing.baselines import LinUCB, RandomRouter
from memalpha.routing.run import measure
from memalpha.routing.tasks import SyntheticOptions, SyntheticTask

TASK = SyntheticTask(SyntheticOptions(dimension=3, choices=2, deciders=2))


def test_estimates_and_bounds_are_those_of_ridge_regression():
    rng = np.random.default_rng(0)
    bandit = LinUCB(TASK.shape, ridge=0.7)
    seen, actions, rewards = rng.normal(size=(40, 6)).astype(np.float32), rng.integers(2, size=(40, 2)), rng.normal(size=40)
    for part in (slice(0, 25), slice(25, 40)):
        bandit.observe(seen[part], actions[part], rewards[part])
    asked = rng.normal(size=(4, 6)).astype(np.float32)
    found, bounds = bandit.estimates(asked), bandit.estimates(asked, alpha=2.0)
    for k in range(2):
        for a in range(2):
            x = seen[actions[:, k] == a, 3 * k : 3 * k + 3].astype(float)
            square = x.T @ x + 0.7 * np.eye(3)
            weights = np.linalg.solve(square, x.T @ rewards[actions[:, k] == a])
            for i, row in enumerate(asked[:, 3 * k : 3 * k + 3].astype(float)):
                deviation = (row @ np.linalg.solve(square, row)) ** 0.5
                assert found[i, k, a] == pytest.approx(row @ weights)
                assert bounds[i, k, a] == pytest.approx(row @ weights + 2 * deviation)


def test_linucb_finds_the_optimum_of_a_linear_task_and_chance_does_not():
    bandit, chance = LinUCB(TASK.shape), RandomRouter(TASK.shape, 0)
    for learner in (bandit, chance):
        for i in range(5):
            learner.update(TASK, 20, 20, i, 1.0)
    assert measure(bandit, TASK, 500, 0)["fraction_of_optimal"] > 0.98
    assert abs(measure(chance, TASK, 4000, 0)["fraction_of_optimal"]) < 0.06


def test_state_goes_round_and_of_another_task_is_refused():
    bandit, again = LinUCB(TASK.shape), LinUCB(TASK.shape)
    bandit.update(TASK, 4, 5, 0, 1.0)
    again.load_state(bandit.state())
    seen = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    assert (again.estimates(seen, 1.0) == bandit.estimates(seen, 1.0)).all()
    with pytest.raises(InputError, match="shapes"):
        LinUCB(SyntheticTask().shape).load_state(bandit.state())
