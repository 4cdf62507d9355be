"""The MCP server, asked by the official client: over stdio and over streamable HTTP, in the
protocol of today and of before."""

import asyncio
import json
import sys
from functools import partial

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.helpers.servers import (
    ENVIRONMENT,
    WORKER,
    bearer,
    client,
    line,
    make_agent,
    running,
    tokens_file,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mcp")
    tokens = tokens_file(folder / "tokens.yaml", line("marta"), line("ivan"))
    with running(store=folder / "store.db", tokens=tokens, max_text_tokens=200) as server:
        yield server


def over_http(server, name, mode="auto", path="/mcp", **more):
    http = httpx2.AsyncClient(headers=bearer(name, **more), timeout=30, trust_env=False)
    return Client(streamable_http_client(f"{server.url}{path}", http_client=http), mode=mode)


async def called(client, tool, refused=False, **arguments):
    result = await client.call_tool(tool, arguments)
    assert result.is_error is refused, result
    return json.loads(result.content[0].text) if refused else result.structured_content


refused = partial(called, refused=True)


async def story(client):
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == {"add", "ask", "search", "memory", "history", "undo", "forget"}
    assert all(tool.description and tool.output_schema for tool in tools.values())
    assert not any(tool.input_schema["additionalProperties"] for tool in tools.values())
    reads = {name for name, tool in tools.items() if tool.annotations.read_only_hint}
    assert reads == {"ask", "search", "memory", "history"}
    await called(client, "add", text="Marta lives in Oslo", time="2024-03-05")
    added = await called(client, "add", text="Ivan is a nurse")
    assert added["operations"] == [2] and added["results"][0]["message"] == "insert 2"
    reply = await called(client, "ask", question="Where does Marta live?")
    assert reply["answer"] == "[2024-03-05] Marta lives in Oslo"
    assert (await called(client, "undo", operation=2))["after"] is None
    events = (await called(client, "history", entry="2"))["operations"]
    assert [event["kind"] for event in events] == ["apply", "undo"]
    assert (await called(client, "forget", entry="1"))["operations"] == 1
    assert (await refused(client, "undo", operation=1))["status"] == 410
    unforeseen = await refused(client, "add", text="crash now")
    assert unforeseen["status"] == 500 and "secret" not in json.dumps(unforeseen)
    assert (await called(client, "memory"))["entries"] == []


@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.anyio
async def test_over_streamable_http(server, mode, path):
    async with over_http(
        server, "marta", mode, path, **{"Memalpha-Session": f"{mode} {len(path)}"}
    ) as client:
        await story(client)
        assert (await refused(client, "add", text="word " * 300))["status"] == 413


@pytest.mark.anyio
async def test_over_stdio(tmp_path):
    options = json.dumps({"store": str(tmp_path / "store.db"), "user": "marta", "stdio": True})
    command = StdioServerParameters(command=sys.executable, args=[WORKER, options], env=ENVIRONMENT)
    async with Client(command) as client:
        await story(client)
        await called(client, "add", text="kept for later")
    with make_agent(tmp_path / "store.db") as agent:
        assert [entry.content for entry in agent.memory("marta")] == ["kept for later"]


FACTS = ["Marta lives in Oslo", "Ivan lives in Oslo", "Zoe lives in Oslo"]
# what is sent, and what it means: null is left out, a number may be a text, an id a number
SAME = [
    ("search", {"query": "Oslo", "k": "2"}, {"query": "Oslo", "k": 2}),
    ("search", {"query": "Oslo", "k": 2.0}, {"query": "Oslo", "k": 2}),
    ("search", {"query": "Oslo", "k": None}, {"query": "Oslo"}),
    ("memory", {"offset": "1", "limit": "1"}, {"offset": 1, "limit": 1}),
    ("memory", {"offset": None, "limit": None}, {}),
    ("history", {"entry": 2, "limit": "1"}, {"entry": "2", "limit": 1}),
    ("history", {"entry": None, "limit": None}, {}),
]
UNCLEAR = [  # and which field is named
    ("search", {"query": "Oslo", "k": True}, "k"),
    ("search", {"query": "Oslo", "k": "many"}, "k"),
    ("search", {"query": None}, "query"),
    ("search", {"query": True}, "query"),
    ("memory", {"limit": False}, "limit"),
    ("memory", {"offset": "1.5"}, "offset"),
    ("history", {"entry": ""}, "entry"),
    ("history", {"entry": " "}, "entry"),
    ("undo", {"operation": None}, "operation"),
    ("undo", {"operation": True}, "operation"),
    ("forget", {"entry": " "}, "entry"),
    ("add", {"text": None}, "text"),
    ("add", {"text": "x", "nothing": None}, "nothing"),
]


@pytest.mark.anyio
async def test_one_rule_for_arguments_through_both_doors(server):
    rule = {"Memalpha-Session": "rule"}
    async with over_http(server, "marta", **rule) as mcp:
        with client(server, "marta", **rule) as http:
            for fact in FACTS:
                await called(mcp, "add", text=fact, time=None, source=None)
            for tool, sent, meant in SAME:
                answer = await called(mcp, tool, **meant)
                assert await called(mcp, tool, **sent) == answer, (tool, sent)
                assert asked(http, tool, sent).json() == answer, (tool, sent)
            for tool, sent, field in UNCLEAR:
                told = await refused(mcp, tool, **sent)
                assert told["status"] == 422 and told["what"].startswith(f"{field}: "), (tool, sent)
                said = asked(http, tool, sent).json()
                assert said["status"] == 422 and f".{field}: " in said["what"], (tool, sent)
        assert (await called(mcp, "undo", operation="3"))["after"] is None
        assert (await called(mcp, "forget", entry=1))["operations"] == 1
        assert [entry["id"] for entry in (await called(mcp, "memory"))["entries"]] == ["2"]


def asked(http, tool, sent):
    if tool not in ("memory", "history"):
        return http.post(f"/v1/{tool}", json=sent)
    return http.get(f"/v1/{tool}", params={name: x for name, x in sent.items() if x is not None})


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.anyio
async def test_one_token_does_not_reach_the_memory_of_another(server, mode):
    async with (
        over_http(server, "marta", mode) as marta,
        over_http(server, "ivan", mode) as ivan,
    ):
        await called(marta, "add", text=f"marta has a secret {mode}")
        assert (await called(ivan, "search", query="secret"))["entries"] == []
        assert (await called(ivan, "memory"))["total"] == 0
        both = await asyncio.gather(
            *(called(c, "memory") for c in (marta, ivan) * 8)
        )  # at the same time
        assert [len(each["entries"]) > 0 for each in both] == [True, False] * 8
