"""The synthetic task against plain loops."""

import itertools

import numpy as np
import pytest

from memalpha.routing.tasks import SyntheticOptions, SyntheticTask

RAGGED = SyntheticTask(
    SyntheticOptions(dimension=5, choices=3, deciders=2, facets=2, steps=4, p_end=0.4)
)


def test_rewards_are_the_mean_cosine_of_the_nearest_facet():
    running = RAGGED.begin(4, 0, held_out=True)
    prompts = running.observe().reshape(4, 2, 5)
    actions = np.array([[0, 1], [2, 2], [1, 0], [0, 0]])
    rewards, *_ = running.step(actions)
    for i, row in enumerate(actions):
        cosines = [
            max(prompts[i, k] @ facet for facet in RAGGED.specialties[k, row[k]]) for k in range(2)
        ]
        assert rewards[i] == pytest.approx(np.mean(cosines), abs=1e-6)
    for vectors in (RAGGED.specialties, prompts):
        assert np.linalg.norm(vectors, axis=-1) == pytest.approx(1)


def test_the_optimum_is_what_the_best_of_all_joint_actions_earns():
    pairs = [np.tile(pair, (30, 1)) for pair in itertools.product(range(3), repeat=2)]
    copies = [RAGGED.begin(30, 1, held_out=True) for _ in pairs]  # the same prompts in each
    total = np.zeros(30)
    running = np.ones(30, dtype=bool)
    while running.any():
        steps = [copy.step(pair) for copy, pair in zip(copies, pairs, strict=True)]
        total += running * np.max([rewards for rewards, *_ in steps], axis=0)
        running &= ~steps[0][1]
    assert total == pytest.approx(copies[0].optimum)


def test_an_episode_that_ends_is_followed_by_another_with_noise_unless_it_is_held_out():
    running = RAGGED.begin(200, 2)
    prompts = running.observe()
    actions = np.zeros((200, 2), dtype=np.int64)
    rewards, ended, truncated, reached = running.step(actions)
    assert ended.any() and not ended.all() and not truncated.any()
    assert (running.observe()[~ended] == reached[~ended]).all()
    assert (running.observe()[ended] != reached[ended]).any(axis=1).all()
    best = np.einsum("nkd,kfd->nkf", prompts.reshape(200, 2, 5), RAGGED.specialties[:, 0])
    noise = rewards - best.max(axis=-1).mean(axis=-1)
    assert noise.std() == pytest.approx(0.1, rel=0.2)
