"""Networks; advantages, losses and updates worked by hand, by finite differences and against plain
loops."""

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

from memalpha.contrib.router.learner import (
    GroupOptions,
    LinUCB,
    learn_as_group,
    make_agents,
    relative_returns,
    replay_episodes,
    seeds_of,
)
from memalpha.contrib.router.policy import (
    Batch,
    NetworkOptions,
    Policy,
    PPOAgent,
    PPOOptions,
    Shape,
    Trajectories,
    batch_of,
    gae,
    make_policy,
    normalise_values,
    pack,
    ppo_losses,
    unpack,
)
from memalpha.contrib.router.tasks import Experience, SyntheticOptions, SyntheticTask
from memalpha.errors import InputError

SHAPE = Shape(4, 2, 3, ((0, 2), (2, 4)))
TEAM = SyntheticTask(SyntheticOptions(dimension=3, choices=2, deciders=2))
RAGGED = SyntheticTask(SyntheticOptions(dimension=4, choices=3, steps=3, p_end=0.3))
WIDE = Shape(6, 2, 3, ((0, 3), (3, 6)))


@pytest.mark.parametrize("share", [False, True])
def test_a_teams_actor_sees_its_view_alone_and_the_value_sees_all(share):
    policy = make_policy(WIDE, NetworkOptions("team", hidden=(8,), share_actors=share), seed=1)
    seen = torch.randn(1, 6)
    other = seen + torch.tensor([0, 0, 0, 1, 1, 1])
    before, after = policy.logits(seen), policy.logits(other)
    assert torch.equal(before[:, 0], after[:, 0]) and not torch.equal(before[:, 1], after[:, 1])
    assert policy.value(seen) != policy.value(other)


# ---------------------------------------------------------------------------------------
# GAE
def advantages_of(*columns, gamma, lam):
    return gae(Trajectories(None, None, None, *columns), gamma, lam)


def test_advantages_of_two_episodes_of_unequal_length_by_hand():
    def column(*values):
        return torch.tensor(values, dtype=torch.float64)[:, None]

    # gamma .5, lambda .5, so gamma * lambda = .25; the first episode terminates at t = 1, the
    # second at t = 2 d0 = 1 + .5 * 1 - .5 = 1,  d1 = 2 - 1 = 1,  d2 = 3 - 2 = 1;  A2 = 1, A1 = 1
    # (its episode ends), A0 = 1 + .25 * 1
    last = torch.tensor([[False], [True], [True]])
    given = column(1, 2, 3), column(0.5, 1, 2), column(1, 0, 0), last
    advantages, returns = advantages_of(*given, column(1, 1, 1), gamma=0.5, lam=0.5)
    assert advantages.flatten().tolist() == [1.25, 1.0, 1.0] and returns.flatten().tolist() == [
        1.75,
        2.0,
        3.0,
    ]
    # ratios 2, .5, 4: x2 = 4, x1 = .5, x0 = 2 * 1 + .25 * 1 * .5; A0 = 1 + .25 * .5, A1 = 1, A2 =
    # 1; targets V + x
    advantages, returns = advantages_of(*given, column(2, 0.5, 4), gamma=0.5, lam=0.5)
    assert advantages.flatten().tolist() == [1.125, 1.0, 1.0] and returns.flatten().tolist() == [
        2.625,
        1.5,
        6.0,
    ]


# ---------------------------------------------------------------------------------------
# PPO
class Table(Policy):  # probabilities and value are parameters, the same for every observation
    def __init__(self, first: float, second: float, value: float) -> None:
        nn.Module.__init__(self)
        self.table = nn.Parameter(
            torch.tensor([[1 - first, first], [1 - second, second]], dtype=torch.float64).log()
        )
        self.worth = nn.Parameter(torch.tensor(value, dtype=torch.float64))

    def logits(self, observations):
        return self.table.expand(len(observations), -1, -1)

    def value(self, observations):
        return self.worth.expand(len(observations))


