"""The order of training instances: a permutation, random within each source, with every source at even intervals."""

from collections import Counter
from types import SimpleNamespace

import torch
from hypothesis import given
from hypothesis import strategies as st
from memalpha.training.sampling import EpochSampler, spread
from trl.trainer.utils import RepeatSampler


def test_one_source_alone_is_in_the_order_of_trls_own_sampler():
    for seed in range(5):
        theirs = list(RepeatSampler(range(9), mini_repeat_count=1, seed=seed))
        assert spread(["a"] * 9, seed) == theirs


def test_each_step_has_each_source_as_often_as_its_share():
    sources = ["dialogue"] * 40 + ["text"] * 20
    for seed in range(20):
        order = spread(sources, seed)
        for start in range(0, 60, 3):
            assert Counter(sources[index] for index in order[start : start + 3]) == {"dialogue": 2, "text": 1}


@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.integers(0, 1000), st.data())
def test_any_stretch_has_about_its_share_of_each_source(sizes, seed, data):
    sources = [str(name) for name, size in enumerate(sizes) for _ in range(size)]
    order = spread(sources, seed)
    assert sorted(order) == list(range(len(sources)))
    start = data.draw(st.integers(0, len(order)))
    stop = data.draw(st.integers(start, len(order)))
    counts = Counter(sources[index] for index in order[start:stop])
    for name, size in enumerate(sizes):
        assert abs(counts[str(name)] - (stop - start) * size / len(sources)) <= len(sizes)


def test_the_sampler_repeats_and_groups_as_trls_own_and_counts_epochs():
    plain = RepeatSampler(range(6), mini_repeat_count=4, batch_size=2, repeat_count=3, seed=7)
    sampler = RepeatSampler(range(6), mini_repeat_count=4, batch_size=2, repeat_count=3, seed=7)
    sampler.__class__, sampler.sources = EpochSampler, ["a", "a", "a", "b", "b", "b"]
    sampler.trainer = SimpleNamespace(state=SimpleNamespace(epoch=0.0))
    order = spread(sampler.sources, 7)
    theirs = torch.randperm(6, generator=torch.Generator().manual_seed(7)).tolist()
    assert list(sampler) == [order[theirs.index(index)] for index in plain]
    sampler.trainer.state.epoch = 2.5
    assert list(sampler)[::24] == spread(sampler.sources, 9)[::2]
    assert len(sampler) == len(plain) == 72
