"""Limits, and that memories stay apart, in process: the whole application without its socket."""

import asyncio
import hashlib
import threading
from contextlib import asynccontextmanager, nullcontext

import httpx
import pytest
from starlette.responses import Response

from memalpha.errors import InputError
from memalpha.memory.schema import MemorySchema
from memalpha.store.journal import Journal, Namespace, Origin
from memalpha.types import Completion, Operation, OperationKind, StopReason
from memalpha.use.access import Callers, Grant, ServeConfig
from memalpha.use.api import build_api
from memalpha.use.operations import Endpoints
from memalpha.use.server import Gate, check_reach
from tests.helpers.servers import make_agent

USERS = ["a", "A", "a/b", "b"]
REACH = [(f"to {user}", user) for user in USERS] + [
    ("a's chat", "a", "chat"),
    ("any", None, "chat"),
]
GRANTS = [
    Grant(*reach, any_user=reach[1] is None, sha256=hashlib.sha256(reach[0].encode()).hexdigest())
    for reach in REACH
]


class Held:
    def __init__(self):
        self.inside, self.go = threading.Semaphore(0), threading.Event()

    def generate(self, prompts, sampling):
        self.inside.release()
        assert self.go.wait(30)
        return [Completion((), ".", StopReason.END) for _ in prompts]


@asynccontextmanager
async def served(model=None, agent=None, **limits):
    agent = agent or make_agent(":memory:")
    if model is not None:
        agent.generator.generator = model
    config = ServeConfig(**limits)
    app = Gate(build_api(Endpoints(agent, config.max_text_tokens)), config, Callers(GRANTS))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", timeout=30
    ) as http:
        http.gate = app
        yield http


def by(name, **more):
    return {"headers": {"Authorization": f"Bearer {name}", **more}}


@pytest.mark.anyio
async def test_a_full_server_says_when_to_come_back():
    model = Held()
    async with served(model, max_requests=3) as http:
        tasks = [
            asyncio.create_task(http.post("/v1/add", json={"text": "x"}, **by(name)))
            for name in ("to a", "to a", "to b")
        ]
        await asyncio.to_thread(model.inside.acquire)
        while http.gate.active < len(tasks):
            await asyncio.sleep(0.001)
        refused = await http.get("/v1/memory", **by("to A"))
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        assert (
            (await http.get("/health")).status_code == (await http.get("/ready")).status_code == 200
        )
        model.go.set()
        assert [(await task).status_code for task in tasks] == [200, 200, 200]
        assert (await http.post("/v1/add", content=b"{", **by("to a"))).status_code == 422
        assert http.gate.active == 0


@pytest.mark.anyio
async def test_a_body_that_does_not_arrive_is_given_up():
    async def drip():
        yield b'{"text": '
        await asyncio.sleep(30)

    async with served(body_seconds=1) as http:
        refused = await http.post("/v1/add", content=drip(), **by("to a"))
        assert refused.status_code == 408 and http.gate.active == 0


@pytest.mark.anyio
@pytest.mark.parametrize(("number", "left"), [(4, 4), (8, 8), (11, 8)])
async def test_several_long_bodies_may_arrive_at_once(number, left):
    async def answer(scope, receive, send):
        await Response("taken")(scope, receive, send)

    class Uploads:
        options, names_user, max_body_bytes = None, False, 1000

        def owns(self, path):
            return path == "/upload"

        def respond(self, problem):
            return Response("not taken", status_code=problem.status)

    config = ServeConfig(max_body_bytes=10)
    began = 0

    async def body():
        nonlocal began
        began += 1
        yield b"x" * 990
        while began < number:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        yield b"x" * 10

    app = Gate(answer, config, Callers(GRANTS), [Uploads()])
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://127.0.0.1"
    ) as http:
        sent = [http.post("/upload", content=body(), **by("to a")) for _ in range(number)]
        statuses = [answer.status_code for answer in await asyncio.gather(*sent)]
    assert statuses == [408] * (number - left) + [200] * left


def test_a_server_that_others_can_reach_needs_tokens():
    for host in ("0.0.0.0", "::", "server.example", "127.8.0.1", "::1", "localhost"):
        with (
            pytest.raises(InputError, match=host)
            if host in ("0.0.0.0", "::", "server.example")
            else nullcontext()
        ):
            check_reach(ServeConfig(host=host), Callers(Grant("local", "a")))
        check_reach(ServeConfig(host=host), Callers(GRANTS))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("allow_host", name) for name in ("a:80", "[::1]:80", "http://a", "*", "a/b", "", "a b")),
        *(("allow_origin", page) for page in ("https://a/", "a.example", "*", "https://A", "")),
        *(("allow_origin", page) for page in ("https://*.example", "https://a/b", "https://")),
    ],
)
def test_a_name_or_an_origin_that_no_request_has_is_refused(option, value):
    with pytest.raises(InputError, match=option):
        ServeConfig(**{option: (value,)})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("allow_host", name) for name in ("a.example", "A_b", "::1", "[::1]", "10.0.0.1")),
        *(("allow_origin", page) for page in ("http://localhost:3000", "http://[::1]:80", "null")),
        *(("allow_origin", page) for page in ("app://obsidian.md", "https://chat.example")),
    ],
)
def test_a_name_or_an_origin_of_a_request_is_accepted(option, value):
    assert getattr(ServeConfig(**{option: (value,)}), option) == (value,)


PAGE = "https://chat.example"


@pytest.mark.parametrize(
    ("limits", "sent", "status"),
    [
        ({}, {"Host": "memory.example"}, 200),  # off loopback any name, unless some are given
        ({"allow_host": ("Chat.Example",)}, {"Host": "CHAT.example:8080"}, 200),
        ({"allow_host": ("x.example",), "host": "MyBox"}, {"Host": "mybox"}, 200),
        ({"allow_host": ("memory.example",)}, {"Host": "other.example"}, 421),
        ({"allow_host": ("memory.example",)}, {"Host": "x@memory.example"}, 421),
        ({"allow_origin": (PAGE,)}, {"Origin": PAGE}, 200),
        ({"allow_origin": (PAGE,)}, {"Origin": "http://localhost"}, 403),
        ({"allow_origin": (PAGE,)}, {"Origin": "http://chat.example"}, 403),
    ],
)
@pytest.mark.anyio
async def test_names_and_origins_off_loopback(limits, sent, status):
    async with served(**{"host": "0.0.0.0", **limits}) as http:
        assert (await http.get("/v1/memory", **by("to a", **sent))).status_code == status


@pytest.mark.anyio
async def test_a_namespace_begun_with_another_schema_is_a_failure_of_the_store(tmp_path):
    with Journal.open(tmp_path / "store.db") as journal:
        other = journal.memory(Namespace("a"), MemorySchema.load("mem_alpha"))
        other.apply(Operation(OperationKind.INSERT, "semantic", "tea"), Origin("me"))

    async with served(agent=make_agent(tmp_path / "store.db")) as http:
        said = await http.post("/v1/forget", json={"entry": "1"}, **by("to a"))
        assert said.status_code == 500 and said.json()["what"].startswith(
            "the store could not do this"
        )
        assert (await http.delete("/v1/memory", **by("to a"))).json()["operations"] == 1