@pytest.mark.parametrize(
    ("per_decider", "advantage", "surrogate", "kl", "clipped"),
    [
        # ratios .6 / .5 = 1.2 and .9 / .5 = 1.8; joint 2.16. Clip .3; a negative advantage takes
        # the larger ratio
        (
            True,
            2.0,
            -(1.2 * 2 + 1.3 * 2) / 2,
            ((0.2 - math.log(1.2)) + (0.8 - math.log(1.8))) / 2,
            0.5,
        ),
        (False, 2.0, -1.3 * 2, 1.16 - math.log(2.16), 1.0),
        (False, -2.0, 2.16 * 2, 1.16 - math.log(2.16), 1.0),
    ],
)
def test_all_parts_of_the_loss_by_hand(per_decider, advantage, surrogate, kl, clipped):
    half = torch.full((1, 2), 0.5, dtype=torch.float64).log()
    numbers = (torch.tensor([advantage]).double(), torch.tensor([5.0]).double())
    batch = Batch(
        torch.zeros(1, 1), torch.tensor([[1, 1]]), half, *numbers, torch.tensor([3.0]).double()
    )  # its weight: 3
    options = PPOOptions(clip=0.3, value_coefficient=0.5, entropy=0.1)
    total, parts = ppo_losses(Table(0.6, 0.9, value=3.0), batch, options, per_decider=per_decider)
    entropy = (
        -(0.6 * math.log(0.6) + 0.4 * math.log(0.4) + 0.9 * math.log(0.9) + 0.1 * math.log(0.1)) / 2
    )
    expected = {
        "policy_loss": 3 * surrogate,
        "value_loss": (3 - 5) ** 2,
        "entropy": entropy,
        "kl": kl,
        "clipped": clipped,
    }
    assert {name: part.item() for name, part in parts.items()} == pytest.approx(expected)
    assert total.item() == pytest.approx(3 * surrogate + 0.5 * 4 - 0.1 * entropy)


def batch_of_policy(
    policy: Policy, n: int, seed: int = 0, off: float = 0.0, size: int = 4, deciders: int = 2
) -> Batch:
    chance, dtype = torch.Generator().manual_seed(seed), next(policy.parameters()).dtype
    seen = torch.randn(n, size, generator=chance, dtype=dtype)
    actions = torch.randint(3, (n, deciders), generator=chance)
    with torch.no_grad():
        taken = policy.log_probs(seen).gather(-1, actions[..., None]).squeeze(-1)
    shift = off * (2 * torch.rand(n, deciders, generator=chance, dtype=dtype) - 1)
    advantages, returns = torch.randn(2, n, generator=chance, dtype=dtype)
    return Batch(seen, actions, taken + shift, advantages, returns, torch.ones(n, dtype=dtype))


@pytest.mark.parametrize("per_decider", [True, False])
@pytest.mark.parametrize("kind", ["separate", "team"])
def test_gradients_by_finite_differences(kind, per_decider):
    policy = make_policy(SHAPE, NetworkOptions(kind, hidden=(5,), projection=3), seed=2).double()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(
                0.3
                * torch.randn(
                    parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())
                )
            )
    batch, options = batch_of_policy(policy, 12, off=0.4), PPOOptions(entropy=0.3)

    def loss() -> torch.Tensor:
        return ppo_losses(policy, batch, options, per_decider=per_decider)[0]

    parameters, chance, step = list(policy.parameters()), torch.Generator().manual_seed(0), 1e-6
    gradients = torch.autograd.grad(loss(), parameters)
    for _ in range(5):
        directions = [torch.randn(p.shape, generator=chance, dtype=p.dtype) for p in parameters]
        ends = []
        for sign in (1, -2, 1):  # there, back to the other side, home
            with torch.no_grad():
                [p.add_(sign * step * d) for p, d in zip(parameters, directions, strict=True)]
            ends.append(loss().item())
        along = sum((g * d).sum().item() for g, d in zip(gradients, directions, strict=True))
        assert along == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-6)


