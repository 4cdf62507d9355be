"""The folder of a training run: made, taken up, or put in the place of an older run once the new one can begin."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from accelerate import PartialState

from memalpha.data.load import source_names
from memalpha.provenance import environment, masked
from memalpha.runs import RunFolder, check_apart, set_aside
from memalpha.training.config import TrainArguments
from memalpha.training.resume import check_same_options, check_same_processes

_UNBEGUN = frozenset({"config.yaml", "environment.json", ".warm_start"})
"""What a run has before it has begun; the last is of a warm start that is not done."""


@contextmanager
def run_folder(arguments: TrainArguments) -> Iterator[RunFolder]:
    """Give the folder of a run while everything it needs is loaded.

    If that fails before anything was made, all is as before: no new folder that would be in the way of the corrected command, and
    the older run that was to be overwritten in its place. (A process that is killed just then leaves it beside it, as
    ``.NAME.replaced``.)

    Raises:
        InputError: If the run reads what lies in the one it is to overwrite.
        RunFolderError: If the folder exists and is not to be overwritten, or cannot be resumed so, or cannot be made.
    """
    state = PartialState()
    place = Path(str(arguments.grpo.output_dir)).resolve()
    overwrite = arguments.run.overwrite and not arguments.run.resume
    if overwrite:
        check_apart(place, inputs(arguments))
    older = set_aside(place) if overwrite and state.is_main_process else None
    folder = None
    try:
        folder = _open(arguments, state)
        yield folder
    except BaseException:
        if state.is_main_process:
            _put_back(place, older, opened=folder is not None)
        raise
    if older is not None:
        shutil.rmtree(older)


def inputs(arguments: TrainArguments) -> dict[str, list[str]]:
    """Names of what a run reads, which may be paths, by the name of their option."""
    run = arguments.run
    return {
        "adapter": [run.adapter],
        "model": [run.model],
        "router": [arguments.agent.router],
        "train_data": source_names(run.train_data),
        "eval_data": source_names(run.eval_data),
    }


def _put_back(place: Path, older: Path | None, *, opened: bool) -> None:
    """Take the new folder away unless its run has begun, and put the older run in its place."""
    unbegun = {item.name for item in place.iterdir()} <= _UNBEGUN if opened else older is not None
    if unbegun:
        shutil.rmtree(place, ignore_errors=True)
    if older is not None and not place.exists():
        older.rename(place)


def _open(arguments: TrainArguments, state: PartialState) -> RunFolder:
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


__all__ = ["inputs", "run_folder"]
