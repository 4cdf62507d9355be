"""PPO's losses worked by hand, their gradients by finite differences, and what an update does."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from memalpha.errors import InputError
from memalpha.policies import Checkpoint, Policy, PolicyOptions, Shape, make_policy
from memalpha.routing.learner import collect
from memalpha.routing.ppo import Agent, Batch, PPOOptions, clipped_policy_loss, normalised, pack, ppo_losses, unpack
from memalpha.routing.tasks import Outcome


class Table(Policy):
    """Two deciders, two options; probabilities and value are parameters, the same for every observation."""

    def __init__(self, first: float, second: float, value: float) -> None:
        nn.Module.__init__(self)
        self.table = nn.Parameter(torch.tensor([[1 - first, first], [1 - second, second]], dtype=torch.float64).log())
        self.worth = nn.Parameter(torch.tensor(value, dtype=torch.float64))

    def logits(self, observations):
        return self.table.expand(len(observations), -1, -1)

    def value(self, observations):
        return self.worth.expand(len(observations))


def test_the_clipped_loss_by_hand():
    # min(1.5, 1.2) * 1;  min(.5 * -1, .8 * -1) = -.8;  1.1 * 2;  min(.5 * 1, .8 * 1) = .5
    ratios, advantages = torch.tensor([[1.5], [0.5], [1.1], [0.5]]), torch.tensor([[1.0], [-1.0], [2.0], [1.0]])
    assert clipped_policy_loss(ratios, advantages, 0.2).item() == pytest.approx(-(1.2 - 0.8 + 2.2 + 0.5) / 4)


@pytest.mark.parametrize(
    ("per_decider", "surrogate", "kl", "clipped"),
    [
        # ratios .6 / .5 = 1.2 and .9 / .5 = 1.8; joint 2.16. Advantage 2, clip .3
        (True, -(1.2 * 2 + 1.3 * 2) / 2, ((0.2 - math.log(1.2)) + (0.8 - math.log(1.8))) / 2, 0.5),
        (False, -1.3 * 2, 1.16 - math.log(2.16), 1.0),
    ],
)
def test_all_parts_by_hand(per_decider, surrogate, kl, clipped):
    policy = Table(0.6, 0.9, value=3.0)
    half = torch.full((1, 2), 0.5, dtype=torch.float64).log()
    batch = Batch(torch.zeros(1, 1), torch.tensor([[1, 1]]), half, torch.tensor([2.0]).double(), torch.tensor([5.0]).double())
    options = PPOOptions(clip=0.3, value_coefficient=0.5, entropy=0.1)
    losses = ppo_losses(policy, batch, options, per_decider=per_decider)
    entropy = -(0.6 * math.log(0.6) + 0.4 * math.log(0.4) + 0.9 * math.log(0.9) + 0.1 * math.log(0.1)) / 2
    assert losses.policy.item() == pytest.approx(surrogate)
    assert losses.value.item() == pytest.approx((3 - 5) ** 2)
    assert losses.entropy.item() == pytest.approx(entropy)
    assert losses.kl.item() == pytest.approx(kl)
    assert losses.clipped.item() == pytest.approx(clipped)
    assert losses.total.item() == pytest.approx(surrogate + 0.5 * 4 - 0.1 * entropy)


SHAPE = Shape(4, 2, 3, ((0, 2), (2, 4)))


def batch_of(policy: Policy, n: int, seed: int = 0, off: float = 0.0) -> Batch:
    """Steps whose old log-probabilities are off by a random amount of up to ``off``."""
    chance = torch.Generator().manual_seed(seed)
    dtype = next(policy.parameters()).dtype
    seen = torch.randn(n, 4, generator=chance, dtype=dtype)
    actions = torch.randint(3, (n, 2), generator=chance)
    with torch.no_grad():
        taken = policy.log_probs(seen).gather(-1, actions[..., None]).squeeze(-1)
    shift = off * (2 * torch.rand(n, 2, generator=chance, dtype=dtype) - 1)
    advantages, returns = torch.randn(2, n, generator=chance, dtype=dtype)
    return Batch(seen, actions, taken + shift, advantages, returns)


@pytest.mark.parametrize("per_decider", [True, False])
@pytest.mark.parametrize("kind", ["separate", "shared_encoder", "team"])
def test_gradients_by_finite_differences(kind, per_decider):
    policy = make_policy(SHAPE, PolicyOptions(kind, hidden=(5,), projection=3), seed=2).double()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    batch, options = batch_of(policy, 12, off=0.4), PPOOptions(entropy=0.3)

    def loss() -> torch.Tensor:
        return ppo_losses(policy, batch, options, per_decider=per_decider).total

    gradients = torch.autograd.grad(loss(), list(policy.parameters()))
    step = 1e-6
    for parameter, gradient in zip(policy.parameters(), gradients, strict=True):
        flat = parameter.data.view(-1)
        for i in range(0, len(flat), max(1, len(flat) // 4)):
            start = flat[i].item()
            flat[i] = start + step
            above = loss().item()
            flat[i] = start - step
            below = loss().item()
            flat[i] = start
            assert gradient.view(-1)[i].item() == pytest.approx((above - below) / (2 * step), abs=2e-7)


def update(policy: Policy, batch: Batch, options: PPOOptions) -> dict[str, float]:
    return Agent(policy, options).update(batch, 0, per_decider=True)


def test_one_update_of_one_batch_is_one_clipped_adam_step():
    policy, twin = (make_policy(SHAPE, PolicyOptions(), seed=2) for _ in range(2))
    batch = batch_of(policy, 16)
    options = PPOOptions(epochs=1, batch_size=16, max_grad_norm=0.01)
    report = update(policy, batch, options)
    losses = ppo_losses(twin, batch._replace(advantages=normalised(batch.advantages)), options, per_decider=True)
    losses.total.backward()
    gradients = [p.grad for p in twin.parameters()]
    norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
    rates = {id(p): rate for group, rate in zip(twin.parameter_groups(), (3e-4, 1e-3), strict=True) for p in group}
    for trained, start, gradient in zip(policy.parameters(), twin.parameters(), gradients, strict=True):
        clipped = gradient * 0.01 / norm
        torch.testing.assert_close(trained, start - rates[id(start)] * clipped / (clipped.abs() + 1e-8), atol=1e-6, rtol=1e-4)
    assert report["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert (report["kl"], report["minibatches"], report["stopped"]) == (pytest.approx(0, abs=1e-6), 1, 0)


def test_data_of_another_policy_stop_the_update_before_anything_is_learnt():
    policy = make_policy(SHAPE, PolicyOptions(), seed=2)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    report = update(policy, batch_of(policy, 64, off=1.0), PPOOptions(target_kl=0.01))
    assert report["stopped"] == 1 and report["minibatches"] == 0 and report["stop_kl"] > 0.015
    assert "policy_loss" not in report
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())


def test_an_update_stops_at_one_and_a_half_times_the_target_and_averages_what_took_place():
    policy = make_policy(SHAPE, PolicyOptions(), seed=2)
    options = PPOOptions(lr_actor=1e-2, epochs=50, batch_size=32, target_kl=0.02)
    report = update(policy, batch_of(policy, 64), options)
    assert report["stopped"] == 1 and report["stop_kl"] > 0.03
    assert 1 <= report["minibatches"] < 100
    assert 0 < report["kl"] <= 0.03  # every minibatch that was learnt from stayed below
    policy = make_policy(SHAPE, PolicyOptions(), seed=2)
    report = update(policy, batch_of(policy, 64), PPOOptions(lr_actor=1e-2, epochs=50, batch_size=32, target_kl=0))
    assert (report["stopped"], report["minibatches"]) == (0, 100)


def test_rates_fall_linearly_if_they_are_to():
    policy = make_policy(SHAPE, PolicyOptions(), seed=2)
    for anneal, expected in ((True, [3e-4 * 0.25, 1e-3 * 0.25]), (False, [3e-4, 1e-3])):
        agent = Agent(policy, PPOOptions(anneal=anneal))
        agent.set_rates(0.25)
        assert [group["lr"] for group in agent.optimizer.param_groups] == expected


@pytest.mark.parametrize("kind", ["separate", "shared_encoder", "team"])
def test_a_checkpoint_holds_networks_weights_and_optimizer(tmp_path, kind):
    agent, again = (Agent(make_policy(SHAPE, PolicyOptions(kind, projection=3), seed), PPOOptions()) for seed in (2, 3))
    agent.update(batch_of(agent.policy, 16), 0)
    Checkpoint("ppo", 1, 16, 2, {}, {"members": pack([agent])}).save(tmp_path / "checkpoint.pt")
    loaded = Checkpoint.load(tmp_path)
    unpack(loaded.state["members"], [again])
    (policy,) = loaded.policies()
    assert (policy.shape, policy.options) == (agent.policy.shape, agent.policy.options)
    for name, tensor in agent.policy.state_dict().items():
        assert torch.equal(tensor, policy.state_dict()[name]) and torch.equal(tensor, again.policy.state_dict()[name])
    assert agent.update(batch_of(policy, 16), 1) == again.update(batch_of(policy, 16), 1)


def test_what_does_not_fit_is_named_and_changes_nothing():
    agents = [Agent(make_policy(SHAPE, PolicyOptions(hidden=hidden), 0), PPOOptions()) for hidden in ((8,), (8, 8))]
    other = Agent(make_policy(SHAPE, PolicyOptions(hidden=(8,)), 1), PPOOptions())
    before = other.policy.actor[0].weight.clone()
    with pytest.raises(InputError, match=r"actor\.2\.weight[\s\S]*actor\.4\.weight"):
        unpack(pack(agents[1:]), [other])
    with pytest.raises(InputError, match="2 agents"):
        unpack(pack(agents), [other])
    assert torch.equal(before, other.policy.actor[0].weight)


class Counting:
    """Observes 1, 2, 3, ...; odd episodes end after two steps, even ones after nine; earns the number of the step."""

    def start(self, n, rng):
        return (np.ones(n), np.where(np.arange(n) % 2, 9, 2))

    def observe(self, state):
        return state[0][:, None].astype(np.float32)

    def act(self, state, actions, rng):
        return Outcome((state[0] + 1, state[1]), state[0], state[0] >= state[1])


class Watcher:
    """Always takes option 0 and values an observation by its first number."""

    def log_probs(self, observations):
        return torch.tensor([[0.0, -torch.inf]]).expand(len(observations), -1, -1)

    def value(self, observations):
        return observations[:, 0]


def test_collecting_tells_terminated_from_cut_off_from_going_on():
    steps = collect(Counting(), [Watcher()], episodes=2, length=3, seeds=[0, 0])
    assert steps.observations[..., 0].T.tolist() == [[1, 2, 1], [1, 2, 3]]
    assert steps.rewards.T.tolist() == steps.values.T.tolist() == [[1, 2, 1], [1, 2, 3]]
    # the first terminates after two steps: nothing follows; the next one and the second are cut off by the end
    assert steps.next_values.T.tolist() == [[2, 0, 2], [2, 3, 4]]
    assert steps.last.T.tolist() == [[False, True, True], [False, False, True]]
    assert (steps.actions == 0).all() and (steps.log_probs == 0).all()
