"""Trains and measures a router: a configuration in, a run folder out.

    config.yaml  environment.json  metrics.jsonl  checkpoint.pt  summary.json

What always holds: the seed fixes the run (given the same libraries and machine); a resumed run ends bit for bit as an uninterrupted
one; final results are greedy, without noise, on held-out episodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from memalpha.config import Options, check_name, names, parse, read
from memalpha.errors import InputError, RunFolderError
from memalpha.policies import Checkpoint, PolicyOptions, Shape, plain
from memalpha.routing.baselines import LinUCB, RandomRouter
from memalpha.routing.grpo import GroupOptions, MultiAgentGRPO
from memalpha.routing.learner import MAPPO, PPO, Learner
from memalpha.routing.ppo import PPOOptions
from memalpha.routing.tasks import SyntheticOptions, SyntheticTask, Task
from memalpha.runs import RunFolder, environment

CHECKPOINT = "checkpoint.pt"
"""The trained router in a run folder."""

Report = Callable[[dict[str, Any]], None]
"""Called after each update with its metrics, ``step`` and ``steps``."""


@dataclass(frozen=True, slots=True)
class RunOptions(Options):
    """Options of learner, task and measurement.

    Attributes:
        learner: ``mappo``, ``grpo``, ``ppo``, ``linucb`` or ``random``.
        task: ``synthetic`` or ``sections``.
        task_options: Options of the task: ``SyntheticOptions`` or ``SectionOptions``.
        eval_options: Those that differ for the held-out task.
        seed: Draws first weights, actions and minibatches; the task has its own seed.
        steps: Steps over all agents and episodes; the last update may exceed it by less than one update.
        envs: Episodes in lockstep.
        update_every: Steps between updates, over all episodes; a multiple of ``envs``.
        eval_every: Updates between measurements on held-out episodes (0 = only at the end).
        eval_size: Most held-out episodes.
        checkpoint_every: Updates between checkpoints (0 = only at the end).
    """

    learner: Literal["mappo", "grpo", "ppo", "linucb", "random"] = "mappo"
    task: Literal["synthetic", "sections"] = "synthetic"
    task_options: Mapping[str, Any] = field(default_factory=dict)
    eval_options: Mapping[str, Any] = field(default_factory=dict)
    seed: NonNegativeInt = 42
    steps: PositiveInt = 100_000
    envs: PositiveInt = 96
    update_every: PositiveInt = 1920
    eval_every: NonNegativeInt = 5
    eval_size: PositiveInt = 2000
    checkpoint_every: NonNegativeInt = 0

    def check(self) -> None:
        """Check that episodes have one length."""
        if self.update_every % self.envs:
            raise InputError(f"update_every is {self.update_every}", expected=f"a multiple of envs, {self.envs}")

    @property
    def updates(self) -> int:
        """Number of updates of the whole run."""
        return -(-self.steps // self.update_every)


class RouterConfig(NamedTuple):
    """All options of a run: groups that share one namespace."""

    run: RunOptions
    policy: PolicyOptions
    ppo: PPOOptions
    group: GroupOptions

    def flat(self) -> dict[str, Any]:
        """Return all options as one mapping, as in a file."""
        return {name: value for group in self for name, value in plain(asdict(group)).items()}


GROUPS: tuple[Any, ...] = (RunOptions, PolicyOptions, PPOOptions, GroupOptions)
"""The groups of a router's configuration, as in ``RouterConfig``."""


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RouterConfig:
    """Read a YAML file and command-line options ``--name value``; InputError names what does not fit."""
    return RouterConfig(*parse(["--config", str(path), *overrides], GROUPS, "memalpha router train"))


def config_from(values: Mapping[str, Any]) -> RouterConfig:
    """Return the configuration of flat values; InputError names what does not fit."""
    for name in values:
        check_name(name, GROUPS, "a router")
    return RouterConfig(*(read(group, {n: values[n] for n in names(group) if n in values}, "a router") for group in GROUPS))


def make_tasks(config: RouterConfig) -> tuple[Task, Task]:
    """Return the task to train on and the held-out one; InputError if an option of theirs is wrong."""
    options, held_out = config.run.task_options, {**config.run.task_options, **config.run.eval_options}
    if config.run.task == "synthetic":
        first, second = (read(SyntheticOptions, values, "task_options of the synthetic task") for values in (options, held_out))
        return SyntheticTask(first), SyntheticTask(second)
    from memalpha.routing.sections import section_options, section_tasks

    return section_tasks(section_options(options), section_options(held_out))


def make_learner(config: RouterConfig, shape: Shape) -> Learner:
    """Return an untrained learner."""
    run, policy, ppo, group = config
    made: dict[str, Callable[[], Learner]] = {
        "mappo": lambda: MAPPO(shape, policy, ppo, run.seed),
        "grpo": lambda: MultiAgentGRPO(shape, policy, ppo, group, run.seed),
        "ppo": lambda: PPO(shape, policy, ppo, run.seed),
        "linucb": lambda: LinUCB(shape),
        "random": lambda: RandomRouter(shape, run.seed),
    }
    return made[run.learner]()


