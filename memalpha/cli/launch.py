"""``memalpha launch``: accelerate's launcher, with one message for a failure or an interruption."""

import logging
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any, NoReturn

from typer import Context
from typer.exceptions import TyperException

from memalpha import errors
from memalpha.cli.console import LAUNCHED
from memalpha.config import config_names, find_config
from memalpha.errors import InputError, MemAlphaError, TrainingAborted
from memalpha.signals import REPEATED_AFTER, handle_signals
from memalpha.threads import processors, quota

_VERBS = ("train", "warmup")
_CONTINUE = "to continue from the last checkpoint, run the same command with --resume"
_LOST_PEER = re.compile(r"^Dist\w*Error|\bgloo\b|\bNCCL\b|Connection (closed|reset) by peer")
"""Errors of a process that lost another one, which therefore failed before."""


def launch(context: Context) -> int:
    """Train in several processes: give options of accelerate launch, then train or warmup.

    For example: memalpha launch --num_processes 2 train --config FILE. Use --cpu for processes on
    CPUs, and --config_file for a file of accelerate or one of ddp, fsdp2 and zero3.
    accelerate launch --help lists the other options. Ctrl-C saves the run after the step.
    """
    from accelerate.commands.launch import launch_command
    from accelerate.utils import patch_environment
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    debug = bool(context.obj.get("debug"))
    options = _options(context.args)
    environment = _complete(options)
    options.module = True
    options.training_script_args.insert(0, options.training_script)
    options.training_script_args += ["--debug"] * debug
    options.training_script = "memalpha"
    signals = _Signals()
    # SIGINT and SIGTERM are left out: ``_Signals`` handles them
    options.signals_to_handle = "SIGHUP,SIGQUIT"
    try:
        with (
            patch_environment(**environment),
            _without_logs(not debug),
            handle_signals(signals.handle),
        ):
            launch_command(options)
    except ChildFailedError as error:
        rank, failure = _first(error.failures)
        if signals.explain(failure.exitcode):
            return 130
        raise _failure(rank, failure.exitcode, failure.message) from error
    except CalledProcessError as error:  # of one process, which has said why
        if signals.explain(error.returncode):
            return 130
        if error.returncode > 0:
            return error.returncode
        raise _failure(0, error.returncode, "") from error
    except SignalException as error:
        what = f"{error.sigval.name} received: all processes were stopped"
        raise TrainingAborted(what, fix=_CONTINUE) from error
    except (ValueError, ImportError, OSError, RuntimeError) as error:
        raise InputError(f"the processes cannot be started: {error}") from error
    return 0


# ------------------------------------------------------------------------------------------------
# options
def _options(words: Sequence[str]) -> Any:
    """Return the options of accelerate's launcher; wrong usage raises TyperException."""
    from accelerate.commands.launch import launch_command_parser

    parser = launch_command_parser()
    parser.error = _refuse
    options = parser.parse_args(words)
    if options.training_script not in _VERBS:
        raise TyperException(f"launch starts train or warmup, not {options.training_script!r}")
    if options.config_file:
        path = find_config("accelerate", options.config_file)
        if not path.is_file():
            raise InputError(
                f"there is no file {str(path)!r}",
                expected=f"a file, or one of {', '.join(config_names('accelerate'))}",
            )
        options.config_file = str(path)
    return options


def _refuse(message: str) -> NoReturn:
    missing = "training_script" in message
    raise TyperException("launch got no verb, such as train" if missing else message)


