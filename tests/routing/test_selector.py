"""The tool selector: what it learns, from which choices, what it keeps and what it refuses."""

import json
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
from memalpha.errors import InputError
from memalpha.retrieval.dense import HashingEmbedder
from memalpha.routing.learner import GroupOptions, learn_as_group
from memalpha.routing.policy import NetworkOptions
from memalpha.routing.ppo import PPOOptions, pack
from memalpha.routing.selector import SelectorOptions, ToolSelector, _pack

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
    made, told = selector(never()), []
    chosen = [
        made.select(f"query {i}", "context", progress=lambda i, p: told.append((i, p)))
        for i in range(6)
    ]
    assert [choice.agent for choice in chosen] == [0, 1, 0, 1, 0, 1]
    assert [choice.number for choice in chosen] == list(range(6))
    assert told == [(i, own) for choice in chosen for i, own in enumerate(choice.agents)]
    for choice, step in zip(chosen, list(made._open.values()), strict=True):
        made.observe(
            choice.number if choice.number % 2 else choice, 1.0
        )  # by its number, or as it is
        assert choice.probabilities == choice.agents[choice.agent] and sum(
            choice.probabilities.values()
        ) == pytest.approx(1)
        assert (step.log_prob, list(TOOLS)[step.action]) == (
            pytest.approx(np.log(choice.probabilities[choice.tool])),
            choice.tool,
        )
        both = HashingEmbedder(256).embed([f"query {choice.number}", "context"])
        assert step.features.numpy() == pytest.approx(both.reshape(-1) @ SIGNS / 8, abs=1e-6)
    assert [step.number for step in made.buffer] == list(range(6)) and not made._open


def test_what_cannot_be_observed_or_chosen_is_named():
    made = selector(never(capacity=3))
    first = made.select("a")
    made.observe(first, 1.0)
    for wrong, named in (
        (first, "selection 0"),
        (made.select("b"), "nan"),
        (made.select("c"), "next_observation"),
    ):
        with pytest.raises(InputError, match=named):
            made.observe(
                wrong, float("nan") if named == "nan" else 0.5, done=named != "next_observation"
            )
    with pytest.raises(InputError, match="context_evaluator"):
        made.observe(1, next_observation=("b", "more"))
    late = [made.select("d").number for _ in range(3)]
    with pytest.raises(
        InputError, match="selection 1"
    ):  # the oldest choices without an outcome made room
        made.observe(1, 1.0)
    for number in late:
        made.observe(number, 0.0)
    assert [step.number for step in made.buffer] == late
    with pytest.raises(InputError, match="after selection 0"):
        made.select("e", after=0)
    with pytest.raises(InputError, match="vector of 2"):
        odd = selector(feature_extractor=lambda text, context: np.ones(len(text)))
        odd.select("ab"), odd.select("abc")
    for options in ({"update_every": 11, "capacity": 10}, {"policy": NetworkOptions("team")}):
        with pytest.raises(InputError, match="update_every"):
            replace(OPTIONS, **options)


