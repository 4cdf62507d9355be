"""Trains and measures a router: a configuration in, a run folder out.

The seed fixes the run (given the same libraries and machine); a resumed run ends bit for bit as an
uninterrupted one; final results are greedy, without noise, on held-out episodes.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from memalpha.config import Options, parse, read
from memalpha.data.routes import LogOptions, read_log, split_log
from memalpha.errors import InputError, RunFolderError
from memalpha.policies import Checkpoint, PolicyOptions, Shape, plain
from memalpha.record.folder import RunFolder, environment
from memalpha.retrieval.embedders import make_embedder
from memalpha.routing.environment import EnvironmentOptions, EnvironmentTask
from memalpha.routing.grpo import GroupOptions, MultiAgentGRPO
from memalpha.routing.learner import MAPPO, PPO, Task, begin
from memalpha.routing.linucb import LinUCB
from memalpha.routing.logged import LogTask
from memalpha.routing.ppo import PPOOptions
from memalpha.routing.tasks import (
    Floats,
    Integers,
    SectionOptions,
    SectionTask,
    SyntheticOptions,
    SyntheticTask,
)

Learner = PPO | LinUCB
Report = Callable[
    [dict[str, Any]], None
]  # called after each update with its metrics, ``step`` and ``steps``


@dataclass(frozen=True, slots=True)
class RunOptions(Options):
    """Options of learner, task and measurement.

    Attributes:
        learner: ``mappo``, ``grpo``, ``ppo`` or ``linucb``.
        task: ``synthetic``, ``sections``, ``log`` (rows of a log) or ``environment`` (one's own).
        task_options: Its options: ``SyntheticOptions``, ``SectionOptions``, ``LogOptions`` or
            ``EnvironmentOptions``.
        eval_options: Those that differ for the held-out task.
        seed: Draws first weights, actions and minibatches; the task has its own seed.
        steps: Steps over all agents and episodes; the last update may exceed it by less than one
            update.
        envs: Episodes in lockstep.
        update_every: Steps between updates, over all episodes; a multiple of ``envs``.
        eval_every: Updates between measurements on held-out episodes (0 = only at the end).
        eval_size: Most held-out episodes.
        checkpoint_every: Updates between checkpoints (0 = only at the end).
    """

    learner: Literal["mappo", "grpo", "ppo", "linucb"] = "mappo"
    task: Literal["synthetic", "sections", "log", "environment"] = "synthetic"
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
            raise InputError(
                f"update_every is {self.update_every}", expected=f"a multiple of envs, {self.envs}"
            )

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


GROUPS: tuple[Any, ...] = (
    RunOptions,
    PolicyOptions,
    PPOOptions,
    GroupOptions,
)  # as in ``RouterConfig``


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RouterConfig:
    """Read a YAML file and command-line options ``--name value``; InputError names what does not
    fit.
    """
    return RouterConfig(
        *parse(["--config", str(path), *overrides], GROUPS, "memalpha router train")
    )


def make_tasks(config: RouterConfig) -> tuple[Task, Task]:
    """Return the task to train on and the held-out one; InputError if an option of theirs is
    wrong.
    """
    what, options = f"task_options of the {config.run.task} task", config.run.task_options
    other = {**options, **config.run.eval_options}
    if config.run.task == "synthetic":
        return SyntheticTask(read(SyntheticOptions, options, what)), SyntheticTask(
            read(SyntheticOptions, other, what)
        )
    if config.run.task == "environment":
        return EnvironmentTask(read(EnvironmentOptions, options, what)), EnvironmentTask(
            read(EnvironmentOptions, other, what)
        )
    if config.run.task == "log":
        return log_tasks(read(LogOptions, options, what), read(LogOptions, other, what))
    train, held_out = read(SectionOptions, options, what), read(SectionOptions, other, what)
    if train.embedder != held_out.embedder:
        raise InputError(
            f"the held-out task has embedder {held_out.embedder!r}", expected=train.embedder
        )
    embedder = make_embedder(train.embedder)
    return SectionTask(train, embedder), SectionTask(held_out, embedder)


def log_tasks(options: LogOptions, held_out: LogOptions) -> tuple[LogTask, LogTask]:
    """Return the task of the rows to train on and of those held out: another file, or a share of
    the prompts.
    """
    log, embedder = read_log(options), make_embedder(options.embedder)
    names = [sorted(set(column)) for column in zip(*log.routes, strict=True)]
    first, second = (
        (log, read_log(held_out))
        if held_out.rows != options.rows
        else split_log(log, options.held_out)
    )
    train = LogTask(first, names, embedder, options.embedder)
    return train, LogTask(second, names, embedder, options.embedder, train)


def make_learner(config: RouterConfig, shape: Shape) -> Learner:
    """Return an untrained learner."""
    run, policy, ppo, group = config
    if run.learner == "linucb":
        return LinUCB(shape)
    if run.learner == "grpo":
        return MultiAgentGRPO(shape, policy, ppo, group, run.seed)
    if run.learner == "mappo" and policy.kind != "team":
        raise InputError(f"MAPPO with a policy of kind {policy.kind!r}", expected="team")
    return (MAPPO if run.learner == "mappo" else PPO)(shape, policy, ppo, run.seed)


def fit(
    learner: Learner, task: Task, run: RunOptions, first: int = 0
) -> Iterator[tuple[int, dict[str, float]]]:
    """Train a learner; yields the number of updates taken and the metrics of the last one."""
    for index in range(first, run.updates):
        seed = int(np.random.SeedSequence([run.seed, index]).generate_state(1)[0])
        yield (
            index + 1,
            learner.update(
                task, run.envs, run.update_every // run.envs, seed, 1 - index / run.updates
            ),
        )


def measure(learner: Learner, task: Task, episodes: int, seed: int) -> dict[str, Any]:
    """Return the mean return of a learner's greedy choices on held-out episodes, and the best
    expected one where it is known.
    """

    def greedy(seen: Floats) -> Integers:
        return np.asarray(learner.probabilities(seen).argmax(axis=-1))

    if isinstance(task, LogTask):
        return task.estimate(np.eye(task.shape.choices)[greedy(task.embeddings)])
    running = begin(task, episodes, seed, held_out=True)
    earned = np.zeros(len(running.observe()))
    ends = np.zeros(len(earned), dtype=bool)
    while not ends.all():
        rewards, terminated, truncated, _ = running.step(greedy(running.observe()))
        earned += np.where(ends, 0.0, rewards)
        ends |= terminated | truncated
    reward, number = float(earned.mean()), len(earned)
    if isinstance(task, EnvironmentTask):
        return {"reward": reward, "stderr": float(earned.std() / number**0.5), "episodes": number}
    best = float(running.optimum.mean())
    return {
        "reward": reward,
        "optimal": best,
        "fraction_of_optimal": reward / best,
        "episodes": number,
    }


def train(
    config: RouterConfig,
    output: str | Path,
    report: Report | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
) -> dict[str, Any]:
    """Train a router in the run folder ``output`` and return the summary; InputError or
    RunFolderError if it cannot run.
    """
    began, cpu, run, wanted = time.perf_counter(), time.process_time(), config.run, config.flat()
    task, held_out = make_tasks(config)
    learner, first = make_learner(config, task.shape), 0
    folder = RunFolder.create(output, wanted, overwrite=overwrite, resume=resume)
    if resume:
        checkpoint = Checkpoint.load(folder.path)
        if differing := sorted(
            name for name in wanted if checkpoint.config.get(name) != wanted[name]
        ):
            raise RunFolderError(
                f"resume with other options: {', '.join(differing)}",
                expected="those of the run's config.yaml",
            )
        learner.load_state(dict(checkpoint.state))
        folder.drop_after(checkpoint.steps)
        first = checkpoint.updates
    folder.write_json("environment.json", environment())
    kind = {
        "learner": run.learner,
        "task": run.task,
        "seed": run.seed,
        "steps": run.updates * run.update_every,
    }
    for updates, metrics in fit(learner, task, run, first):
        row = {"step": updates * run.update_every, **metrics}
        if run.eval_every and updates % run.eval_every == 0:
            measured = measure(learner, held_out, run.eval_size, run.seed)
            name = "fraction_of_optimal" if "optimal" in measured else "reward"
            row[name.replace("reward", "held_out")] = measured[name]
        folder.append_line("metrics.jsonl", row)
        if report:
            report({**row, "steps": kind["steps"]})
        if updates == run.updates or (run.checkpoint_every and updates % run.checkpoint_every == 0):
            saved = Checkpoint(
                run.learner,
                updates,
                updates * run.update_every,
                run.seed,
                wanted,
                learner.state(),
                task.routes,
            )
            saved.save(folder.path / "checkpoint.pt")
    spent = {
        "seconds": round(time.perf_counter() - began, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
    }
    summary = {**kind, **spent, **measure(learner, held_out, run.eval_size, run.seed)}
    folder.write_json("summary.json", summary)
    return summary
