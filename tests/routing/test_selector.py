"""The tool selector: what it learns, from which choices, what it keeps and what it refuses."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from memalpha.errors import InputError
from memalpha.policies import PolicyOptions
from memalpha.retrieval.embedders import HashingEmbedder
from memalpha.routing.learner import GroupOptions
from memalpha.routing.ppo import PPOOptions
from memalpha.routing.selector import SelectorOptions, ToolSelector

PPO = PPOOptions(lr_actor=1e-2, lr_critic=1e-2, batch_size=20, target_kl=0.1, entropy=0.0)
OPTIONS = SelectorOptions(update_every=60, policy=PolicyOptions(hidden=(16,)), ppo=PPO, group=GroupOptions((0.3, 0.7)))
TOOLS = {"search": "looks facts up", "count": "counts entries", "ask": "asks the person"}
WANTS = {"search": "What is the city of {}?", "count": "How many pets has {} now?", "ask": "Please find out whether {} agrees."}


def selector(options=OPTIONS, tools=("search", "count", "ask")) -> ToolSelector:
    made = ToolSelector(HashingEmbedder(32), options)
    for name in tools:
        made.register(name, TOOLS.get(name, "another"))
    return made


def use(made: ToolSelector, n: int, seed: int = 0) -> list[dict[str, float]]:
    rng, reports = random.Random(seed), []
    for _ in range(n):
        wanted = rng.choice(list(WANTS))
        chosen = made.select(WANTS[wanted].format(rng.choice(["Marta", "Ivan", "Priya"])))
        reports.append(made.observe(chosen, float(chosen.tool == wanted)))
    return [report for report in reports if report]


def seen_by(made: ToolSelector, query: str) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(made._embedder.embed([query, ""]))[None])


def right(made: ToolSelector) -> float:
    return np.mean([made.select(text.format("Zora"), explore=False).tool == tool for tool, text in WANTS.items()])


def test_agents_take_turns_and_choices_are_learnt_from_with_the_probability_they_were_made_with():
    made = selector(options=replace(OPTIONS, update_every=0))
    chosen = [made.select(f"query {i}", "context") for i in range(6)]
    assert [choice.agent for choice in chosen] == [0, 1, 0, 1, 0, 1]
    assert [choice.number for choice in chosen] == list(range(6))
    for choice in chosen:
        made.observe(choice, 1.0)
        assert sum(choice.probabilities.values()) == pytest.approx(1)
    for agent in range(2):
        steps, own = made._done[agent], [choice for choice in chosen if choice.agent == agent]
        assert [step.log_prob for step in steps] == pytest.approx([np.log(c.probabilities[c.tool]) for c in own])
        assert [list(TOOLS)[step.action] for step in steps] == [c.tool for c in own]
        assert (steps[1].observation == np.concatenate(HashingEmbedder(32).embed([f"query {own[1].number}", "context"]))).all()


def test_a_choice_is_observed_once_and_before_the_update():
    made = selector(options=replace(OPTIONS, update_every=0))
    first, second = made.select("a"), made.select("b")
    made.observe(first, 1.0)
    with pytest.raises(InputError, match="selection 0"):
        made.observe(first, 1.0)
    made.update()
    with pytest.raises(InputError, match="selection 1"):
        made.observe(second, 1.0)
    with pytest.raises(InputError, match="nan"):
        made.observe(made.select("c"), float("nan"))
    assert made.update() == {}


def test_saved_and_loaded_it_goes_on_as_if_nothing_had_happened(tmp_path):
    made = selector()
    use(made, 120)
    made.save(tmp_path / "selector.pt")
    again = selector()
    again.load(tmp_path / "selector.pt")
    assert use(again, 120, seed=1) == use(made, 120, seed=1)
    for one, other in zip(made._agents, again._agents, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.policy.parameters(), other.policy.parameters(), strict=True))
    with pytest.raises(InputError, match="'search', 'count', 'ask'"):
        selector(tools=("count", "ask")).load(tmp_path / "selector.pt")
    with pytest.raises(InputError, match=r"actor\.0\.weight"):
        selector(options=replace(OPTIONS, policy=PolicyOptions(hidden=(17,)))).load(tmp_path / "selector.pt")


def test_it_learns_which_tool_a_query_wants_and_a_tool_registered_later_leaves_that_alone():
    made = selector()
    reports = use(made, 480)
    assert right(made) == 1 and len(reports) == made.updates == 8
    query = WANTS["count"].format("Zora")
    before = made.select(query, explore=False)
    assert before.probabilities["count"] > 0.6
    agents = [agent.policy.log_probs(seen_by(made, query))[0, 0].exp() for agent in made._agents]
    assert before.agent is None and list(before.probabilities.values()) == pytest.approx((sum(agents) / 2).tolist())
    assert made.observe(before, 1.0) == {} and not any(made._done)  # the group's choice is not learnt from
    made.register("sum", "adds up")
    after = [agent.policy.log_probs(seen_by(made, query))[0, 0].exp() for agent in made._agents]
    for old, new in zip(agents, after, strict=True):
        torch.testing.assert_close(new[:3] / new[:3].sum(), old)
        logs = old.log()
        assert (new[3] / new[0]).item() == pytest.approx((logs.mean() - logs[0]).exp().item(), rel=1e-4)
    assert made.select(query, explore=False).tool == before.tool
    use(made, 60)  # and learning goes on
    assert right(made) == 1
    moments = made._agents[0].optimizer.state[made._agents[0].policy.actor[-1].weight]
    assert moments["exp_avg"].shape == (4, 16)