def _complete(options: Any) -> dict[str, str]:
    """Complete the options, so that as many processes start as they say, on CPUs, too, where
    accelerate starts one. Return the processes' variables of the environment.
    """
    import torch
    from accelerate.commands.config.config_args import default_config_file, load_config_from_file

    path = options.config_file or default_config_file
    config = load_config_from_file(path) if Path(path).is_file() else None
    if options.num_processes is not None and options.num_processes < 1:
        raise InputError(f"num_processes is {options.num_processes}", expected="1 or more")
    count = options.num_processes or getattr(config, "num_processes", None) or 1
    machines = options.num_machines or getattr(config, "num_machines", None) or 1
    if options.num_cpu_threads_per_process is None and "OMP_NUM_THREADS" not in os.environ:
        share = min(processors(), quota()) * machines / count
        options.num_cpu_threads_per_process = max(1, int(share))
    if machines == 1 and getattr(config, "main_process_port", None) is None:
        options.main_process_port = options.main_process_port or 0  # any that is free
    environment = {LAUNCHED: "1"}
    kind = getattr(config, "distributed_type", "NO")
    named = ("multi_gpu", "use_fsdp", "use_deepspeed", "use_megatron_lm", "tpu")
    spread = kind not in ("NO", "MULTI_CPU") or any(getattr(options, name) for name in named)
    cpus = options.cpu or getattr(config, "use_cpu", False)
    devices = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    if count > 1 and (cpus or not (spread or devices)):
        options.cpu, options.multi_gpu = False, True
        options.gpu_ids = "all"
        options.mixed_precision = options.mixed_precision or "no"
        options.num_machines = machines
        environment["ACCELERATE_USE_CPU"] = "true"
    elif count > devices * machines and devices:
        raise InputError(
            f"{count} processes need a device each, but the number of devices is "
            f"{devices * machines}",
            expected=f"--num_processes {devices * machines}, or --cpu",
        )
    return environment


@contextmanager
def _without_logs(wanted: bool) -> Iterator[None]:
    """Keep what accelerate and torch log about their processes from standard error."""
    before = logging.root.manager.disable
    if wanted:
        logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


# ------------------------------------------------------------------------------------------------
# signals and failures
class _Signals:
    """Hands Ctrl-C or SIGTERM of this process on to its ranks as Ctrl-C; a second Ctrl-C after at
    least a second kills them.
    """

    def __init__(self) -> None:
        self._received: float | None = None  # when the first came
        self._killed = False

    def explain(self, exit_code: int) -> bool:
        """Whether a process ended with this code because of a signal that came here."""
        stopped = exit_code in (130, -signal.SIGINT, -signal.SIGTERM)
        return self._killed or (self._received is not None and stopped)

    def handle(self, number: int, frame: Any) -> None:
        """Hand a signal on."""
        import psutil

        own = psutil.Process()
        now = time.monotonic()
        if self._received is None and not own.children():
            raise KeyboardInterrupt
        if self._received is None:
            self._received = now
            self._send(own.children(), signal.SIGINT)
        elif number == signal.SIGINT and now - self._received >= REPEATED_AFTER:
            self._killed = True
            self._send(own.children(recursive=True), signal.SIGKILL)

    def _send(self, processes: Sequence[Any], number: int) -> None:
        import psutil

        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def _first(failures: Mapping[int, Any]) -> tuple[int, Any]:
    """Return rank and failure of the process because of which the others failed."""

    def order(item: tuple[int, Any]) -> tuple[bool, float]:
        _, failure = item
        ended = failure.exitcode == -signal.SIGTERM  # by the agent
        return ended or bool(_LOST_PEER.search(_text(failure.message))), failure.timestamp

    return min(failures.items(), key=order)


def _text(message: Any) -> str:
    return str(message["message"] if isinstance(message, dict) else message)


def _failure(rank: int, exit_code: int, message: Any) -> MemAlphaError:
    """Return the error of a process that ended with a code (negative: a signal)."""
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        memory = "; the system does so when memory runs out" if name == "SIGKILL" else ""
        return TrainingAborted(f"rank {rank} was ended by {name}{memory}", fix=_CONTINUE)
    if not isinstance(message, dict):  # no error file
        return TrainingAborted(f"rank {rank} ended with exit code {exit_code}", fix=_CONTINUE)
    text = _text(message)
    name, _, rest = text.partition(": ")
    if issubclass(getattr(errors, name, object), MemAlphaError):
        return MemAlphaError(f"rank {rank}: {rest}")
    return TrainingAborted(f"rank {rank}: {text}", fix=f"{_CONTINUE}; --debug shows the traceback")
