"""The lock of an output folder: one command at a time writes to it.

The system holds the lock and gives it up when the process ends, however it ends, so that a run
that was killed goes on. The file says who holds it. Not covered: file systems without locks, where
a warning says so.
"""

import errno
import fcntl
import json
import logging
import os
import socket
from contextlib import suppress
from pathlib import Path

from memalpha.errors import RunFolderError

_logger = logging.getLogger(__name__)

LOCK_FILE = ".memalpha-lock"
_HELD = (errno.EWOULDBLOCK, errno.EACCES, errno.EAGAIN)


class FolderLock:
    """The lock of ``folder``, taken by ``take`` and held until the context ends.

    RunFolderError, with process and host, while another command holds it. Of the processes of one
    command one ``takes`` it.
    """

    def __init__(self, folder: str | Path, *, takes: bool = True) -> None:
        self.folder = Path(folder)
        self.takes = takes
        self._descriptor: int | None = None

    def __enter__(self) -> "FolderLock":
        """Take nothing yet: the folder need not exist."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give the lock up and remove its file."""
        if self._descriptor is not None:
            with suppress(OSError):
                (self.folder / LOCK_FILE).unlink()
            os.close(self._descriptor)
            self._descriptor = None

    def take(self, where: str = "") -> None:
        """Take the lock, if it is not held here already and the folder holds a file ``where``."""
        path = self.folder / LOCK_FILE
        if not self.takes or not (self.folder / where).exists():
            return
        while self._descriptor is None:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            except OSError as error:
                raise RunFolderError(
                    f"the folder {str(self.folder)!r} cannot be used: {error.strerror}",
                    fix="choose another folder",
                ) from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _HELD:
                    holder = os.read(descriptor, 1000).decode("utf-8", "replace")
                    os.close(descriptor)
                    raise self._busy(holder) from error
                _logger.warning("%s cannot be locked: %s", self.folder, error.strerror)
            if _is_at(descriptor, path):
                self._descriptor = descriptor
            else:  # its holder has just removed it
                os.close(descriptor)
        who = {"process": os.getpid(), "host": socket.gethostname()}
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(who).encode(), 0)

    def _busy(self, holder: str) -> RunFolderError:
        who = "another command"
        with suppress(ValueError, KeyError, TypeError):
            data = json.loads(holder)
            who = f"process {data['process']} on {data['host']}"
        return RunFolderError(
            f"{who} writes to {str(self.folder)!r}",
            expected="one command at a time",
            fix="wait until that command ends, stop it, or choose another --output_dir",
        )


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
