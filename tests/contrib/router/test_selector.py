"""The tool selector: what it learns, from which choices, what it keeps and what it refuses."""

import json
import math
import random
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_flatten

from memalpha.cli import run as command
from memalpha.contrib.router.learner import GroupOptions, learn_as_group
from memalpha.contrib.router.policy import NetworkOptions, PPOOptions, pack
from memalpha.contrib.router.selector import SelectorOptions, ToolSelector, _pack
from memalpha.errors import InputError
from memalpha.retrieval.embedders import HashingEmbedder

PPO = PPOOptions(lr_actor=1e-2, lr_critic=1e-2, batch_size=20, target_kl=0.1, entropy=0.0)
OPTIONS = SelectorOptions(
    60,
    embedder="hashing",
    policy=NetworkOptions(hidden=(16,)),
    ppo=PPO,
    group=GroupOptions((0.3, 0.7)),
)
TOOLS = {"search": "looks facts up", "count": "counts entries", "ask": "asks the person"}
WANTS = {
    "search": "What is the city of {}?",
    "count": "How many pets has {} now?",
    "ask": "Please find out whether {} agrees.",
}


SIGNS = np.array(
    [1 - 2 * (1 - bit % 2) for bit in np.random.SeedSequence(64).generate_state(512 * 64).tolist()]
).reshape(512, 64)


def selector(options=OPTIONS, **functions) -> ToolSelector:
    made = ToolSelector(options, **functions)
    for name, description in TOOLS.items():
        made.register(name, description)
    return made


def never(capacity=10_000, **more) -> SelectorOptions:
    return replace(OPTIONS, update_every=0, capacity=capacity, **more)


def use(made: ToolSelector, n: int, seed: int = 0) -> list[dict[str, float]]:
    rng, reports = random.Random(seed), []
    for _ in range(n):
        wanted = rng.choice(list(WANTS))
        chosen = made.select(WANTS[wanted].format(rng.choice(["Marta", "Ivan", "Priya"])))
        reports.append(made.observe(chosen, float(chosen.tool == wanted)))
    return [report for report in reports if report]


def logits_of(made: ToolSelector, query: str) -> list[torch.Tensor]:
    return [
        agent.policy.log_probs(made._features(query, "")[None])[0, 0].exp()
        for agent in made._agents
    ]


def same(one: ToolSelector, other: ToolSelector) -> bool:
    """Whether networks, optimizers, random state, buffer and open choices are the same, bit for
    bit."""
    leaves = []
    for made in (one, other):
        steps = _pack(made.buffer), _pack(made._open.values())
        counts = made.updates, made._number, made._episodes, made._fresh
        leaves.append(
            tree_flatten([pack(made._agents), made._generator.get_state(), steps, counts])[0]
        )
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(*leaves, strict=True)
    )


def right(made: ToolSelector) -> float:
    return np.mean(
        [
            made.select(text.format("Zora"), explore=False).tool == tool
            for tool, text in WANTS.items()
        ]
    )


def test_agents_take_turns_and_choices_are_learnt_from_with_the_probability_they_were_made_with():
    made = selector(never())
    chosen = [made.select(f"query {i}", "context") for i in range(6)]
    assert [(choice.number, choice.agent) for choice in chosen] == [(i, i % 2) for i in range(6)]
    for choice, step in zip(chosen, list(made._open.values()), strict=True):
        made.observe(choice.number if choice.agent else choice, 1.0)  # by its number, or as it is
        assert choice.probabilities == choice.agents[choice.agent]
        assert sum(choice.probabilities.values()) == pytest.approx(1)
        assert list(TOOLS)[step.action] == choice.tool
        assert step.log_prob == pytest.approx(np.log(choice.probabilities[choice.tool]))
        both = HashingEmbedder(256).embed([f"query {choice.number}", "context"])
        assert step.features.numpy() == pytest.approx(both.reshape(-1) @ SIGNS / 8, abs=1e-6)
    assert [step.number for step in made.buffer] == list(range(6)) and not made._open


def test_what_cannot_be_observed_is_named():
    made = selector(never(capacity=3))
    first, second = made.select("a"), made.select("b")
    made.observe(first, 1.0)
    for choice, reward, done in (
        (first, 0.5, True),
        (second, math.nan, True),
        (second, 0.5, False),
    ):
        with pytest.raises(InputError, match=r"selection 0|nan|next_observation"):
            made.observe(choice, reward, done=done)
    for _ in range(3):
        made.select("d")
    with pytest.raises(InputError, match="selection 1"):  # the oldest without an outcome made room
        made.observe(second, 1.0)


