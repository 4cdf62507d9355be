"""The synthetic task: rewards, ends and the optimum against plain loops."""

import importlib
import itertools
import sys
import warnings

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from memalpha.errors import InputError, MissingExtraError
from memalpha.routing.env import RoutingEnv
from memalpha.routing.tasks import Episodes, SyntheticOptions, SyntheticTask

RAGGED = SyntheticTask(SyntheticOptions(dimension=5, choices=3, deciders=2, facets=2, steps=4, p_end=0.4))


def run_through(task, state, choose, rng=None):
    """Returns and lengths of episodes, one at a time."""
    returns, lengths = [], []
    for row in range(len(state[0])):
        at, total, length, over = tuple(array[row : row + 1] for array in state), 0.0, 0, False
        while not over:
            at, reward, ended = task.act(at, choose(at), rng)
            total, length, over = total + reward[0], length + 1, bool(ended[0])
        returns.append(total)
        lengths.append(length)
    return np.array(returns), np.array(lengths)


def test_rewards_are_the_mean_cosine_of_the_nearest_facet():
    state = RAGGED.start(4, np.random.default_rng(0))
    seen = RAGGED.observe(state).reshape(4, 2, 5)
    actions = np.array([[0, 1], [2, 2], [1, 0], [0, 0]])
    rewards = RAGGED.act(state, actions, None).rewards
    for i, row in enumerate(actions):
        cosines = [max(seen[i, k] @ facet for facet in RAGGED.specialties[k, row[k]]) for k in range(2)]
        assert rewards[i] == pytest.approx(np.mean(cosines), abs=1e-6)
    assert np.linalg.norm(RAGGED.specialties, axis=-1) == pytest.approx(1)
    assert np.linalg.norm(seen, axis=-1) == pytest.approx(1)


def test_the_optimum_is_what_the_best_of_all_joint_actions_earns():
    state = RAGGED.start(30, np.random.default_rng(1))

    def best(at):
        return max(
            (np.array([pair]) for pair in itertools.product(range(3), repeat=2)), key=lambda a: RAGGED.act(at, a, None).rewards[0]
        )

    returns, lengths = run_through(RAGGED, state, best)
    assert returns == pytest.approx(RAGGED.optimum(state))
    assert set(lengths) == {1, 2, 3, 4} and (lengths == state[1]).all()


def test_noise_is_as_large_as_it_is_said_to_be_and_expected_rewards_have_none():
    task = SyntheticTask(SyntheticOptions(noise=0.3))
    state = task.start(20_000, np.random.default_rng(2))
    actions = np.zeros((20_000, 1), dtype=np.int64)
    clean = task.act(state, actions, None).rewards
    noise = task.act(state, actions, np.random.default_rng(3)).rewards - clean
    assert noise.std() == pytest.approx(0.3, rel=0.03) and abs(noise.mean()) < 0.01
    assert abs(clean.mean()) < 0.01  # one option taken always, whatever the prompt, earns nothing


def test_seeds_fix_the_specialties_and_held_out_episodes():
    one, same, other = (SyntheticTask(SyntheticOptions(seed=seed)) for seed in (1, 1, 2))
    assert (one.specialties == same.specialties).all() and not (one.specialties == other.specialties).any()
    assert (one.held_out(5, 3)[0] == same.held_out(5, 3)[0]).all()
    assert not (one.held_out(5, 3)[0] == one.held_out(5, 4)[0]).any()


def test_episodes_restart_as_they_end():
    episodes, rng = Episodes(RAGGED, 3, 7), np.random.default_rng(7)
    state, actions, ends = RAGGED.start(3, rng), np.random.default_rng(0), 0  # the same draws, by hand
    for _ in range(12):
        assert (episodes.observe() == RAGGED.observe(state)).all()
        chosen = actions.integers(3, size=(3, 2))
        rewards, ended, reached = episodes.step(chosen)
        state, expected, over = RAGGED.act(state, chosen, rng)
        assert (rewards == expected).all() and (ended == over).all() and (reached == RAGGED.observe(state)).all()
        fresh = RAGGED.start(int(over.sum()), rng) if over.any() else ()
        for array, new in zip(state, fresh, strict=False):
            array[over] = new
        ends += int(over.sum())
    assert ends > 3


@pytest.mark.parametrize("task", [SyntheticTask(), RAGGED], ids=["one", "ragged team"])
def test_gymnasium_finds_no_fault(task):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*spec.*")  # the environment is made directly, not by a registered name
        check_env(RoutingEnv(task), skip_render_check=True)


def test_without_gymnasium_the_install_line_is_given(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.delitem(sys.modules, "memalpha.routing.env")
    with pytest.raises(MissingExtraError, match="gymnasium"):
        importlib.import_module("memalpha.routing.env")


@pytest.mark.parametrize("wrong", [{"choices": 1}, {"dimension": 0}, {"noise": -1}, {"p_end": 1.0}, {"steps": 2.5}])
def test_wrong_options_are_named(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        SyntheticOptions(**wrong)
