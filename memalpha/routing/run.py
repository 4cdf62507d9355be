"""Training and measuring a router: a configuration in, a run folder out.

    config.yaml  environment.json  metrics.jsonl  checkpoint.pt  summary.json

What always holds: the seed fixes the run (given the same libraries and machine); a resumed run ends bit for bit where the
uninterrupted one does; what is reported as reached was measured on held-out episodes, greedily and without noise, after training.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from memalpha.errors import InputError, RunFolderError
from memalpha.provenance import environment
from memalpha.routing.baselines import LinUCB, RandomRouter
from memalpha.routing.checkpoints import Checkpoint, plain
from memalpha.routing.config import RouterConfig
from memalpha.routing.grpo import MultiAgentGRPO
from memalpha.routing.learner import PPO, Learner, shape_of
from memalpha.routing.mappo import MAPPO
from memalpha.routing.policies import Shape
from memalpha.routing.tasks import SyntheticOptions, SyntheticTask, Task
from memalpha.runs import RunFolder

CHECKPOINT = "checkpoint.pt"
"""The trained router in a run folder."""

Report = Callable[[str, dict[str, Any]], None]
"""Told of ``update`` and ``saved`` events."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A router on held-out episodes, greedy, without noise.

    Attributes:
        episodes: How many.
        reward: Mean return.
        optimal: Mean of the best expected returns.
        fraction_of_optimal: The first divided by the second.
    """

    episodes: int
    reward: float
    optimal: float
    fraction_of_optimal: float


def train(
    config: RouterConfig, output: str | Path, report: Report | None = None, *, overwrite: bool = False, resume: bool = False
) -> dict[str, Any]:
    """Train a router and return the summary, which is also in the folder.

    Args:
        config: What to train.
        output: The run folder to make, or to go on with.
        report: Told what happens.
        overwrite: Replace a run folder that is there.
        resume: Go on from the folder's checkpoint; the configuration must be the same.

    Raises:
        InputError: If the configuration cannot be run.
        RunFolderError: If the folder is in the way, or there is nothing to resume.
        MissingExtraError: If gymnasium is not installed.
    """
    from memalpha.routing.env import RoutingVectorEnv

    clock = _Clock()
    task, held_out = make_tasks(config)
    learner = make_learner(config, shape_of(task))
    folder = RunFolder.create(output, plain(config.flat()), overwrite=overwrite, resume=resume)
    first = _take_up(folder, config, learner, clock) if resume else 0
    folder.write_json("environment.json", environment())
    env = RoutingVectorEnv(task, config.run.envs)
    run = config.run
    for index in range(first, run.updates):
        row = learner.update(env, run.update_every // run.envs, update_seed(run.seed, index), 1 - index / run.updates)
        row = {"step": (index + 1) * run.update_every, **row}
        if run.eval_every and (index + 1) % run.eval_every == 0:
            row["fraction_of_optimal"] = measure(learner, held_out, run.eval_size, run.seed).fraction_of_optimal
        folder.append_line("metrics.jsonl", row)
        if report:
            report("update", {**row, "steps": run.updates * run.update_every})
        if run.checkpoint_every and (index + 1) % run.checkpoint_every == 0:
            _save(folder, config, learner, task, index + 1, clock)
    spent = clock.spent()
    summary = _summary(config, measure(learner, held_out, run.eval_size, run.seed), spent)
    _save(folder, config, learner, task, run.updates, clock)
    folder.write_json("summary.json", summary)
    return summary


def measure(learner: Learner, task: Task, episodes: int, seed: int) -> Measured:
    """Measure a learner on the task's held-out episodes, taking the likeliest option of every decider."""
    state = task.held_out(episodes, seed)
    optimal = task.optimum(state)
    returns = np.zeros(len(optimal))
    open_rows = np.arange(len(optimal))
    while len(open_rows):
        actions = learner.probabilities(task.observe(state)).argmax(axis=-1)
        state, rewards, ended = task.act(state, actions, None)
        returns[open_rows] += rewards
        open_rows, state = open_rows[~ended], tuple(array[~ended] for array in state)
    reward, best = float(returns.mean()), float(optimal.mean())
    return Measured(len(returns), reward, best, reward / best)


def make_tasks(config: RouterConfig) -> tuple[Task, Task]:
    """Return the task to train on and the held-out one, by the configuration.

    Raises:
        InputError: If there is no such task or an option of it is wrong.
    """
    run = config.run
    if run.task not in TASKS:
        raise InputError(f"no task {run.task!r}", expected=f"one of {', '.join(TASKS)}")
    return TASKS[run.task](dict(run.task_options), {**run.task_options, **run.eval_options})


def make_learner(config: RouterConfig, shape: Shape) -> Learner:
    """Return an untrained learner, by the configuration; InputError if there is none of that name."""
    if config.run.learner not in LEARNERS:
        raise InputError(f"no learner {config.run.learner!r}", expected=f"one of {', '.join(LEARNERS)}")
    return LEARNERS[config.run.learner](config, shape)