def test_advantages_run_over_an_agents_episodes_and_stop_where_a_step_is_missing(monkeypatch):
    made, kept = selector(never()), []
    monkeypatch.setattr(
        "memalpha.contrib.router.selector.learn_as_group",
        lambda *given: kept.append(given) or learn_as_group(*given),
    )
    first = made.select("a")
    other = made.select("x")  # an episode of the other agent in between
    made.observe(other, 5.0)
    second = made.select("b", "1", after=first)
    third = made.select("c", "2", after=second)
    unknown = made.select("c", after=other)  # its outcome never comes
    later = made.select("y", after=unknown)
    made.observe(later, 2.0)
    made.observe(first, 0.5, next_observation=("b", "1"), done=False)
    made.observe(third.number, 2.0)
    made.observe(second, 1.0, next_observation=("c", "2"), done=False)
    assert (first.agent, second.agent, third.agent, other.agent, unknown.agent) == (0, 0, 0, 1, 1)
    cut = made.select("a")
    made.observe(
        cut, 3.0, next_observation=("b", "1"), done=False
    )  # another episode of agent 0, cut off here
    keys = ("a", ""), ("b", "1"), ("c", "2"), ("x", ""), ("y", "")
    a, b, c, x, y = (
        made._agents[0].policy.value(made._features(*key)[None]).item() for key in keys
    )
    made.update()
    d = [0.5 + 0.99 * b - a, 1.0 + 0.99 * c - b, 2.0 - c]
    most = 0.99 * 0.95
    expected = [
        d[0] + most * d[1] + most**2 * d[2],
        d[1] + most * d[2],
        d[2],
        5.0 - x,
        2.0 - y,
        3.0 + 0.99 * b - a,
    ]
    assert kept[0][2][0].advantages.tolist() == pytest.approx(expected, abs=1e-5)
    ratios = [
        step.agents[0][step.tool] / step.agents[1][step.tool] for step in (other, later)
    ]  # all learn from the team's steps
    assert kept[0][2][0].weights.tolist() == pytest.approx([1.0] * 3 + [*ratios, 1.0], rel=1e-5)
    assert kept[0][2][1].returns[3].item() == pytest.approx(5.0)


def test_rewards_may_be_made_of_what_the_context_gained():
    def reward(tool: str, before: float, after: float) -> float:
        return {"search": 1, "count": 2, "ask": 3}[tool] * (after - before)

    for own in ({"reward_function": reward}, {}):
        made = selector(never(), context_evaluator=lambda q, text: len(text) / 10, **own)
        for context in ("abcdef", "a"):  # .4 better, .1 worse
            made.observe(made.select("q", "ab"), next_observation=("q", context))
        weights = [1 + step.action for step in made.buffer]
        wanted = [0.4 * weights[0], -0.1 * weights[1]] if own else [4.0, 0.0]
        assert [step.reward for step in made.buffer] == pytest.approx(wanted)


def test_saved_and_loaded_it_goes_on_bit_for_bit(tmp_path):
    made = selector()
    use(made, 130)
    opened = made.select("a")
    made.observe(made.select("b", after=opened), 0.5, next_observation=("c", ""), done=False)
    made.save(tmp_path / "selector.pt")
    again = ToolSelector.load(tmp_path / "selector.pt")
    assert same(made, again) and again.tools == TOOLS and again.options == made.options
    assert (len(again.buffer), again.observations, again.stats()) == (128, 131, made.stats())
    assert use(again, 120, seed=1) == use(made, 120, seed=1)
    assert again.observe(opened.number, 1.0) == made.observe(opened.number, 1.0)
    assert same(made, again)
    use(again, 1)
    assert not same(made, again)


def test_it_learns_which_tool_a_query_wants_and_a_tool_registered_later_leaves_that_alone():
    made = selector()
    reports = use(made, 480)
    assert right(made) == 1 and len(reports) == made.updates == 8
    query = WANTS["count"].format("Zora")
    before = made.select(query, explore=False)
    assert before.probabilities["count"] > 0.6
    agents = logits_of(made, query)
    assert before.agent is None and list(before.probabilities.values()) == pytest.approx(
        (sum(agents) / 2).tolist()
    )
    assert (
        made.observe(before, 1.0) == {} and made.observations == 480
    )  # the group's choice is not learnt from
    made.register("sum", "adds up")
    for old, new in zip(agents, logits_of(made, query), strict=True):
        torch.testing.assert_close(new[:3] / new[:3].sum(), old)
        logs = old.log()
        assert (new[3] / new[0]).item() == pytest.approx(
            (logs.mean() - logs[0]).exp().item(), rel=1e-4
        )
    assert made.select(query, explore=False).tool == before.tool
    use(made, 60)  # and learning goes on
    assert right(made) == 1