def test_advantages_run_over_an_agents_episodes_and_stop_where_a_step_is_missing(monkeypatch):
    made, kept = selector(never()), []
    monkeypatch.setattr(
        "memalpha.routing.selector.learn_as_group",
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


def test_late_outcomes_are_weighted_by_how_the_policy_changed_and_the_buffer_can_be_trained_from(
    monkeypatch, tmp_path
):
    made, kept = selector(never()), []
    late = made.select(WANTS["count"].format("Zora"))
    use(made, 120)
    for _ in range(8):
        made.train()
    monkeypatch.setattr(
        "memalpha.routing.selector.learn_as_group",
        lambda *given: kept.append(given[2]) or learn_as_group(*given),
    )
    now = logits_of(made, WANTS["count"].format("Zora"))[late.agent][
        list(TOOLS).index(late.tool)
    ].item()
    made.update(), kept.clear()
    now = logits_of(made, WANTS["count"].format("Zora"))[late.agent][
        list(TOOLS).index(late.tool)
    ].item()
    made.observe(late, 1.0)
    made.update()
    assert kept[0][late.agent].weights.tolist() == pytest.approx(
        [now / late.probabilities[late.tool]], rel=1e-4
    )
    made.options = replace(made.options, replay=3)
    made.observe(made.select("a"), 0.0)
    made.update()
    assert len(kept[1][0].weights) == 4  # the new step and three before it
    made.save(tmp_path / "used.pt")
    again = ToolSelector.load(tmp_path / "used.pt")
    assert len(again.train(10)) == 10 and again.updates == made.updates + 10 and right(again) == 1


def test_rewards_may_be_made_of_what_the_context_gained():
    def reward(tool: str, before: float, after: float) -> float:
        return {"search": 1, "count": 2, "ask": 3}[tool] * (after - before)

    own = selector(
        never(), context_evaluator=lambda query, context: len(context) / 10, reward_function=reward
    )
    public = selector(never(), context_evaluator=lambda query, context: len(context) / 10)
    for made in (own, public):
        for context in ("abcdef", "a"):  # .4 better, .1 worse
            made.observe(made.select("q", "ab"), next_observation=("q", context))
    weights = [1 + step.action for step in own.buffer]
    assert [step.reward for step in own.buffer] == pytest.approx(
        [0.4 * weights[0], -0.1 * weights[1]]
    )
    assert [step.reward for step in public.buffer] == pytest.approx([4.0, 0.0])


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
    with pytest.raises(InputError, match="64 numbers"):
        ToolSelector.load(
            tmp_path / "selector.pt", feature_extractor=lambda text, context: np.zeros(3)
        )


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
    moments = made._agents[0].optimizer.state[made._agents[0].policy.actor[-1].weight]
    assert moments["exp_avg"].shape == (4, 16)


def lived(outcomes: int) -> tuple[ToolSelector, dict[str, list[float]]]:
    """A selector of the default options with outcomes, and what each tool earned."""
    made, earned = selector(SelectorOptions(embedder="hashing")), {name: [] for name in TOOLS}
    rng = random.Random(1)
    for i in range(outcomes):
        chosen = made.select(f"{WANTS[rng.choice(list(WANTS))]} {i}")
        earned[chosen.tool].append(rng.random())
        made.observe(chosen, earned[chosen.tool][-1])
    return made, earned


def test_after_a_thousand_outcomes_it_is_small_and_quick_and_knows_what_each_tool_earned(tmp_path):
    made, earned = lived(1000)
    rows = made.stats()["tools"]
    assert [rows[name]["observations"] for name in TOOLS] == [
        len(own) for own in earned.values()
    ] and made.observations == 1000
    assert [rows[name]["mean_reward"] for name in TOOLS] == pytest.approx(
        [np.mean(own) for own in earned.values()]
    )
    seconds = []
    for i in range(200):  # more than the buffer holds, all without an outcome
        start = time.process_time()
        made.select(f"query {i}")
        made.save(tmp_path / "s.pt")
        seconds.append(time.process_time() - start)
    assert np.median(seconds) < 0.002 and (tmp_path / "s.pt").stat().st_size <= 200_000


def test_a_damaged_file_is_refused(tmp_path):
    made, _ = lived(150)
    made.save(tmp_path / "s.pt")
    whole, rng = (tmp_path / "s.pt").read_bytes(), random.Random(2)
    for i in range(1020):
        at, copy = rng.randrange(len(whole)), bytearray(whole)
        end = min(len(whole), at + rng.choice([1, 8, 512, 4096]))
        match i % 6:
            case 0:
                copy[at] ^= 1 << rng.randrange(8)
            case 1:
                copy[at:end] = bytes(end - at)
            case 2:
                copy[at:end] = rng.randbytes(end - at)
            case 3:
                del copy[at:]
            case 4:
                del copy[at:end]
            case 5:
                copy += rng.randbytes(end - at)
        (tmp_path / "copy.pt").write_bytes(copy)
        if copy == whole:
            assert same(made, ToolSelector.load(tmp_path / "copy.pt"))
            continue
        with pytest.raises(InputError, match=r"copy\.pt cannot be read: it is damaged"):
            ToolSelector.load(tmp_path / "copy.pt")


WORK_ON = """
import sys
from pathlib import Path
from memalpha.routing.selector import SelectorOptions, ToolSelector

path = Path(sys.argv[1])
made = ToolSelector.load(path) if path.is_file() else ToolSelector(SelectorOptions(embedder="hashing"))
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
    tools = {
        "tools": TOOLS,
        "options": {"embedder": "hashing", "update_every": 2, "policy": {"hidden": [4]}},
    }
    (tmp_path / "tools.json").write_text(json.dumps(tools))
    place = [
        "--tools",
        str(tmp_path / "tools.json"),
        "--selector",
        str(tmp_path / "s.pt"),
        "--json",
    ]

    def told(*arguments: str) -> dict:
        assert command(["router", "select", *arguments, *place]) == 0
        return json.loads(capsys.readouterr().out)

    first, second = told("What is the city?"), told("How many?", "--context", "two")
    assert first["probabilities"] == first["agents"][0] and list(first["probabilities"]) == list(
        TOOLS
    )
    assert told("--reward", "1")["selection"] == second["number"] == 1
    learned = told("--reward", "0.5", "--selection", "0")
    assert (learned["updates"], learned["report"]["agent_0/minibatches"]) == (1, 10)
    assert told("May I?", "--greedy")["agent"] is None
    assert command(["router", "select", "May I?", *place[:-1]]) == 0
    assert capsys.readouterr().out.splitlines()[0].split(" (")[1] == "selection 3)"
    for wrong, named in (
        (["--reward", "1", "--selection", "0"], "selection 0"),
        ([], "QUERY"),
    ):
        assert (
            command(["router", "select", *wrong, *place]) == 1 and named in capsys.readouterr().err
        )
    (tmp_path / "tools.json").write_text(
        json.dumps({**tools, "tools": {"ask": "asks", "count": "counts"}})
    )
    assert command(["router", "select", "a", *place]) == 1 and "search" in capsys.readouterr().err


def one_hot_selector(words, tools, update_every, ppo, group):
    options = SelectorOptions(update_every, replay=2 * update_every, ppo=ppo, group=group)
    made = ToolSelector(
        options,
        feature_extractor=lambda text, context: np.eye(len(words), dtype="f4")[words.index(text)],
    )
    for tool in tools:
        made.register(tool, tool)
    return made


def test_it_recovers_when_the_best_tool_changes():
    fast = {"epochs": 8, "clip": 0.3, "max_ratio": 3.0, "target_kl": 0.0, "batch_size": 32}
    ppo = PPOOptions(lr_actor=3e-2, lr_critic=3e-2, **fast)
    tools = ("tool 0", "tool 1", "tool 2")
    made = one_hot_selector(("look", "count"), tools, 10, ppo, GroupOptions((0.0,) * 3, (0.4,) * 3))
    rng = np.random.default_rng(0)
    rewards = []
    for n in range(500):
        kind, shift = int(rng.integers(2)), int(n >= 300)
        chosen = made.select(("look", "count")[kind])
        is_right = chosen.tool == tools[(kind + shift) % 3]
        rewards.append(float(is_right != (rng.random() < 0.1)))
        made.observe(chosen, rewards[-1])
    assert made.select("look", explore=False).tool == "tool 1"
    assert made.select("count", explore=False).tool == "tool 2"
    assert np.mean(rewards[-50:]) > np.mean(rewards[300:350]) + 0.2


def play(made, gae, explore=True):
    """Three steps: preparing twice earns nothing, then answering 1; answering at once earns .1."""
    earned, prepared, chosen = 0.0, 0, None
    for step in range(3):
        after = chosen if gae and explore else None
        chosen = made.select(f"{step} {prepared}", explore=explore, after=after)
        ready = step == 2 and prepared == 2
        prepared += chosen.tool == "prepare"
        reward = (1.0 if ready else 0.1) if chosen.tool == "answer" else 0.0
        earned += reward
        done = step == 2 or not gae
        following = None if done else (f"{step + 1} {prepared}", "")
        made.observe(chosen, reward, done=done, next_observation=following)
    return earned


@pytest.mark.parametrize(("gae", "episodes", "best"), [(True, 300, 1.0), (False, 100, 0.3)])
def test_gae_beats_the_bandit_over_three_steps(gae, episodes, best):
    states = [f"{step} {prepared}" for step in range(3) for prepared in range(3)]
    ppo = PPOOptions(lr_actor=1e-2, lr_critic=1e-2, epochs=4, target_kl=0.0, batch_size=32)
    group = GroupOptions((0.0, 0.3, 0.3), (0.05,) * 3)
    made = one_hot_selector(states, ("answer", "prepare"), 30, ppo, group)
    for _ in range(episodes):
        play(made, gae)
    assert play(made, gae, explore=False) == pytest.approx(best)