def load_learner(path: str | Path, config: RouterConfig, shape: Shape) -> Learner:
    """Load a learner from a checkpoint or run folder; InputError if it is another learner's, or does not fit."""
    checkpoint = Checkpoint.load(path)
    if checkpoint.learner != config.run.learner:
        raise InputError(f"a checkpoint of learner {checkpoint.learner!r}", expected=repr(config.run.learner))
    learner = make_learner(config, shape)
    learner.load_state(dict(checkpoint.state))
    return learner


def fit(learner: Learner, task: Task, run: RunOptions, first: int = 0) -> Iterator[tuple[int, dict[str, float]]]:
    """Train a learner; yields the number of updates taken and the metrics of the last one."""
    for index in range(first, run.updates):
        seed = int(np.random.SeedSequence([run.seed, index]).generate_state(1)[0])
        yield index + 1, learner.update(task, run.envs, run.update_every // run.envs, seed, 1 - index / run.updates)


def measure(learner: Learner, task: Task, episodes: int, seed: int) -> dict[str, Any]:
    """Measure a learner's greedy choices on the task's held-out episodes.

    Returns ``reward`` (mean return), ``optimal`` (mean of the best expected returns), ``fraction_of_optimal`` (their ratio) and
    ``episodes``.
    """
    state = task.held_out(episodes, seed)
    optimal = task.optimum(state)
    returns = np.zeros(len(optimal))
    running = np.arange(len(optimal))
    while len(running):
        actions = learner.probabilities(task.observe(state)).argmax(axis=-1)
        state, rewards, ended = task.act(state, actions, None)
        returns[running] += rewards
        running, state = running[~ended], tuple(array[~ended] for array in state)
    reward, best = float(returns.mean()), float(optimal.mean())
    return {"reward": reward, "optimal": best, "fraction_of_optimal": reward / best, "episodes": len(returns)}


def train(
    config: RouterConfig, output: str | Path, report: Report | None = None, *, overwrite: bool = False, resume: bool = False
) -> dict[str, Any]:
    """Train a router in the run folder ``output`` and return the summary; InputError or RunFolderError if it cannot run."""
    began, run = (time.perf_counter(), time.process_time()), config.run
    task, held_out = make_tasks(config)
    learner = make_learner(config, task.shape)
    folder = RunFolder.create(output, config.flat(), overwrite=overwrite, resume=resume)
    first, before = _take_up(folder, config, learner) if resume else (0, {"seconds": 0.0, "cpu_seconds": 0.0})
    folder.write_json("environment.json", environment())

    def spent() -> dict[str, float]:
        now = {"seconds": time.perf_counter() - began[0], "cpu_seconds": time.process_time() - began[1]}
        return {name: round(before[name] + value, 2) for name, value in now.items()}

    def save(updates: int) -> None:
        kept = {**config.flat(), "spent": spent()}
        steps = updates * run.update_every
        Checkpoint(run.learner, updates, steps, run.seed, kept, learner.state(), task.routes()).save(folder.path / CHECKPOINT)

    for updates, metrics in fit(learner, task, run, first):
        row = {"step": updates * run.update_every, **metrics}
        if run.eval_every and updates % run.eval_every == 0:
            row["fraction_of_optimal"] = measure(learner, held_out, run.eval_size, run.seed)["fraction_of_optimal"]
        folder.append_line("metrics.jsonl", row)
        if report:
            report({**row, "steps": run.updates * run.update_every})
        if run.checkpoint_every and updates % run.checkpoint_every == 0:
            save(updates)
    kind = {"learner": run.learner, "task": run.task, "seed": run.seed, "steps": run.updates * run.update_every}
    summary = {**kind, **spent(), **measure(learner, held_out, run.eval_size, run.seed)}
    save(run.updates)
    folder.write_json("summary.json", summary)
    return summary


def _take_up(folder: RunFolder, config: RouterConfig, learner: Learner) -> tuple[int, dict[str, float]]:
    """Load the checkpoint and drop later metrics; return the updates and the seconds they took."""
    if not (folder.path / CHECKPOINT).is_file():
        raise RunFolderError(f"{folder.path} has no {CHECKPOINT}", expected="a run with checkpoint_every", fix="--overwrite")
    checkpoint = Checkpoint.load(folder.path / CHECKPOINT)
    wanted = config.flat()
    if differing := sorted(name for name in wanted if checkpoint.config.get(name) != wanted[name]):
        raise RunFolderError(f"resume with other options: {', '.join(differing)}", expected="those of the run's config.yaml")
    learner.load_state(dict(checkpoint.state))
    folder.drop_after(checkpoint.steps)
    return checkpoint.updates, dict(checkpoint.config["spent"])
