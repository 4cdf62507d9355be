"""The Gymnasium environments: Gymnasium's own check, and the two forms against each other."""

import importlib
import sys
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from memalpha.errors import InputError, MissingExtraError
from memalpha.routing.env import RoutingEnv, RoutingVectorEnv
from memalpha.routing.learner import Acted, collect
from memalpha.routing.memories import SectionOptions, section_task
from memalpha.routing.tasks import SyntheticOptions, SyntheticTask

SECTIONS = SectionOptions(instances=1, preset="small", mode="lexical", embedder="hashing")
TASKS = {
    "one": lambda: SyntheticTask(),
    "ragged team": lambda: SyntheticTask(SyntheticOptions(deciders=3, steps=5, p_end=0.3)),
    "sections": lambda: section_task(SECTIONS),
    "sections in sequence": lambda: section_task(
        SectionOptions(**{**{n: getattr(SECTIONS, n) for n in SECTIONS.__slots__}, "sequential": True})
    ),
}


@pytest.mark.parametrize("name", TASKS)
def test_gymnasium_finds_no_fault(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*spec.*")  # the environment is made directly, not by a registered name
        check_env(RoutingEnv(TASKS[name]()), skip_render_check=True)


@pytest.mark.parametrize("name", ["one", "ragged team"])
def test_the_vector_form_gives_the_same_episodes_and_restarts_them_in_the_same_step(name):
    task = TASKS[name]()
    env, rng = RoutingVectorEnv(task, 3), np.random.default_rng(7)
    seen, _ = env.reset(seed=7)
    state = task.start(3, rng)  # the same draws, by hand
    actions = np.random.default_rng(0)
    ends = 0
    for _ in range(12):
        assert (seen == task.observe(state)).all()
        chosen = actions.integers(task.choices, size=(3, task.deciders))
        seen, rewards, terminated, truncated, info = env.step(chosen)
        state, expected, ended = task.act(state, chosen, rng)
        assert (rewards == expected).all() and (terminated == ended).all() and not truncated.any()
        if ended.any():
            assert (info["_final_obs"] == ended).all() and (info["final_obs"][ended] == task.observe(state)[ended]).all()
            fresh = task.start(int(ended.sum()), rng)
            whole = tuple(array.copy() for array in state)
            for array, new in zip(whole, fresh, strict=True):
                array[ended] = new
            state, ends = whole, ends + int(ended.sum())
    assert ends > 3


def test_without_gymnasium_the_install_line_is_given(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.delitem(sys.modules, "memalpha.routing.env")
    with pytest.raises(MissingExtraError, match=r"pip install -e '.\[routing\]'"):
        importlib.import_module("memalpha.routing.env")


def test_a_step_before_reset_is_refused():
    with pytest.raises(gymnasium.error.ResetNeeded):
        RoutingEnv(SyntheticTask()).step(np.array([0]))
    with pytest.raises(gymnasium.error.ResetNeeded):
        RoutingVectorEnv(SyntheticTask(), 2).step(np.array([[0], [0]]))


class Watcher:
    """Always takes option 0 and values an observation by its first number."""

    def act(self, observations):
        n = len(observations)
        return Acted(torch.zeros(n, 1, dtype=torch.long), torch.full((n, 1), -0.5), self.value(observations))

    def value(self, observations):
        return observations[:, 0]


class Count(gymnasium.Env):
    """Observes 1, 2, 3, ...; terminates after ``over`` steps where that comes before the limit put around it."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
    action_space = gymnasium.spaces.MultiDiscrete([2])

    def __init__(self, over: int) -> None:
        self.over = over

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return np.array([1], dtype=np.float32), {}

    def step(self, action):
        self.at += 1
        return np.array([self.at + 1], dtype=np.float32), float(self.at), self.at >= self.over, False, {}


def test_collecting_tells_terminated_from_truncated_from_going_on():
    makers = [lambda: gymnasium.wrappers.TimeLimit(Count(2), 3), lambda: gymnasium.wrappers.TimeLimit(Count(9), 3)]
    env = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    steps = collect(env, Watcher(), length=4, seed=0)
    assert steps.observations[..., 0].T.tolist() == [[1, 2, 1, 2], [1, 2, 3, 1]]
    assert steps.rewards.T.tolist() == [[1, 2, 1, 2], [1, 2, 3, 1]]
    assert steps.values.T.tolist() == [[1, 2, 1, 2], [1, 2, 3, 1]]
    # the first terminates after two steps: nothing follows; the second is cut off after three, by its limit, and then by the end
    assert steps.next_values.T.tolist() == [[2, 0, 2, 0], [2, 3, 4, 2]]
    assert steps.last.T.tolist() == [[False, True, False, True], [False, False, True, True]]


def test_an_environment_that_restarts_a_step_later_is_refused():
    env = SyncVectorEnv([lambda: RoutingEnv(SyntheticTask())])
    with pytest.raises(InputError, match="SAME_STEP"):
        collect(env, Watcher(), length=2, seed=0)