def load_learner(path: str | Path, config: RouterConfig, shape: Shape) -> Learner:
    """Return the learner of a configuration with what a checkpoint holds.

    Raises:
        InputError: If the checkpoint is another learner's, or does not fit; says what.
    """
    checkpoint = Checkpoint.load(Path(path) / CHECKPOINT if Path(path).is_dir() else path)
    if checkpoint.learner != config.run.learner:
        raise InputError(f"a checkpoint of learner {checkpoint.learner!r}", expected=repr(config.run.learner))
    learner = make_learner(config, shape)
    learner.load_state(dict(checkpoint.state))
    return learner


def _synthetic(train: dict[str, Any], held_out: dict[str, Any]) -> tuple[Task, Task]:
    try:
        return SyntheticTask(SyntheticOptions(**train)), SyntheticTask(SyntheticOptions(**held_out))
    except TypeError as error:
        raise InputError(f"task_options: {error}", expected=", ".join(SyntheticOptions.__slots__)) from error


def _sections(train: dict[str, Any], held_out: dict[str, Any]) -> tuple[Task, Task]:
    from memalpha.retrieval.embedders import make_embedder
    from memalpha.routing.memories import section_options, section_task

    options = [section_options(values) for values in (train, held_out)]
    if options[0].embedder != options[1].embedder:
        raise InputError("the held-out task has another embedder", expected=options[0].embedder)
    embedder = make_embedder(options[0].embedder)
    first, second = (section_task(each, embedder) for each in options)
    return first, second


TASKS: dict[str, Callable[[dict[str, Any], dict[str, Any]], tuple[Task, Task]]] = {"synthetic": _synthetic, "sections": _sections}
"""Every task by name: from the options of training and of measuring to both."""

LEARNERS: dict[str, Callable[[RouterConfig, Shape], Learner]] = {
    "mappo": lambda config, shape: MAPPO(shape, config.policy, config.ppo, config.run.seed),
    "grpo": lambda config, shape: MultiAgentGRPO(shape, config.policy, config.ppo, config.group, config.run.seed),
    "ppo": lambda config, shape: PPO(shape, config.policy, config.ppo, config.run.seed),
    "linucb": lambda config, shape: LinUCB(shape),
    "random": lambda config, shape: RandomRouter(shape, config.run.seed),
}
"""Every learner by name."""


class _Clock:
    """Counts the seconds of a run, those before an interruption included."""

    def __init__(self) -> None:
        self.before = {"seconds": 0.0, "cpu_seconds": 0.0}
        self._began = (time.perf_counter(), time.process_time())

    def spent(self) -> dict[str, float]:
        """Return seconds of the wall clock and of the processor."""
        now = (time.perf_counter(), time.process_time())
        parts = zip(self.before.items(), now, self._began, strict=True)
        return {name: round(before + end - begin, 2) for (name, before), end, begin in parts}


def update_seed(seed: int, index: int) -> int:
    """Return the seed of update ``index`` of a run."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1)[0])


def _save(folder: RunFolder, config: RouterConfig, learner: Learner, task: Task, updates: int, clock: _Clock) -> None:
    Checkpoint(
        learner=config.run.learner,
        updates=updates,
        steps=updates * config.run.update_every,
        seed=config.run.seed,
        config={**plain(config.flat()), "spent": clock.spent()},
        state=learner.state(),
        routes=task.routes(),
    ).save(folder.path / CHECKPOINT)


def _take_up(folder: RunFolder, config: RouterConfig, learner: Learner, clock: _Clock) -> int:
    """Load the folder's checkpoint, drop metrics written after it, go on counting time; return the updates taken."""
    if not (folder.path / CHECKPOINT).is_file():
        raise RunFolderError(f"{folder.path} has no {CHECKPOINT}", expected="a run with checkpoint_every", fix="--overwrite")
    checkpoint = Checkpoint.load(folder.path / CHECKPOINT)
    saved, wanted = dict(checkpoint.config), plain(config.flat())
    if differing := sorted(name for name in wanted if saved.get(name) != wanted[name]):
        raise RunFolderError(f"resume with other options: {', '.join(differing)}", expected="those of the run's config.yaml")
    learner.load_state(dict(checkpoint.state))
    folder.write_lines("metrics.jsonl", [row for row in folder.metrics() if row["step"] <= checkpoint.steps])
    clock.before = dict(saved["spent"])
    return checkpoint.updates


def _summary(config: RouterConfig, measured: Measured, spent: dict[str, float]) -> dict[str, Any]:
    run = config.run
    return {
        "learner": run.learner,
        "task": run.task,
        "seed": run.seed,
        "steps": run.updates * run.update_every,
        **spent,
        "reward": measured.reward,
        "optimal": measured.optimal,
        "fraction_of_optimal": measured.fraction_of_optimal,
        "episodes": measured.episodes,
    }
