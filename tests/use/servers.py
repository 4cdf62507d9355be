"""Starting a real server process for a test, with tokens for as many users as it likes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

WORKER = Path(__file__).with_name("server_worker.py")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "no_proxy": "127.0.0.1"}


class Server:
    """A server process; ``url`` is where it listens."""

    def __init__(self, **options: Any) -> None:
        options = {"port": 0, **{name: str(value) if isinstance(value, Path) else value for name, value in options.items()}}
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http://"), self.process.communicate()[1]

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.communicate(timeout=60)
        return self.process.returncode


@contextmanager
def running(**options: Any) -> Iterator[Server]:
    server = Server(**options)
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)


def token_of(name: str) -> str:
    """The token of a user in ``tokens_file``."""
    return f"token-of-{name}"


def line(name: str, **reach: Any) -> dict[str, Any]:
    """A line of a tokens file."""
    return {"name": f"{name}'s client", "sha256": hashlib.sha256(token_of(name).encode()).hexdigest(), **(reach or {"user": name})}


def tokens_file(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump({"tokens": list(lines)}))
    return path


def bearer(name: str, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token_of(name)}", **more}


def client(server: Server, name: str | None = None, **more: str) -> httpx.Client:
    return httpx.Client(base_url=server.url, headers=bearer(name, **more) if name else more, timeout=30, trust_env=False)
