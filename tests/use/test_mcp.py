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
from servers import ENVIRONMENT, WORKER, bearer, client, line, make_agent, running, tokens_file


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
    assert {name for name, tool in tools.items() if tool.annotations.read_only_hint} == {
        "ask",
        "search",
        "memory",
        "history",
    }
    assert (await called(client, "add", text="Marta lives in Oslo", time="2024-03-05"))[
        "operations"
    ] == [1]
    assert (await called(client, "add", text="Ivan is a nurse"))["results"][0][
        "message"
    ] == "insert 2"
    assert (await called(client, "ask", question="Where does Marta live?"))[
        "answer"
    ] == "[2024-03-05] Marta lives in Oslo"
    assert [e["id"] for e in (await called(client, "search", query="nurse", k=1))["entries"]] == [
        "2"
    ]
    assert (await called(client, "memory", offset=1))["total"] == 2
    assert (await called(client, "undo", operation=2))["after"] is None
    assert [e["kind"] for e in (await called(client, "history", entry="2"))["operations"]] == [
        "apply",
        "undo",
    ]
    assert (await called(client, "forget", entry="1"))["operations"] == 1
    assert (await refused(client, "undo", operation=1))["status"] == 410
    assert (await refused(client, "search", query="a", k=1000))["status"] == 422
    unforeseen = await refused(client, "add", text="crash now")
    assert unforeseen["status"] == 500 and "secret" not in json.dumps(unforeseen)
    assert (await called(client, "memory"))["entries"] == []


@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_over_streamable_http(server, mode, path):
    async def run():
        async with over_http(
            server, "marta", mode, path, **{"Memalpha-Session": f"{mode} {len(path)}"}
        ) as client:
            await story(client)
            assert (await refused(client, "add", text="word " * 300))["status"] == 413

    asyncio.run(run())


def test_over_stdio(tmp_path):
    options = json.dumps({"store": str(tmp_path / "store.db"), "user": "marta", "stdio": True})
    command = StdioServerParameters(command=sys.executable, args=[WORKER, options], env=ENVIRONMENT)

    async def run():
        async with Client(command) as client:
            await story(client)
            await called(client, "add", text="kept for later")

    asyncio.run(run())
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


def test_one_rule_for_arguments_through_both_doors(server):
    async def run():
        async with over_http(server, "marta", **{"Memalpha-Session": "rule"}) as mcp:
            for fact in FACTS:
                await called(mcp, "add", text=fact, time=None, source=None)
            for tool, sent, meant in SAME:
                assert await called(mcp, tool, **sent) == await called(mcp, tool, **meant), (
                    tool,
                    sent,
                )
            for tool, sent, field in UNCLEAR:
                told = await refused(mcp, tool, **sent)
                assert told["status"] == 422 and told["what"].startswith(f"{field}: "), (tool, sent)
            assert (await called(mcp, "search", query="Oslo", k="2"))["entries"][1:] and (
                await called(mcp, "history")
            )["total"] == 3
            with client(server, "marta", **{"Memalpha-Session": "rule"}) as http:
                for tool, sent, meant in SAME:
                    texts = {name: str(value) for name, value in sent.items() if value is not None}
                    asked = (
                        http.post(f"/v1/{tool}/", json=sent)
                        if tool == "search"
                        else http.get(f"/v1/{tool}", params=texts)
                    )
                    assert asked.json() == await called(mcp, tool, **meant), (tool, sent)
                for tool, sent, field in UNCLEAR:
                    gets = tool in ("memory", "history")
                    asked = (
                        http.get(f"/v1/{tool}", params=sent)
                        if gets
                        else http.post(f"/v1/{tool}", json=sent)
                    )
                    assert asked.status_code == 422 and f".{field}: " in asked.json()["what"], (
                        tool,
                        sent,
                    )
            assert (await called(mcp, "undo", operation="3"))["after"] is None
            assert (await called(mcp, "forget", entry=1))["operations"] == 1
            assert [entry["id"] for entry in (await called(mcp, "memory"))["entries"]] == ["2"]

    asyncio.run(run())


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_one_token_does_not_reach_the_memory_of_another(server, mode):
    async def run():
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

    asyncio.run(run())


def test_without_a_token_there_is_no_mcp(server):
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    headers = {"Accept": "application/json, text/event-stream"}
    assert httpx2.post(f"{server.url}/mcp", json=listing, headers=headers).status_code == 401
    assert (
        httpx2.post(
            f"{server.url}/mcp", json=listing, headers={**headers, **bearer("marta")}
        ).status_code
        == 200
    )
