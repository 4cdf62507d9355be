"""Signals that a block of code handles by itself: Ctrl-C and SIGTERM."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

REPEATED_AFTER = 1.0
"""Seconds before which a second Ctrl-C is ignored."""


@contextmanager
def handle_signals(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Give SIGINT and SIGTERM to ``handler`` inside the block, if it runs in the main thread; in
    others Python takes no signals.
    """
    main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