def test_one_update_of_one_batch_is_one_clipped_adam_step():
    policy, twin = (make_policy(SHAPE, NetworkOptions(), seed=2) for _ in range(2))
    batch, options = (
        batch_of_policy(policy, 16),
        PPOOptions(epochs=1, batch_size=16, max_grad_norm=0.01, anneal=True),
    )
    agent = PPOAgent(policy, options)
    agent.set_rates(0.25)  # of the run is left
    report = agent.update(batch, 0, per_decider=True)
    total, _ = ppo_losses(
        twin,
        batch._replace(advantages=normalise_values(batch.advantages)),
        options,
        per_decider=True,
    )
    total.backward()
    gradients = [p.grad for p in twin.parameters()]
    norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
    rates = {
        id(p): rate / 4
        for group, rate in zip(twin.parameter_groups(), (3e-4, 1e-3), strict=True)
        for p in group
    }
    for trained, start, gradient in zip(
        policy.parameters(), twin.parameters(), gradients, strict=True
    ):
        clipped = gradient * 0.01 / norm
        torch.testing.assert_close(
            trained,
            start - rates[id(start)] * clipped / (clipped.abs() + 1e-8),
            atol=1e-6,
            rtol=1e-4,
        )
    assert report["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert (report["kl"], report["minibatches"], report["stopped"]) == (
        pytest.approx(0, abs=1e-6),
        1,
        0,
    )


def test_an_epoch_stops_at_one_and_a_half_times_the_target_and_the_update_at_its_mean(monkeypatch):
    # epochs of means .005, .018 (its second minibatch is refused) and .0225, which ends the update
    scripted = iter([0.0, 0.01, 0.005, 0.031, 0.025, 0.02])

    def losses(*given: object, **more: object) -> tuple:
        total, parts = ppo_losses(*given, **more)
        return total, {**parts, "kl": torch.tensor(next(scripted))}

    monkeypatch.setattr("memalpha.contrib.router.policy.ppo_losses", losses)
    options = PPOOptions(lr_actor=1e-2, epochs=9, batch_size=32, target_kl=0.02)
    agent = PPOAgent(make_policy(SHAPE, NetworkOptions(), seed=2), options)
    report = agent.update(batch_of_policy(agent.policy, 64), 0)
    assert (report["stopped"], report["minibatches"]) == (1, 5)
    assert report["stop_kl"] == pytest.approx(0.0225)
    assert report["kl"] == pytest.approx((0 + 0.01 + 0.005 + 0.025 + 0.02) / 5)


def test_a_checkpoint_that_does_not_fit_changes_nothing_and_one_that_does_goes_on():
    def fresh(seed, hidden=(64, 64)):
        return PPOAgent(make_policy(SHAPE, NetworkOptions("team", hidden), seed), PPOOptions())

    agent, again, wide = fresh(2), fresh(3), fresh(0, (8, 8))
    agent.update(batch_of_policy(agent.policy, 16), 0)
    before = deepcopy(wide.policy.state_dict())
    with pytest.raises(InputError, match=r"actors\.0\.0\.weight"):
        unpack(pack([agent]), [wide])
    assert str(before) == str(wide.policy.state_dict())
    unpack(deepcopy(pack([agent])), [again])
    batch = batch_of_policy(agent.policy, 16)
    assert agent.update(batch, 1) == again.update(batch, 1)


