"""A server over a store, with a scripted model: run as a process of its own, to be talked to, stopped and killed.

    python server_worker.py '{"store": ..., "port": 0, "tokens": FILE or null, "user": ..., "delay": seconds, ...}'

It prints its URL. The model keeps a text's last line word for word; texts that say so make it slow, silent or fail. ``files``
limits its file descriptors; ``constants`` replaces seconds of ``memalpha.use.server``.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
import time
from typing import Any

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.errors import ServiceError
from memalpha.models.nano import make_tokenizer
from memalpha.types import Completion, Prompt, Sampling, StopReason
from memalpha.use.access import Callers, Grant, ServeConfig
from memalpha.use.agent import MemoryAgent

CONFIG = AgentConfig(schema="facts", codec="compact", max_chunk_tokens=40, view_tokens=400, max_completion_length=64)


class Model:
    """Keeps the last line of each chunk; ``delay`` seconds a batch, as a model would take."""

    def __init__(self, delay: float) -> None:
        self.delay = delay

    def generate(self, prompts: list[Prompt], sampling: Sampling) -> list[Completion]:
        chunks = [prompt.messages[-1]["content"].split("<chunk>\n")[1].split("\n</chunk>")[0] for prompt in prompts]
        if any("fail now" in chunk for chunk in chunks):
            raise ServiceError("/secret/path: the model is gone")
        if any("crash now" in chunk for chunk in chunks):
            raise ZeroDivisionError("/secret/path")
        time.sleep(max(self.delay, 1.0 * any("slow" in chunk for chunk in chunks)))
        texts = ["= 99 no such entry" if "mistake" in chunk else f"+ {chunk.splitlines()[-1]}" for chunk in chunks]
        return [Completion((), text, StopReason.END) for text in texts]


def make_agent(store: Any, delay: float = 0.0) -> MemoryAgent:
    return MemoryAgent(AgentStep(CONFIG, make_tokenizer(["facts"], 8192)), Model(delay), store=store, name="scripted")


def main(options: dict[str, Any]) -> None:
    from memalpha.use import server

    logging.basicConfig(level=logging.WARNING)
    agent = make_agent(options.pop("store"), options.pop("delay", 0.0))
    tokens, user, stdio = options.pop("tokens", None), options.pop("user", None), options.pop("stdio", False)
    if files := options.pop("files", 0):
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    for name, seconds in options.pop("constants", {}).items():
        setattr(server, name, seconds)
    callers = Callers.load(tokens) if tokens else Callers(Grant("local", user))
    if stdio:
        server.serve_stdio(agent, ServeConfig(), callers)
        return
    server.serve_http(agent, ServeConfig(**options), callers, lambda url: print(url, flush=True))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