def seconds_of(made, path):
    """The median processor time of a selection that is saved, of more than the buffer holds."""
    seconds = []
    for i in range(200):  # all without an outcome
        start = time.process_time()
        made.select(f"query {i}")
        made.save(path)
        seconds.append(time.process_time() - start)
    return np.median(seconds)


def test_after_a_thousand_outcomes_it_is_small_and_quick_and_knows_what_each_tool_earned(tmp_path):
    few = selector(SelectorOptions(embedder="hashing"))
    use(few, 70)
    at_first = seconds_of(few, tmp_path / "few.pt")
    made = selector(SelectorOptions(embedder="hashing"))
    earned = {name: [] for name in TOOLS}
    rng = random.Random(1)
    for i in range(1000):
        chosen = made.select(f"{WANTS[rng.choice(list(WANTS))]} {i}")
        earned[chosen.tool].append(rng.random())
        made.observe(chosen, earned[chosen.tool][-1])
    for name, row in made.stats()["tools"].items():
        assert row["observations"] == len(earned[name])
        assert row["mean_reward"] == pytest.approx(np.mean(earned[name]))
    assert seconds_of(made, tmp_path / "s.pt") < 1.5 * at_first  # processors differ
    assert (tmp_path / "s.pt").stat().st_size <= 200_000


@pytest.mark.parametrize("kind", ["bit", "zeros", "end", "hole"])
def test_a_damaged_file_is_refused(tmp_path, kind):
    made = selector()
    use(made, 70)
    made.save(tmp_path / "s.pt")
    whole = (tmp_path / "s.pt").read_bytes()
    for at in random.Random(2).sample(range(len(whole) - 600), 60):
        bit = whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
        zeros = whole[:at] + bytes(512) + whole[at + 512 :]
        hole = whole[:at] + whole[at + 9 :]
        damaged = {"bit": bit, "zeros": zeros, "end": whole[:at], "hole": hole}[kind]
        if damaged != whole:
            (tmp_path / "s.pt").write_bytes(damaged)
            with pytest.raises(InputError, match=r"s\.pt cannot be read: the file is damaged"):
                ToolSelector.load(tmp_path / "s.pt")


WORK_ON = """
import sys
from pathlib import Path
from memalpha.contrib.router.selector import SelectorOptions, ToolSelector

path = Path(sys.argv[1])
options = SelectorOptions(embedder="hashing")
made = ToolSelector.load(path) if path.is_file() else ToolSelector(options)
for name in ("search", "count", "ask"):
    if name not in made.tools:
        made.register(name, name)
while True:
    chosen = made.select(f"query {made.observations}")
    made.save(path)
    made.observe(chosen, 1.0)
    made.save(path)
    print(made.observations, flush=True)
"""


def test_killed_writers_lose_nothing_and_leave_nothing(tmp_path):
    path, rng, said = tmp_path / "s.pt", random.Random(3), 0
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", WORK_ON, str(path)], stdout=subprocess.PIPE, text=True
        ) as worker:
            for _ in range(rng.randrange(3, 40)):
                said = int(worker.stdout.readline())
            time.sleep(rng.random() / 200)  # somewhere between two lines
            worker.kill()
            said = max([said, *map(int, worker.stdout.read().split())])
        assert said <= ToolSelector.load(path).observations <= said + 1
    (tmp_path / f".s.pt.{worker.pid}").write_bytes(
        b"half"
    )  # as if it had been killed while it wrote
    ToolSelector.load(path)
    assert list(tmp_path.iterdir()) == [path]


def test_the_command_line_selects_learns_and_refuses(tmp_path, capsys):
    options = {"embedder": "hashing", "update_every": 2, "policy": {"hidden": [4]}}
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps({"tools": TOOLS, "options": options}))
    place = ["--tools", str(tools), "--selector", str(tmp_path / "s.pt"), "--json"]
    printed = []
    for words in (["City?"], ["How many?", "--context", "two"], ["--reward", "1"]):
        assert command(["router", "select", *words, *place]) == 0
        printed.append(json.loads(capsys.readouterr().out))
    first, second, rewarded = printed
    assert first["probabilities"] == first["agents"][0] and second["number"] == 1
    assert list(first["probabilities"]) == list(TOOLS) and rewarded["selection"] == 1
    of_first = ["router", "select", "--reward", "0.5", "--selection", "0", *place]
    assert command(of_first) == 0
    learned = json.loads(capsys.readouterr().out)
    assert (learned["updates"], learned["report"]["agent_0/minibatches"]) == (1, 10)
    assert command(of_first) == 1 and "selection 0" in capsys.readouterr().err
