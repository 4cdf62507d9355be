"""Standings and mixtures by hand, and a group against the plain update it is made of."""

import numpy as np
import pytest
import torch

from memalpha.errors import InputError
from memalpha.routing.env import RoutingVectorEnv
from memalpha.routing.gae import gae
from memalpha.routing.grpo import GroupActor, GroupOptions, MultiAgentGRPO, learn, make_members, mix, standings
from memalpha.routing.learner import collect, seeds_of, shape_of
from memalpha.routing.policies import PolicyOptions
from memalpha.routing.ppo import Batch, PPOOptions, normalised, update_policy
from memalpha.routing.tasks import SyntheticOptions, SyntheticTask

TASK = SyntheticTask(SyntheticOptions(dimension=4, choices=3, steps=3, p_end=0.3))
SHAPE = shape_of(TASK)
OPTIONS = PPOOptions(epochs=2, batch_size=16)


def test_standings_by_hand_and_better_is_above_zero_though_all_rewards_are_negative():
    # means -2 and -6, of the group -4; squared distances 9, 1, 1, 9, so the deviation is sqrt(5)
    better, worse = standings([torch.tensor([-1.0, -3.0]), torch.tensor([-5.0, -7.0])])
    root = 5**0.5
    assert better.tolist() == pytest.approx([3 / root, 1 / root])
    assert worse.tolist() == pytest.approx([-1 / root, -3 / root])


def test_the_groups_mean_counts_each_agent_once_however_much_it_did():
    few, many = standings([torch.tensor([4.0]), torch.tensor([0.0, 0.0, 0.0])])
    # mean 2, deviation 2
    assert few.tolist() == pytest.approx([1.0]) and many.tolist() == pytest.approx([-1.0] * 3)


def test_rewards_near_zero_and_equal_rewards_stay_small():
    for returns in ([torch.tensor([1e-9, -1e-9]), torch.tensor([1e-9])], [torch.zeros(3), torch.zeros(2)]):
        assert max(float(own.abs().max()) for own in standings(returns)) < 2


def test_the_mixture_by_hand():
    own, standing = torch.tensor([1.0, 3.0]), torch.tensor([0.5, -2.0])  # normalised: -1 and 1
    assert mix(own, standing, 0.25).tolist() == pytest.approx([-0.75 + 0.125, 0.75 - 0.5])
    assert mix(own, standing, 0.0).tolist() == pytest.approx([-1, 1])
    assert mix(own, standing, 1.0).tolist() == pytest.approx([0.5, -2.0])


def members(*weights: float):
    return make_members(
        SHAPE, PolicyOptions(hidden=(6,)), OPTIONS, GroupOptions(weights, tuple(0.01 * i for i in range(len(weights)))), 3
    )


def batches(group, n: int = 24) -> list[Batch]:
    chance = torch.Generator().manual_seed(1)
    found = []
    for i, member in enumerate(group):
        seen = torch.randn(n, 4, generator=chance)
        actions = torch.randint(3, (n, 1), generator=chance)
        with torch.no_grad():
            taken = member.policy.log_probs(seen).gather(-1, actions[..., None]).squeeze(-1)
        advantages, returns = torch.randn(2, n, generator=chance) + i
        found.append(Batch(seen, actions, taken, advantages, returns))
    return found


def test_agents_differ_in_weights_entropy_and_mixture():
    first, second = members(0.3, 0.7)
    assert (first.weight, second.weight, first.options.entropy, second.options.entropy) == (0.3, 0.7, 0.0, 0.01)
    assert not torch.equal(first.policy.actor[0].weight, second.policy.actor[0].weight)


