"""Many clients write, search and read at once while the server is killed and started again; then the store is held to account.

    python tests/use/load.py '{"clients": 50, "seconds": 120, "folder": FOLDER}'

Each client has a token and a memory of its own and counts a text as kept once its answer has come. The server process listens at
one port over its lives. What is checked at the end, with the server gone: each acknowledged text is in its memory, each memory
holds its own client's texts alone and each of them once, the store verifies.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from server_worker import make_agent
from servers import Server, bearer, line, tokens_file


@dataclass
class Load:
    """What happened, over all clients: texts that were acknowledged and sent, seconds and numbers of answers, mistakes."""

    kept: dict[str, list[str]] = field(default_factory=dict)
    sent: dict[str, set[str]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"add": [], "search": []})
    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


async def client(name: str, url: str, load: Load) -> None:
    """Write texts, each until it was acknowledged; search for one of them now and then."""
    kept, sent, rng = load.kept.setdefault(name, []), load.sent.setdefault(name, set()), random.Random(name)
    async with httpx.AsyncClient(base_url=url, headers=bearer(name), timeout=60, trust_env=False) as http:
        number = 0
        while True:
            text = f"{name} fact {number}"
            sent.add(text)
            if (answer := await asked(http, load, "add", {"text": text})) is None:
                continue
            if answer["operations"] or answer["results"][0]["code"] == "duplicate":  # it was written before the kill
                kept.append(text)
            else:
                load.wrong.append(f"{text}: {answer}")
            number += 1
            if rng.random() < 0.3:
                wanted = rng.choice(kept)
                found = await asked(http, load, "search", {"query": wanted, "k": 3})
                if found is not None and wanted not in [entry["content"] for entry in found["entries"]]:
                    load.wrong.append(f"{name} did not find {wanted}: {found}")


async def asked(http: httpx.AsyncClient, load: Load, what: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """Return the answer, or None where there was none; a server that is gone or full is waited for."""
    began = time.monotonic()
    try:
        response = await http.post(f"/v1/{what}", json=body)
    except httpx.TransportError as error:
        load.answers[f"{what} {type(error).__name__}"] += 1
        await asyncio.sleep(0.1)
        return None
    load.answers[f"{what} {response.status_code}"] += 1
    if response.status_code != 200:
        await asyncio.sleep(float(response.headers.get("retry-after", 0.1)))
        return None
    load.seconds[what].append(time.monotonic() - began)
    answer: dict[str, Any] = response.json()
    return answer


async def _all(folder: Path, store: str | Path, clients: int, seconds: float, kills: int) -> Load:
    """Let clients write while a server runs, killed and started again so often on the way."""
    names = [f"client {i}" for i in range(clients)]
    tokens = tokens_file(folder / "tokens.yaml", *(line(name) for name in names))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    load, url = Load(), f"http://127.0.0.1:{port}"
    tasks = [asyncio.create_task(client(name, url, load)) for name in names]
    for life in range(kills + 1):
        server = await asyncio.to_thread(lambda: Server(store=store, tokens=tokens, max_requests=clients, port=port))
        await asyncio.sleep(seconds / (kills + 1))
        await asyncio.to_thread(server.stop, signal.SIGKILL if life < kills else signal.SIGTERM)
    await asyncio.sleep(0.2)
    for task in tasks:
        task.cancel()
    failures = await asyncio.gather(*tasks, return_exceptions=True)
    load.wrong += [repr(failure) for failure in failures if not isinstance(failure, asyncio.CancelledError)]
    return load


def account(store: str | Path, load: Load) -> list[str]:
    """Return everything that is not as it should be."""
    wrong = list(load.wrong)
    with make_agent(store) as agent:
        report = agent.journal.verify()
        wrong += report.faults
        for name, kept in load.kept.items():
            there = Counter(entry.content for entry in agent.memory(name))
            wrong += [f"{text!r} was acknowledged and is gone" for text in kept if text not in there]
            wrong += [f"{text!r} is there and was not sent by {name}" for text in there if text not in load.sent[name]]
            wrong += [f"{text!r} is there {count} times" for text, count in there.items() if count > 1]
        extra = {space.user for space in agent.journal.namespaces()} - set(load.kept)
    return wrong + [f"nobody is {name}" for name in sorted(extra)]


def run(folder: Path, clients: int = 50, seconds: float = 120, kills: int = 1, store: str | None = None) -> dict[str, Any]:
    """Load a server over a store, by default a SQLite file in the folder; return what was measured and what was ``wrong``."""
    where = store or folder / "store.db"
    load = asyncio.run(_all(folder, where, clients, seconds, kills))
    measured: dict[str, Any] = {"clients": clients, "seconds": seconds, "kills": kills}
    for what, values in load.seconds.items():
        if times := sorted(values):
            measured[what] = {f"p{part}": round(times[part * (len(times) - 1) // 100], 3) for part in (50, 95, 99)}
    return {
        **measured,
        "acknowledged": sum(map(len, load.kept.values())),
        "least of a client": min(map(len, load.kept.values())),
        "answers": dict(sorted(load.answers.items())),
        "wrong": account(where, load)[:20],
    }


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(run(Path(given.pop("folder")), **given), indent=2))
