"""The folder of a training run: created, or resumed with the same options, data and number of processes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate import PartialState

from memalpha.data.load import source_names
from memalpha.data.schema import digest_instances
from memalpha.errors import InputError, RunFolderError
from memalpha.runs import RunFolder, check_apart, checkpoint_step, environment, make_folder, masked
from memalpha.training.checkpoints import newest_whole
from memalpha.training.config import TrainArguments
from memalpha.types import Instance


def check_place(arguments: TrainArguments) -> None:
    """Check, before anything is loaded, that the run can use its folder.

    InputError if the run reads from the folder it overwrites, or has a warm start and an adapter. RunFolderError as
    :func:`open_folder`.
    """
    run, path = arguments.run, Path(str(arguments.grpo.output_dir))
    if run.warm_start_steps and run.adapter:
        raise InputError(
            f"warm_start_steps is {run.warm_start_steps}, with the adapter {run.adapter!r}, which would not be used",
            expected="one of the two",
            fix="memalpha warmup --adapter goes on from an adapter",
        )
    if run.resume:
        RunFolder(path)
    elif RunFolder.check_free(path, overwrite=run.overwrite, resumable=True):
        check_apart(path, {**inputs(arguments), "working directory": [str(Path.cwd())]})
    if not path.exists():  # check that it can be made
        make_folder(path)
        path.rmdir()


def open_folder(arguments: TrainArguments) -> RunFolder:
    """Make or overwrite the folder of a run, or resume it; call it after everything is loaded.

    RunFolderError if the folder exists without ``overwrite``, cannot be resumed, or cannot be made.
    """
    state = PartialState()
    run, path = arguments.run, str(arguments.grpo.output_dir)
    if state.is_main_process:
        config = {**asdict(run), **asdict(arguments.agent), **asdict(arguments.reward), **arguments.grpo.to_dict()}
        folder = RunFolder.create(path, config, overwrite=run.overwrite, resume=run.resume)
        here = environment(state.num_processes)
        if run.resume:
            folder.check_training()
            began = folder.read_json("environment.json")
            check_same_options(folder.config, masked(config))
            check_same_processes(began, state.num_processes)
            here = {**began, "resumed": [*began.get("resumed", []), here]}
        folder.write_json("environment.json", here)
    state.wait_for_everyone()
    return RunFolder(path)


def inputs(arguments: TrainArguments) -> dict[str, list[str]]:
    """Names (possibly paths) of the inputs of a run, by option name."""
    run = arguments.run
    return {
        "adapter": [run.adapter],
        "model": [run.model],
        "router": [arguments.agent.router],
        "train_data": source_names(run.train_data),
        "eval_data": source_names(run.eval_data),
    }


MAY_CHANGE = frozenset({
    "output_dir", "overwrite", "resume", "max_steps", "rows_per_forward", "generation_rows", "max_masked_share",
    "max_skipped_steps", "endpoint_url", "endpoint_timeout", "endpoint_retries", "endpoint_backoff", "endpoint_concurrency",
    "judge_url", "report_to", "run_name", "disable_tqdm", "local_rank", "ddp_timeout", "project", "trackio_space_id",
})  # fmt: skip
"""Options that do not change results, only duration and memory use."""

MAY_CHANGE_FROM = ("save_", "logging_", "log_", "hub_", "push_to_hub", "dataloader_")
"""Prefixes of more such options."""

_ABSENT = "not there"


def check_same_options(began: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise RunFolderError if options that change results differ from the run's ``config.yaml`` (``began``)."""
    now = json.loads(json.dumps(now))
    names = sorted({*began, *now})
    different = [
        f"{name} was {began.get(name, _ABSENT)!r} and is {now.get(name, _ABSENT)!r}"
        for name in names
        if began.get(name, _ABSENT) != now.get(name, _ABSENT) and name not in MAY_CHANGE and not name.startswith(MAY_CHANGE_FROM)
    ]
    if different:
        raise RunFolderError(
            "the run began with other options: " + "; ".join(different),
            expected="the options it began with",
            fix="give the same --config and overrides; or start a new run from this one's adapter with --adapter RUN/adapter",
        )


def check_same_processes(environment: Mapping[str, Any], world_size: int) -> None:
    """Raise RunFolderError if the number of processes changed: batches and random numbers would differ."""
    began = int(environment.get("world_size", world_size))
    if began != world_size:
        raise RunFolderError(
            f"the run began with {began} processes and is resumed with {world_size}",
            expected=f"{began} processes",
            fix="launch as before, or start a new run from this one's adapter with --adapter RUN/adapter",
        )


def check_same_data(folder: RunFolder, **sets: Sequence[Instance]) -> None:
    """Record the data sets (by option name) in ``environment.json``; RunFolderError if they changed on resume."""
    environment = folder.read_json("environment.json")
    now = {name: digest_instances(instances) for name, instances in sets.items()}
    began = environment.get("data")
    if began is None:
        folder.write_json("environment.json", {**environment, "data": now})
    elif different := [name for name in now if began.get(name) != now[name]]:
        said = (f"{name} was {_counted(began.get(name, {}))} and is {_counted(now[name])}" for name in different)
        raise RunFolderError(
            "the run began with other data: " + "; ".join(said),
            expected="the data it began with",
            fix="put them back; or start a new run from this one's adapter with --adapter RUN/adapter",
        )


def _counted(digest: Mapping[str, Any]) -> str:
    return f"{digest.get('instances', _ABSENT)} instances with sha256 {str(digest.get('sha256', _ABSENT))[:12]}"


def last_checkpoint(folder: RunFolder) -> tuple[Path | None, dict[str, str]]:
    """Return the newest complete checkpoint, and what is wrong with newer ones; drop what the run wrote after it."""
    checkpoint, damaged = newest_whole(folder.checkpoints())
    folder.drop_after(step_of(checkpoint))
    return checkpoint, damaged


def step_of(checkpoint: Path | None) -> int:
    """The step a checkpoint was saved after; 0 for none."""
    return checkpoint_step(checkpoint) if checkpoint else 0