def test_old_steps_are_replayed_with_todays_probabilities_values_and_bounded_ratios():
    policy = make_policy(SHAPE, NetworkOptions(), seed=2)
    batch = batch_of_policy(policy, 3)
    shift, ended = torch.tensor([0.0, 1.0, -9.0]), torch.tensor([False, True, True])
    reached = torch.ones(3, 4)
    old = Experience(
        batch.observations,
        batch.actions,
        batch.log_probs.sum(1) + shift,
        torch.ones(3),
        reached,
        ended,
        ended,
    )
    found = batch_of(replay_episodes(policy, old, max_ratio=5.0), PPOOptions(gamma=0.5, lam=0.5))
    torch.testing.assert_close(found.log_probs, batch.log_probs)
    torch.testing.assert_close(found.weights, torch.tensor([1.0, math.exp(-1), 5.0]))
    value, after = policy.value(batch.observations).detach(), policy.value(reached).detach()
    residual = torch.ones(3) - value
    first = residual[0] + 0.5 * after[0] + 0.25 * math.exp(-1) * residual[1]
    torch.testing.assert_close(found.advantages, torch.stack([first, residual[1], residual[2]]))
    torch.testing.assert_close(
        found.returns, value + torch.stack([first, math.exp(-1) * residual[1], 5 * residual[2]])
    )


# ---------------------------------------------------------------------------------------
# multi-agent GRPO
def test_relative_returns_by_hand():
    # means -2 and -6, of the group -4; squared distances 9, 1, 1, 9, so the deviation is sqrt(5);
    # better is above zero
    better, worse = relative_returns([torch.tensor([-1.0, -3.0]), torch.tensor([-5.0, -7.0])])
    assert better.tolist() == pytest.approx([3 / 5**0.5, 1 / 5**0.5])
    assert worse.tolist() == pytest.approx([-1 / 5**0.5, -3 / 5**0.5])
    # each agent counts once: mean 2, deviation 2
    few, many = relative_returns([torch.tensor([4.0]), torch.tensor([0.0, 0.0, 0.0])])
    assert few.tolist() == pytest.approx([1.0]) and many.tolist() == pytest.approx([-1.0] * 3)
    for returns in (
        [torch.tensor([1e-9, -1e-9]), torch.tensor([1e-9])],
        [torch.zeros(3), torch.zeros(2)],
    ):
        assert (
            max(float(own.abs().max()) for own in relative_returns(returns)) < 2
        )  # rewards near zero, and equal ones


@pytest.mark.parametrize("weight", [0.0, 0.4, 1.0])
def test_each_agent_learns_the_mixture_and_nothing_else(weight):
    options = (
        NetworkOptions(hidden=(6,)),
        PPOOptions(epochs=2, batch_size=16),
        GroupOptions((0.5, 0.5), (0, 0.01)),
    )
    group, (twin, _) = (make_agents(RAGGED.shape, *options, 3) for _ in range(2))
    data = [batch_of_policy(agent.policy, 24, seed=i, deciders=1) for i, agent in enumerate(group)]
    reports = learn_as_group(group, [weight, 0.5], data, seed=9)
    mean = (data[0].returns.mean() + data[1].returns.mean()) / 2
    deviation = ((torch.cat([data[0].returns, data[1].returns]) - mean) ** 2).mean().sqrt()
    own = data[0].advantages / (data[0].advantages ** 2).mean() ** 0.5
    relative = (data[0].returns - mean) / deviation
    assert not twin.options.normalise  # the mixture is learned as it is
    assert [agent.options.entropy for agent in group] == [0.0, 0.01]
    twin.update(
        data[0]._replace(advantages=(1 - weight) * own + weight * relative), seeds_of(9, 2)[0]
    )
    for trained, expected in zip(
        group[0].policy.parameters(), twin.policy.parameters(), strict=True
    ):
        torch.testing.assert_close(trained, expected, atol=1e-6, rtol=1e-5)
    assert reports[0]["standing"] == pytest.approx(relative.mean().item(), abs=1e-5)


# ---------------------------------------------------------------------------------------
# LinUCB
def test_estimates_and_bounds_are_those_of_ridge_regression():
    rng = np.random.default_rng(0)
    bandit = LinUCB(TEAM.shape, ridge=0.7)
    seen, actions, rewards = (
        rng.normal(size=(40, 6)).astype(np.float32),
        rng.integers(2, size=(40, 2)),
        rng.normal(size=40),
    )
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
                assert (found[i, k, a], bounds[i, k, a]) == pytest.approx(
                    (row @ weights, row @ weights + 2 * deviation)
                )