@pytest.mark.parametrize("weight", [0.0, 0.4, 1.0])
def test_each_agent_learns_the_mixture_and_nothing_else(weight):
    group, twins = members(weight, 0.5), members(weight, 0.5)
    data = batches(group)
    reports = learn(group, data, seed=9)
    mean = (data[0].returns.mean() + data[1].returns.mean()) / 2
    deviation = ((torch.cat([data[0].returns, data[1].returns]) - mean) ** 2).mean().sqrt()
    relative = (data[0].returns - mean) / deviation
    mixed = data[0]._replace(advantages=(1 - weight) * normalised(data[0].advantages) + weight * relative)
    twin = twins[0]
    generator = torch.Generator().manual_seed(seeds_of(9, 2)[0])
    update_policy(twin.policy, twin.optimizer, mixed, twin.options, generator, per_decider=False)
    for trained, expected in zip(group[0].policy.parameters(), twin.policy.parameters(), strict=True):
        torch.testing.assert_close(trained, expected, atol=1e-6, rtol=1e-5)
    assert reports[0]["standing"] == pytest.approx(relative.mean().item(), abs=1e-5)
    assert not twin.options.normalise  # the mixture is learnt as it is


def test_every_agent_acts_on_its_own_columns():
    group = members(0.5, 0.5)
    seen = torch.randn(6, 4)
    acted = GroupActor(group, torch.Generator().manual_seed(0)).act(seen)
    for i, member in enumerate(group):
        own = slice(3 * i, 3 * i + 3)
        expected = member.policy.log_probs(seen[own]).gather(-1, acted.actions[own][..., None]).squeeze(-1)
        torch.testing.assert_close(acted.log_probs[own], expected)
        torch.testing.assert_close(acted.values[own], member.policy.value(seen[own]))


def test_an_update_keeps_rewards_by_agent_and_forgets_them_with_it(monkeypatch):
    learner = MultiAgentGRPO(SHAPE, PolicyOptions(hidden=(6,)), OPTIONS, GroupOptions((0.5, 0.5)), seed=0)
    kept = []

    def watch(group, data, seed):
        kept.append([list(rewards) for rewards in learner.group_rewards])
        kept.append(data)
        return learn(group, data, seed)

    monkeypatch.setattr("memalpha.routing.grpo.learn", watch)
    metrics = learner.update(RoutingVectorEnv(TASK, 4), length=8, seed=5, share_left=1.0)
    fresh = MultiAgentGRPO(SHAPE, PolicyOptions(hidden=(6,)), OPTIONS, GroupOptions((0.5, 0.5)), seed=0)
    env_seed, action_seed, _ = seeds_of(5, 3)
    steps = collect(RoutingVectorEnv(TASK, 4), GroupActor(fresh.members, torch.Generator().manual_seed(action_seed)), 8, env_seed)
    for i in range(2):
        rewards = steps.rewards[:, 2 * i : 2 * i + 2]
        assert kept[0][i] == rewards.flatten().tolist()
        assert metrics[f"agent_{i}/reward"] == pytest.approx(rewards.mean().item())
        part = steps.columns(2 * i, 2 * i + 2)
        expected = gae(part.rewards, part.values, part.next_values, part.last, 0.99, 0.95)
        torch.testing.assert_close(kept[1][i].advantages, expected.advantages.flatten())
    assert learner.group_rewards == [[], []]


def test_the_group_decides_by_the_mean_of_its_agents():
    learner = MultiAgentGRPO(SHAPE, PolicyOptions(hidden=(6,)), OPTIONS, GroupOptions((0.5, 0.5)), seed=0)
    seen = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    expected = sum(member.policy.log_probs(torch.from_numpy(seen)).exp() for member in learner.members) / 2
    assert learner.probabilities(seen) == pytest.approx(expected.detach().numpy(), abs=1e-6)


def test_what_cannot_be_is_said():
    learner = MultiAgentGRPO(SHAPE, PolicyOptions(hidden=(6,)), OPTIONS, GroupOptions((0.5, 0.5)), seed=0)
    with pytest.raises(InputError, match="3 environments for 2 agents"):
        learner.update(RoutingVectorEnv(TASK, 3), 2, 0, 1.0)
    with pytest.raises(InputError, match="relative_weights"):
        GroupOptions((1.5,))
    with pytest.raises(InputError, match="entropies"):
        GroupOptions((0.5,), (0.1, 0.2))
