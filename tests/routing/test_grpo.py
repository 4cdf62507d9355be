"""Standings and mixtures by hand, and a group against the plain update it is made of."""

import numpy as np
import pytest
import torch

from memalpha.errors import InputError
from memalpha.policies import PolicyOptions
from memalpha.routing.gae import gae
from memalpha.routing.grpo import GroupOptions, MultiAgentGRPO, learn, make_agents, mix, relative_returns
from memalpha.routing.learner import collect, seeds_of
from memalpha.routing.ppo import Batch, PPOOptions, normalised
from memalpha.routing.tasks import SyntheticOptions, SyntheticTask

TASK = SyntheticTask(SyntheticOptions(dimension=4, choices=3, steps=3, p_end=0.3))
SHAPE = TASK.shape
OPTIONS = PPOOptions(epochs=2, batch_size=16)


def test_relative_returns_by_hand():
    # means -2 and -6, of the group -4; squared distances 9, 1, 1, 9, so the deviation is sqrt(5); better is above zero
    better, worse = relative_returns([torch.tensor([-1.0, -3.0]), torch.tensor([-5.0, -7.0])])
    assert better.tolist() == pytest.approx([3 / 5**0.5, 1 / 5**0.5])
    assert worse.tolist() == pytest.approx([-1 / 5**0.5, -3 / 5**0.5])
    few, many = relative_returns(
        [torch.tensor([4.0]), torch.tensor([0.0, 0.0, 0.0])]
    )  # each agent counts once: mean 2, deviation 2
    assert few.tolist() == pytest.approx([1.0]) and many.tolist() == pytest.approx([-1.0] * 3)


def test_rewards_near_zero_and_equal_rewards_stay_small():
    for returns in ([torch.tensor([1e-9, -1e-9]), torch.tensor([1e-9])], [torch.zeros(3), torch.zeros(2)]):
        assert max(float(own.abs().max()) for own in relative_returns(returns)) < 2


def test_the_mixture_by_hand():
    own, standing = torch.tensor([1.0, 3.0]), torch.tensor([0.5, -2.0])  # normalised: -1 and 1
    assert mix(own, standing, 0.25).tolist() == pytest.approx([-0.75 + 0.125, 0.75 - 0.5])
    assert mix(own, standing, 0.0).tolist() == pytest.approx([-1, 1])
    assert mix(own, standing, 1.0).tolist() == pytest.approx([0.5, -2.0])


def agents(*entropies: float):
    return make_agents(SHAPE, PolicyOptions(hidden=(6,)), OPTIONS, GroupOptions((0.5,) * len(entropies), entropies), 3)


def batches(group, n: int = 24) -> list[Batch]:
    chance = torch.Generator().manual_seed(1)
    found = []
    for i, agent in enumerate(group):
        seen = torch.randn(n, 4, generator=chance)
        actions = torch.randint(3, (n, 1), generator=chance)
        with torch.no_grad():
            taken = agent.policy.log_probs(seen).gather(-1, actions[..., None]).squeeze(-1)
        advantages, returns = torch.randn(2, n, generator=chance) + i
        found.append(Batch(seen, actions, taken, advantages, returns))
    return found


@pytest.mark.parametrize("weight", [0.0, 0.4, 1.0])
def test_each_agent_learns_the_mixture_and_nothing_else(weight):
    group, (twin, _) = agents(0.0, 0.01), agents(0.0, 0.01)
    data = batches(group)
    reports = learn(group, [weight, 0.5], data, seed=9)
    mean = (data[0].returns.mean() + data[1].returns.mean()) / 2
    deviation = ((torch.cat([data[0].returns, data[1].returns]) - mean) ** 2).mean().sqrt()
    relative = (data[0].returns - mean) / deviation
    mixed = (1 - weight) * normalised(data[0].advantages) + weight * relative
    assert not twin.options.normalise  # the mixture is learned as it is
    assert [agent.options.entropy for agent in group] == [0.0, 0.01]
    twin.update(data[0]._replace(advantages=mixed), seeds_of(9, 2)[0])
    for trained, expected in zip(group[0].policy.parameters(), twin.policy.parameters(), strict=True):
        torch.testing.assert_close(trained, expected, atol=1e-6, rtol=1e-5)
    assert reports[0]["standing"] == pytest.approx(relative.mean().item(), abs=1e-5)


def test_every_agent_acts_in_its_own_episodes_and_learns_from_them(monkeypatch):
    group = [agent.policy for agent in agents(0.0, 0.01)]
    steps = collect(TASK, group, 6, 8, [1, 2])
    for i, policy in enumerate(group):
        own = slice(3 * i, 3 * i + 3)
        seen = steps.observations[:, own].flatten(0, 1)
        expected = policy.log_probs(seen).gather(-1, steps.actions[:, own].flatten(0, 1)[..., None]).squeeze(-1)
        torch.testing.assert_close(steps.log_probs[:, own].flatten(0, 1), expected)
        torch.testing.assert_close(steps.values[:, own].flatten(), policy.value(seen))
    learner, fresh = (MultiAgentGRPO(SHAPE, PolicyOptions(hidden=(6,)), OPTIONS, GroupOptions((0.5, 0.5)), 0) for _ in range(2))
    kept = []
    monkeypatch.setattr("memalpha.routing.grpo.learn", lambda *given: kept.append(given[2]) or learn(*given))
    metrics = learner.update(TASK, 4, length=8, seed=5, share_left=1.0)
    steps = collect(TASK, [agent.policy for agent in fresh.agents], 4, 8, seeds_of(5, 3)[:2])
    for i, batch in enumerate(kept[0]):
        part = [tensor[:, 2 * i : 2 * i + 2] for tensor in steps[3:]]
        assert metrics[f"agent_{i}/reward"] == pytest.approx(part[0].mean().item())
        torch.testing.assert_close(batch.advantages, gae(*part, 0.99, 0.95).advantages.flatten())


def test_the_group_decides_by_the_mean_of_its_agents():
    learner = MultiAgentGRPO(SHAPE, PolicyOptions(hidden=(6,)), OPTIONS, GroupOptions((0.5, 0.5)), seed=0)
    seen = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    expected = sum(agent.policy.log_probs(torch.from_numpy(seen)).exp() for agent in learner.agents) / 2
    assert learner.probabilities(seen) == pytest.approx(expected.detach().numpy(), abs=1e-6)


def test_numbers_of_agents_that_do_not_fit_are_refused():
    learner = MultiAgentGRPO(SHAPE, PolicyOptions(hidden=(6,)), OPTIONS, GroupOptions((0.5, 0.5)), seed=0)
    with pytest.raises(InputError, match="3 episodes"):
        learner.update(TASK, 3, 2, 0, 1.0)
    for wrong in ({"relative_weights": (1.5,)}, {"relative_weights": ()}, {"relative_weights": (0.5,), "entropies": (0.1, 0.2)}):
        with pytest.raises(InputError):
            GroupOptions(**wrong)
