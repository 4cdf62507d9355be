"""Networks: who sees what, how they start, which parameters learn."""

import pytest
import torch

from memalpha.errors import InputError
from memalpha.policies import PolicyOptions, Shape, make_policy

SHAPE = Shape(6, 2, 3, ((0, 3), (3, 6)))
POLICIES = [
    PolicyOptions("separate", hidden=(8, 5), projection=4),
    PolicyOptions("team", hidden=(8, 5), projection=4),
    PolicyOptions("team", hidden=(8,), share_actors=True),
]


@pytest.mark.parametrize("options", POLICIES, ids=str)
def test_an_almost_even_start_and_both_losses_reach_what_they_should(options):
    policy = make_policy(SHAPE, options, seed=1)
    actor, critic = policy.parameter_groups()
    assert sorted(map(id, [*actor, *critic])) == sorted(map(id, policy.parameters()))
    seen = torch.randn(7, 6)
    probabilities = policy.log_probs(seen).exp()
    assert probabilities.shape == (7, 2, 3) and policy.value(seen).shape == (7,)
    assert (probabilities - 1 / 3).abs().max() < 0.03
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(7, 2))
    probabilities[..., 0].sum().backward()
    assert all((p.grad is not None) == any(p is own for own in actor) for p in policy.parameters())
    policy.value(seen).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in policy.parameters() if p.dim() > 1)


@pytest.mark.parametrize("share", [False, True])
def test_a_teams_actor_sees_its_view_alone_and_the_value_sees_all(share):
    policy = make_policy(SHAPE, PolicyOptions("team", hidden=(8,), share_actors=share), seed=1)
    seen = torch.randn(1, 6)
    other = seen.clone()
    other[:, 3:] += 1
    before, after = policy.logits(seen), policy.logits(other)
    assert torch.equal(before[:, 0], after[:, 0]) and not torch.equal(before[:, 1], after[:, 1])
    assert policy.value(seen) != policy.value(other)


def test_a_shared_actor_is_told_who_it_is_and_needs_views_of_one_length():
    policy = make_policy(Shape(3, 2, 3, ((0, 3), (0, 3))), PolicyOptions("team", hidden=(8,), share_actors=True), seed=1)
    logits = policy.logits(torch.randn(1, 3))
    assert len(policy.actors) == 1 and not torch.equal(logits[:, 0], logits[:, 1])
    with pytest.raises(InputError, match=r"\[2, 4\]"):
        make_policy(Shape(6, 2, 3, ((0, 2), (2, 6))), PolicyOptions("team", share_actors=True), seed=0)
