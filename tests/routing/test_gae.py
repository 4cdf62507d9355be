"""Advantages worked by hand, and against the sum they are defined by, over episodes of any length."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from memalpha.routing.gae import gae


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def test_two_episodes_of_unequal_length_worked_by_hand():
    # gamma .5, lambda .5, so gamma * lambda = .25; the first episode terminates at t = 1, the second at t = 2
    rewards, values = column(1, 2, 3), column(0.5, 1, 2)
    next_values, last = column(1, 0, 0), torch.tensor([[False], [True], [True]])
    # d0 = 1 + .5 * 1 - .5 = 1,  d1 = 2 - 1 = 1,  d2 = 3 - 2 = 1;  A2 = 1, A1 = 1 (its episode ends), A0 = 1 + .25 * 1
    found = gae(rewards, values, next_values, last, 0.5, 0.5)
    assert found.advantages.flatten().tolist() == [1.25, 1.0, 1.0]
    assert found.returns.flatten().tolist() == [1.75, 2.0, 3.0]


@given(
    st.lists(
        st.tuples(st.lists(st.floats(-5, 5), min_size=1, max_size=6), st.booleans(), st.floats(-5, 5)), min_size=1, max_size=4
    ),
    st.floats(0, 1),
    st.floats(0, 1),
    st.randoms(use_true_random=False),
)
def test_it_is_the_sum_it_is_defined_by(episodes, gamma, lam, chance):
    rewards, values, next_values, last, expected = [], [], [], [], []
    for earned, truncated, tail in episodes:
        own = [chance.uniform(-3, 3) for _ in earned]
        after = [*own[1:], tail if truncated else 0.0]
        deltas = [r + gamma * n - v for r, n, v in zip(earned, after, own, strict=True)]
        expected += [sum((gamma * lam) ** i * d for i, d in enumerate(deltas[t:])) for t in range(len(earned))]
        rewards, values, next_values = rewards + earned, values + own, next_values + after
        last += [False] * (len(earned) - 1) + [True]
    tensors = [torch.tensor(row, dtype=torch.float64)[:, None] for row in (rewards, values, next_values)]
    found = gae(*tensors, torch.tensor(last)[:, None], gamma, lam)
    torch.testing.assert_close(found.advantages[:, 0], torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(found.returns, found.advantages + tensors[1])


def test_columns_do_not_mix():
    torch.manual_seed(0)
    rewards, values, after = torch.randn(3, 5, 4)
    last = torch.rand(5, 4) < 0.4
    together = gae(rewards, values, after, last, 0.9, 0.8).advantages
    for i in range(4):
        part = slice(i, i + 1)
        alone = gae(rewards[:, part], values[:, part], after[:, part], last[:, part], 0.9, 0.8).advantages
        torch.testing.assert_close(together[:, part], alone)
