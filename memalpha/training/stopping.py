"""Ctrl-C (and SIGTERM, as schedulers send it): finish the step, save, stop.

The first signal is remembered and takes effect after the step. A second Ctrl-C, a second or more later, stops at once; launchers
repeat a signal to their workers within milliseconds, which does not count.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers import TrainerCallback

logger = logging.getLogger(__name__)

REPEATED_AFTER = 1.0
"""Seconds after which a second Ctrl-C is meant."""


class StopRequest:
    """Whether somebody asked to stop, by which signal and when."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._since = 0.0

    def __call__(self, number: int, frame: Any) -> None:
        """Handle a signal."""
        again = self.signal is not None and number == signal.SIGINT and time.monotonic() - self._since >= REPEATED_AFTER
        if again:
            raise KeyboardInterrupt
        if self.signal is None:
            self.signal, self._since = signal.Signals(number), time.monotonic()
            logger.warning("%s: saving after this step; Ctrl-C again stops at once", self.signal.name)


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Take SIGINT and SIGTERM inside the block, if it runs in the main thread."""
    request = StopRequest()
    numbers = [signal.SIGINT, signal.SIGTERM] if threading.current_thread() is threading.main_thread() else []
    before = {number: signal.signal(number, request) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StopCallback(TrainerCallback):  # type: ignore[misc]
    """Saves and stops after the step in which any rank was asked to.

    Args:
        request: This rank's.
        any_rank: Whether a truth holds on any rank; called by all of them after each step.
    """

    def __init__(self, request: StopRequest, any_rank: Callable[[bool], bool]) -> None:
        self.request, self.any_rank = request, any_rank
        self.stopped = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ask for a checkpoint and for the end."""
        if self.any_rank(self.request.signal is not None):
            self.stopped = control.should_save = control.should_training_stop = True
