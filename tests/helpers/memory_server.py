"""A memory server in Mem0's shape: the routes of its open-source server and of its platform, over a
list."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request

KEY = "S3CRET"


class ServedMemories:
    """What a server holds; ``faults`` are the statuses of its next replies (200: as it should be)."""

    def __init__(self) -> None:
        self.memories: list[dict[str, Any]] = []
        self.faults: list[int] = []
        self.tells = True  # gives back the metadata
        self.say = "{role} says {content}"  # what is made of a message
        self.polls = 0  # of events
        self.url = ""

    def enter(self, request: Request) -> None:
        status = self.faults.pop(0) if self.faults else 200
        if status != 200:
            raise HTTPException(status, "scripted")
        if KEY not in (request.headers.get("X-API-Key"), *self._token(request)):
            raise HTTPException(401, "no key")

    def _token(self, request: Request) -> list[str]:
        return request.headers.get("Authorization", "").split("Token ")[1:]

    def add(self, body: dict[str, Any]) -> dict[str, Any]:
        for message in body["messages"]:
            kept = {"memory": self.say.format(**message)}
            metadata = body["metadata"] if self.tells else None
            self.memories.append({**kept, "user_id": body["user_id"], "metadata": metadata})
        return {"results": [], "event_id": "e1", "status": "PENDING"}

    def of(self, user: str) -> list[dict[str, Any]]:
        return [memory for memory in self.memories if memory["user_id"] == user]

    def search(self, body: dict[str, Any]) -> dict[str, Any]:
        words = set(body["query"].lower().strip("?").split())
        ranked = [
            (-len(words & set(memory["memory"].lower().strip(".").split())), place, memory)
            for place, memory in enumerate(self.of(body["filters"]["user_id"]))
        ]
        return {"results": [memory for _, _, memory in sorted(ranked)[: body["top_k"]]]}

    def delete(self, user: str) -> None:
        self.memories = [memory for memory in self.memories if memory["user_id"] != user]


@contextmanager
def memory_server() -> Iterator[ServedMemories]:
    """Serve on a free port, in a thread."""
    served = ServedMemories()
    app = FastAPI()

    @app.post("/memories")
    @app.post("/v3/memories/add/")
    def add(request: Request, body: dict[str, Any]) -> Any:
        served.enter(request)
        return served.add(body)

    @app.post("/search")
    @app.post("/v3/memories/search/")
    def search(request: Request, body: dict[str, Any]) -> Any:
        served.enter(request)
        return served.search(body)

    @app.get("/memories")
    def memories(request: Request, user_id: str, top_k: int) -> Any:
        served.enter(request)
        return {"results": served.of(user_id)[:top_k]}

    @app.post("/v3/memories/")
    def listed(request: Request, body: dict[str, Any], page: int, page_size: int) -> Any:
        served.enter(request)
        return {"results": served.of(body["filters"]["user_id"])[:page_size]}

    @app.get("/v1/event/{name}/")
    def event(request: Request, name: str) -> Any:
        served.enter(request)
        served.polls += 1
        return {"status": "SUCCEEDED" if served.polls % 2 == 0 else "PENDING"}

    @app.delete("/memories")
    @app.delete("/v1/memories/")
    def delete(request: Request, user_id: str) -> Any:
        served.enter(request)
        served.delete(user_id)
        return {"message": "deleted"}

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    served.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    yield served
    server.should_exit = True
    thread.join()
