"""Measure the tool selector online: a best tool that changes half way, and a task in three steps;
five seeds each.

    OMP_NUM_THREADS=1 python scripts/tool_selection.py            writes
    docs/results/tool_selection.json

Change: two kinds of queries, three tools, reward 1 for the right one, which flips with probability
    .1; after 300 selections another tool is right for each kind. Steps: ``answer`` earns .1 at
    once, but 1 in the third step after two times ``prepare``; best is 1, and .3 for the tool that
    earns most at once. ``bandit`` is the same selector, told that every step ends its episode.
"""

import json
import time
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from memalpha.policies import PolicyOptions
from memalpha.record.folder import environment
from memalpha.routing.grpo import GroupOptions
from memalpha.routing.ppo import PPOOptions
from memalpha.routing.selector import SelectorOptions, ToolSelector

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "tool_selection.json"
KINDS, CHANGE, AFTER, WINDOW = ("look", "count"), 300, 200, 50
STATES = [f"{step} {prepared}" for step in range(3) for prepared in range(3)]
COMMON = {"target_kl": 0.0, "batch_size": 32}
FAST = PPOOptions(lr_actor=3e-2, lr_critic=3e-2, epochs=8, clip=0.3, max_ratio=3.0, **COMMON)
ONLINE = FAST, GroupOptions((0.0,) * 3, (0.4,) * 3)
STEPS = (
    PPOOptions(lr_actor=1e-2, lr_critic=1e-2, epochs=4, **COMMON),
    GroupOptions((0.0, 0.3, 0.3), (0.05,) * 3),
)


def selector(words, tools, seed, update_every, ppo, group):
    policy = PolicyOptions(hidden=(16,))
    options = SelectorOptions(
        update_every, replay=2 * update_every, policy=policy, ppo=ppo, group=group, seed=seed
    )
    made = ToolSelector(
        options,
        feature_extractor=lambda text, context: np.eye(len(words), dtype=np.float32)[
            words.index(text)
        ],
    )
    for tool in tools:
        made.register(tool, tool)
    return made


def right(made, shift):
    return float(
        np.mean(
            [
                made.select(kind, explore=False).tool == f"tool {(i + shift) % 3}"
                for i, kind in enumerate(KINDS)
            ]
        )
    )


def change(seed, learns=True):
    """Rewards of each selection, and the share of kinds whose greedy tool is right: at the change,
    200 selections after it."""
    made = selector(KINDS, ("tool 0", "tool 1", "tool 2"), seed, 10, *ONLINE)
    rng, rewards, known = np.random.default_rng(seed), [], []
    for n in range(CHANGE + AFTER):
        if n == CHANGE:
            known.append(right(made, 0))
        kind, shift = int(rng.integers(len(KINDS))), int(n >= CHANGE)
        chosen = made.select(KINDS[kind])
        rewards.append(float((chosen.tool == f"tool {(kind + shift) % 3}") != (rng.random() < 0.1)))
        if learns or n < CHANGE:
            made.observe(chosen, rewards[-1])
    return rewards, [*known, right(made, 1)]


def episode(made, gae, explore=True):
    """Play three steps; return what they earned together."""
    earned, prepared, chosen = 0.0, 0, None
    for step in range(3):
        chosen = made.select(
            f"{step} {prepared}", explore=explore, after=chosen if gae and explore else None
        )
        prepared, ready = prepared + (chosen.tool == "prepare"), step == 2 and prepared == 2
        reward = {"answer": 1.0 if ready else 0.1}.get(chosen.tool, 0.0)
        earned += reward
        done = step == 2 or not gae
        made.observe(
            chosen,
            reward,
            done=done,
            next_observation=None if done else (f"{step + 1} {prepared}", ""),
        )
    return earned


def steps(seed, gae, episodes=300):
    """What the greedy choices earn in an episode after learning from some."""
    made = selector(STATES, ("answer", "prepare"), seed, 30, *STEPS)
    for _ in range(episodes):
        episode(made, gae)
    return episode(made, gae, explore=False)


def interval(values):
    """Mean and 95% t interval."""
    mean, error = float(np.mean(values)), stats.sem(values)
    half = float(error * stats.t.ppf(0.975, len(values) - 1))
    return {
        "mean": mean,
        "low": mean - half,
        "high": mean + half,
        "values": list(map(float, values)),
    }


def main(seeds=5):
    began, found = time.perf_counter(), {}
    for name, learns in (("online", True), ("frozen", False)):
        runs = [change(seed, learns) for seed in range(seeds)]
        windows = {
            "before": slice(CHANGE - WINDOW, CHANGE),
            "first": slice(CHANGE, CHANGE + WINDOW),
            "last": slice(-WINDOW, None),
        }
        rows = {
            window: [float(np.mean(rewards[part])) for rewards, _ in runs]
            for window, part in windows.items()
        }
        found[name] = {
            **rows,
            "right_at_change": [k[0] for _, k in runs],
            "right_after": [k[1] for _, k in runs],
        }
    gains = np.subtract(found["online"]["last"], found["frozen"]["last"])
    own = {
        name: [steps(seed, gae) for seed in range(seeds)]
        for name, gae in (("gae", True), ("bandit", False))
    }
    three = {**own, "difference": interval(np.subtract(own["gae"], own["bandit"]))}
    return {
        "command": ["python", "scripts/tool_selection.py"],
        "seeds": list(range(seeds)),
        "seconds": round(time.perf_counter() - began, 1),
        "environment": environment(),
        "change": {
            **found,
            "selections": [CHANGE, AFTER],
            "window": WINDOW,
            "gain": interval(gains),
        },
        "three_steps": three,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = main()
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(
        json.dumps({name: found[name] for name in ("seconds", "change", "three_steps")}, indent=1)
    )
