"""The terminal: one rich console, plain lines where the output is no terminal."""

from __future__ import annotations

import os
import time
import warnings
from typing import Any

from rich.console import Console

console = Console(soft_wrap=True, highlight=False)


def out(text: str) -> None:
    """Write one line."""
    console.print(text, markup=False)


class Reporter:
    """Shows the events of a run as lines; a rank other than the first is silent."""

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self.started = time.time()

    def __call__(self, event: str, data: dict[str, Any]) -> None:
        """Show one event."""
        if self.enabled:
            line = _LINES.get(event, lambda _: "")(data)
            if line:
                out(f"[{time.time() - self.started:6.0f} s] {line}")


def _step(data: dict[str, Any]) -> str:
    shown = {
        "reward": data.get("reward"),
        "accuracy": data.get("rewards/accuracy/mean"),
        "tool": data.get("rewards/tool/mean"),
        "content": data.get("rewards/content/mean"),
        "calls/chunk": data.get("memory/calls_per_chunk"),
        "updates": data.get("memory/update_share"),
        "deletes": data.get("memory/delete_share"),
        "cut off": data.get("memory/cut_off"),
        "loss": data.get("loss"),
        "s/step": data.get("step_time"),
    }
    parts = [f"{name} {float(value):.3f}" for name, value in shown.items() if value is not None]
    return f"step {data['step']}/{data['max_steps']}  " + "  ".join(parts)


def _evaluated(data: dict[str, Any]) -> str:
    return (
        f"{data['name']}: accuracy {data['accuracy']:.3f} +- {data['stderr']:.3f} on {data['n']} held-out instances, "
        f"tool success {data['tool_success']:.2f}, memory {data['memory_tokens']:.0f} tokens ({data['seconds']} s)"
    )


_LINES: dict[str, Any] = {
    "resume": lambda data: _resume(data),
    "load": lambda data: f"loading {data['what']}",
    "step": _step,
    "evaluate": lambda data: f"evaluating {data['name']}: chunk {data['done']} of {data['total']} of {data['instances']} instances",
    "evaluated": _evaluated,
    "writing": lambda data: f"{_who(data)}: chunk {data['done']} of {data['chunks']}",
    "read": lambda data: f"{_who(data)}, {data['reader']}: {_accuracy(data)}",
    "compared": lambda data: f"{data['results']} results in {data['folder']}{_failures(data)}",
    "warmup": lambda data: (
        f"warm start step {data['step']}/{data['max_steps']}  loss {float(data['loss']):.3f}" if "loss" in data else ""
    ),
}


def _who(data: dict[str, Any]) -> str:
    which = f"instances {data['first']} to {data['last']} of {data['instances']}, seed {data['seed']}"
    return f"{data['system']} on {data['set']}, {which}"


def _accuracy(data: dict[str, Any]) -> str:
    known = data["accuracy"] is not None
    return f"accuracy {data['accuracy']:.3f} on {data['questions']} questions" if known else "no question has a score"


def _failures(data: dict[str, Any]) -> str:
    return f"; {data['failed']} failed: the same command again tries them once more" if data["failed"] else ""


def is_main_process() -> bool:
    """Whether this process is the first of its launch."""
    return os.environ.get("RANK", "0") == "0"


def whose() -> str:
    """Name this process where there are several: ``[rank 1] ``."""
    return f"[rank {os.environ['RANK']}] " if os.environ.get("WORLD_SIZE", "1") != "1" else ""


def tell_launcher(error: BaseException) -> None:
    """Leave an error where torchrun looks for it, so that its report on the first rank that failed has the message."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)


def _resume(data: dict[str, Any]) -> str:
    left_out = "".join(f"{name} is left out ({reason}); " for name, reason in data["damaged"].items())
    return f"{left_out}going on from {data['checkpoint'] or 'the beginning: there is no whole checkpoint'}"


def quiet_libraries() -> None:
    """Switch off progress bars, and warnings of libraries about one another: what the command line shows is its own."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)
    for text in ("Unable to fetch remote file", "Could not find a config file in"):  # peft asks a hub for the base by its name
        warnings.filterwarnings("ignore", message=text, category=UserWarning)
