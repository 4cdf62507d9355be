"""Trains and measures a router, a configuration in and a run folder out; selectors in files.

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

from memalpha.config import Options, make_options, parse, read_yaml
from memalpha.contrib.router.learner import MAPPO, GroupOptions, LinUCB, MultiAgentGRPO
from memalpha.contrib.router.policy import (
    Checkpoint,
    NetworkOptions,
    PPOOptions,
    Shape,
    as_plain_data,
)
from memalpha.contrib.router.selector import SelectorOptions, ToolSelector
from memalpha.contrib.router.tasks import (
    EnvironmentOptions,
    EnvironmentTask,
    Floats,
    Integers,
    LogOptions,
    LogTask,
    SyntheticEpisodes,
    SyntheticOptions,
    SyntheticTask,
    Task,
    read_log,
    split_log,
)
from memalpha.errors import InputError, RunFolderError
from memalpha.record.folder import MARKER, RunFolder, environment
from memalpha.record.lock import FolderLock
from memalpha.retrieval.embedders import make_embedder
from memalpha.types import JsonMapping, JsonObject

Learner = MAPPO | LinUCB  # MultiAgentGRPO is a MAPPO
# Called after each update with its metrics, ``step`` and ``steps``.
Report = Callable[[JsonObject], None]


@dataclass(frozen=True, slots=True)
class RouterOptions(Options):
    """Options of learner, task and measurement of a router run.

    Attributes:
        learner: The router learns with ``mappo``, ``grpo`` or ``linucb``.
        task: The router learns on the ``synthetic`` task, on the rows of a ``log`` or in your own
            ``environment``.
        task_options: The task takes these options (``SyntheticOptions``, ``LogOptions`` or
            ``EnvironmentOptions``).
        eval_options: The held-out task has these options where they differ from ``task_options``.
        seed: First weights, actions and minibatches are drawn from this seed; the task has its own.
        steps: The run takes this many steps over all agents and episodes; the last update may
            exceed it by less than one update.
        envs: This many episodes run at the same time.
        update_every: An update comes after this many steps over all episodes, a multiple of
            ``envs``.
        eval_every: This many updates lie between two measurements on held-out episodes; 0 measures
            only at the end.
        eval_size: At most this many held-out episodes are measured.
        checkpoint_every: This many updates lie between two checkpoints; 0 saves only at the end.
    """

    learner: Literal["mappo", "grpo", "linucb"] = "mappo"
    task: Literal["synthetic", "log", "environment"] = "synthetic"
    task_options: JsonMapping = field(default_factory=dict)
    eval_options: JsonMapping = field(default_factory=dict)
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

    run: RouterOptions
    policy: NetworkOptions
    ppo: PPOOptions
    group: GroupOptions

    def flat(self) -> JsonObject:
        """Return all options as one mapping, as in a file."""
        return {
            name: value for group in self for name, value in as_plain_data(asdict(group)).items()
        }


# as in ``RouterConfig``
ROUTER_GROUPS: tuple[Any, ...] = (RouterOptions, NetworkOptions, PPOOptions, GroupOptions)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RouterConfig:
    """Read a YAML file and command-line options ``--name value``; InputError names what does not
    fit.
    """
    return RouterConfig(
        *parse(["--config", str(path), *overrides], ROUTER_GROUPS, "memalpha router train")
    )


def make_tasks(config: RouterConfig) -> tuple[Task, Task]:
    """Return the task to train on and the held-out one; InputError if an option of theirs is
    wrong.
    """
    what = f"task_options of the {config.run.task} task"
    options = config.run.task_options
    held_out = {**options, **config.run.eval_options}
    if config.run.task == "synthetic":
        train, test = (make_options(SyntheticOptions, given, what) for given in (options, held_out))
        return SyntheticTask(train), SyntheticTask(test)
    if config.run.task == "environment":
        own, other = (
            make_options(EnvironmentOptions, given, what) for given in (options, held_out)
        )
        return EnvironmentTask(own), EnvironmentTask(other)
    return log_tasks(
        make_options(LogOptions, options, what), make_options(LogOptions, held_out, what)
    )


def log_tasks(options: LogOptions, held_out: LogOptions) -> tuple[LogTask, LogTask]:
    """Return the task of the rows to train on and of those held out: another file, or a share of
    the prompts.
    """
    log = read_log(options)
    embedder = make_embedder(options.embedder)
    names = [sorted(set(column)) for column in zip(*log.routes, strict=True)]
    logs = (log, read_log(held_out))
    if held_out.rows == options.rows:
        logs = split_log(log, options.held_out)
    train = LogTask(logs[0], names, embedder, options.embedder)
    return train, LogTask(logs[1], names, embedder, options.embedder, train)


def make_learner(config: RouterConfig, shape: Shape) -> Learner:
    """Return an untrained learner."""
    run, policy, ppo, group = config
    if run.learner == "linucb":
        return LinUCB(shape)
    if run.learner == "grpo":
        return MultiAgentGRPO(shape, policy, ppo, group, run.seed)
    if policy.kind != "team":
        what = f"learner mappo cannot train a policy of kind {policy.kind!r}"
        raise InputError(what, expected="team", fix="set kind: team")
    return MAPPO(shape, policy, ppo, run.seed)


def fit_router(
    learner: Learner, task: Task, run: RouterOptions, first: int = 0
) -> Iterator[tuple[int, dict[str, float]]]:
    """Train a learner; yields the number of updates taken and the metrics of the last one."""
    for index in range(first, run.updates):
        seed = int(np.random.SeedSequence([run.seed, index]).generate_state(1)[0])
        length = run.update_every // run.envs
        yield index + 1, learner.update(task, run.envs, length, seed, 1 - index / run.updates)


def measure_router(learner: Learner, task: Task, episodes: int, seed: int) -> JsonObject:
    """Return the mean return of a learner's greedy choices on held-out episodes, and the best
    expected one where it is known.
    """

    def greedy(observations: Floats) -> Integers:
        return np.asarray(learner.probabilities(observations).argmax(axis=-1))

    if isinstance(task, LogTask):
        return task.estimate(np.eye(task.shape.choices)[greedy(task.embeddings)])
    running = task.begin(episodes, seed, held_out=True)
    returns = np.zeros(len(running.observe()))
    over = np.zeros(len(returns), dtype=bool)
    while not over.all():
        rewards, terminated, truncated, _ = running.step(greedy(running.observe()))
        returns += np.where(over, 0.0, rewards)
        over |= terminated | truncated
    reward = float(returns.mean())
    measured = {"reward": reward, "episodes": len(returns)}
    if isinstance(running, SyntheticEpisodes):
        optimal = float(running.optimum.mean())
        return {**measured, "optimal": optimal, "fraction_of_optimal": reward / optimal}
    return {**measured, "stderr": float(returns.std() / len(returns) ** 0.5)}


def train_policies(
    config: RouterConfig,
    output: str | Path,
    report: Report | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
) -> JsonObject:
    """Train a router in the run folder ``output`` and return the summary; InputError or
    RunFolderError if it cannot run.
    """
    started = time.perf_counter()
    processor = time.process_time()
    run = config.run
    options = config.flat()
    task, held_out = make_tasks(config)
    learner = make_learner(config, task.shape)
    with FolderLock(output) as lock:
        lock.take(where=MARKER)
        folder = RunFolder.create(output, options, overwrite=overwrite, resume=resume)
        lock.take()
        first = _resume(folder, learner, options) if resume else 0
        folder.write_json("environment.json", environment())
        steps = run.updates * run.update_every
        for updates, metrics in fit_router(learner, task, run, first):
            taken = updates * run.update_every
            row = {"step": taken, **metrics}
            if run.eval_every and updates % run.eval_every == 0:
                measured = measure_router(learner, held_out, run.eval_size, run.seed)
                if "optimal" in measured:
                    row["fraction_of_optimal"] = measured["fraction_of_optimal"]
                else:
                    row["held_out"] = measured["reward"]
            folder.append_line("metrics.jsonl", row)
            if report:
                report({**row, "steps": steps})
            is_due = run.checkpoint_every and updates % run.checkpoint_every == 0
            if updates == run.updates or is_due:
                state = learner.state()
                saved = Checkpoint(
                    run.learner, updates, taken, run.seed, options, state, task.routes
                )
                saved.save(folder.path / "checkpoint.pt")
        summary = {
            "learner": run.learner,
            "task": run.task,
            "seed": run.seed,
            "steps": steps,
            "seconds": round(time.perf_counter() - started, 2),
            "cpu_seconds": round(time.process_time() - processor, 2),
            **measure_router(learner, held_out, run.eval_size, run.seed),
        }
        folder.write_json("summary.json", summary)
    return summary


def _resume(folder: RunFolder, learner: Learner, options: JsonMapping) -> int:
    """Load the checkpoint of a run folder into a learner; return its number of updates."""
    checkpoint = Checkpoint.load(folder.path)
    differing = [name for name in sorted(options) if checkpoint.config.get(name) != options[name]]
    if differing:
        expected = "the options of the run's config.yaml"
        raise RunFolderError(
            f"these options differ from those of the run that is resumed: {', '.join(differing)}",
            expected=expected,
        )
    learner.load_state(dict(checkpoint.state))
    folder.drop_after(checkpoint.steps)
    return checkpoint.updates


# ------------------------------------------------------------------------------------------------
# tool selectors in files
# For the command line: made of a file of tools, written after every call.
#
# tools: {search: looks facts up in the memory, ask: asks the person}
# options: {embedder: minilm, update_every: 20}  # ``SelectorOptions`` of one that is not there yet


@dataclass
class _ToolFile(Options):
    tools: dict[str, str]
    options: JsonObject = field(default_factory=dict)


def read_tools(path: str | Path) -> tuple[dict[str, str], SelectorOptions]:
    """Return the tools of a YAML or JSON file, description by name, and the options beside them;
    InputError if they do not fit.
    """
    file = make_options(_ToolFile, read_yaml(Path(path)), str(path))
    return file.tools, make_options(SelectorOptions, file.options, f"the options of {path}")


def open_selector(path: Path, tools: Mapping[str, str], options: SelectorOptions) -> ToolSelector:
    """Return the selector of a file, or a new one, with the tools; InputError if the file has a
    tool that is not among them.
    """
    selector = ToolSelector.load(path) if path.is_file() else ToolSelector(options)
    if selector.options.embedder != options.embedder:
        raise InputError(
            f"{path} was made with embedder {selector.options.embedder!r}",
            expected=f"{options.embedder!r}, as in the file of tools",
        )
    gone = selector.tools.keys() - tools.keys()
    if gone:
        raise InputError(
            f"the selector {path} also knows the tools {', '.join(sorted(gone))}",
            expected="a file of tools that holds all of them",
        )
    for name, description in tools.items():
        if name not in selector.tools:
            selector.register(name, description)
    return selector
