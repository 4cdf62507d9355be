"""A server process with a scripted model, which keeps a text's last line (``= 1 ...`` updates);
some texts make it slow or fail."""

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import httpx
import yaml

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.errors import ServiceError
from memalpha.models.registry import make_tokenizer
from memalpha.types import Completion, Prompt, Sampling, StopReason
from memalpha.use.access import Callers, Grant, ServeConfig
from memalpha.use.agent import MemoryAgent
from memalpha.use.routes import route_options

CONFIG = AgentConfig(
    schema="facts", codec="compact", max_chunk_tokens=40, view_tokens=400, max_completion_length=64
)


class Model:
    def __init__(self, delay: float) -> None:
        self.delay = delay

    def generate(self, prompts: list[Prompt], sampling: Sampling) -> list[Completion]:
        chunks = [
            prompt.messages[-1]["content"].split("<chunk>\n")[1].split("\n</chunk>")[0]
            for prompt in prompts
        ]
        if any("fail now" in chunk for chunk in chunks):
            raise ServiceError("/secret/path: the model is gone")
        if any("crash now" in chunk for chunk in chunks):
            raise ZeroDivisionError("/secret/path")
        time.sleep(
            max(
                self.delay,
                *(2.5 * ("very slow" in chunk) or 1.0 * ("slow" in chunk) for chunk in chunks),
            )
        )
        kept = [
            "= 99 no such entry" if "mistake" in chunk else chunk.splitlines()[-1]
            for chunk in chunks
        ]
        texts = [line if line.startswith("= ") else f"+ {line}" for line in kept]
        return [Completion((), text, StopReason.END) for text in texts]


def make_agent(store: Any, delay: float = 0.0, archive: bool = False) -> MemoryAgent:
    step = AgentStep(replace(CONFIG, archive=archive), make_tokenizer(["facts"], 8192))
    return MemoryAgent(step, Model(delay), store=store, name="scripted")


WORKER = __file__
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "no_proxy": "127.0.0.1"}


class Server:
    errors = ""

    def __init__(self, **options: Any) -> None:
        words = json.dumps({"port": 0, **options}, default=str)
        self.process = subprocess.Popen(
            [sys.executable, WORKER, words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http://"), self.process.communicate()[1]
        self.port = int(self.url.rsplit(":", 1)[1])

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        if not self.errors:
            self.errors = self.process.communicate(timeout=60)[1]
        return self.process.returncode


@contextmanager
def running(**options: Any) -> Iterator[Server]:
    server = Server(**options)
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)


def line(name: str, **reach: Any) -> dict[str, Any]:
    digest = hashlib.sha256(f"token-of-{name}".encode()).hexdigest()
    return {"name": f"{name}'s client", "sha256": digest, **(reach or {"user": name})}


def tokens_file(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump({"tokens": list(lines)}))
    return path


def bearer(name: str, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer token-of-{name}", **more}


def client(server: Server, name: str | None = None, **more: str) -> httpx.Client:
    return httpx.Client(
        base_url=server.url,
        headers=bearer(name, **more) if name else more,
        timeout=30,
        trust_env=False,
    )


def main(options: dict[str, Any]) -> None:
    from memalpha.use import server

    logging.basicConfig(level=logging.WARNING)
    agent = make_agent(
        options.pop("store"), options.pop("delay", 0.0), options.pop("archive", False)
    )
    tokens, user = options.pop("tokens", None), options.pop("user", None)
    callers = Callers.load(tokens) if tokens else Callers(Grant("local", user))
    if options.pop("stdio", False):
        server.serve_stdio(agent, ServeConfig(), callers)
    else:
        kinds = [ServeConfig, *route_options()]
        config, *others = [
            kind(
                **{
                    each.name: options.pop(each.name)
                    for each in fields(kind)
                    if each.name in options
                }
            )
            for kind in kinds
        ]
        assert not options
        server.serve_http(agent, config, callers, lambda url: print(url, flush=True), others)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
