"""The MCP server, asked by the official client: over stdio and over streamable HTTP, in the protocol of today and of before."""

import asyncio
import json
import sys
from functools import partial

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from servers import ENVIRONMENT, WORKER, bearer, line, make_agent, running, tokens_file


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mcp")
    tokens = tokens_file(folder / "tokens.yaml", line("marta"), line("ivan"))
    with running(store=folder / "store.db", tokens=tokens, max_text_tokens=200) as server:
        yield server


def over_http(server, name, mode="auto", **more):
    http = httpx2.AsyncClient(headers=bearer(name, **more), trust_env=False)
    return Client(streamable_http_client(f"{server.url}/mcp", http_client=http), mode=mode)


async def called(client, tool, refused=False, **arguments):
    result = await client.call_tool(tool, arguments)
    assert result.is_error is refused, result
    return json.loads(result.content[0].text) if refused else result.structured_content


refused = partial(called, refused=True)


async def story(client):
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == {"add", "ask", "search", "memory", "history", "undo", "forget"}
    assert all(tool.description and tool.output_schema for tool in tools.values())
    assert {name for name, tool in tools.items() if tool.annotations.read_only_hint} == {"ask", "search", "memory", "history"}
    assert (await called(client, "add", text="Marta lives in Oslo", time="2024-03-05"))["operations"] == [1]
    assert (await called(client, "add", text="Ivan is a nurse"))["results"][0]["message"] == "insert 2"
    assert (await called(client, "ask", question="Where does Marta live?"))["answer"] == "[2024-03-05] Marta lives in Oslo"
    assert [e["id"] for e in (await called(client, "search", query="nurse", k=1))["entries"]] == ["2"]
    assert (await called(client, "memory", offset=1))["total"] == 2
    assert (await called(client, "undo", operation=2))["after"] is None
    assert [e["kind"] for e in (await called(client, "history", entry="2"))["operations"]] == ["apply", "undo"]
    assert (await called(client, "forget", entry="1"))["operations"] == 1
    assert (await refused(client, "undo", operation=1))["status"] == 410
    assert (await refused(client, "search", query="a", k=1000))["status"] == 422
    unforeseen = await refused(client, "add", text="crash now")
    assert unforeseen["status"] == 500 and "secret" not in json.dumps(unforeseen)
    assert (await called(client, "memory"))["entries"] == []


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_over_streamable_http(server, mode):
    async def run():
        async with over_http(server, "marta", mode, **{"Memalpha-Session": mode}) as client:
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


def test_arguments_are_those_of_the_http_api_and_no_others(server):
    async def run():
        async with over_http(server, "marta", **{"Memalpha-Session": "arguments"}) as client:
            taken = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
            assert all(schema["additionalProperties"] is False for schema in taken.values())
            assert taken["add"]["required"] == ["text"] and taken["memory"]["properties"]["limit"]["maximum"] == 1000
            said = await refused(client, "add", text="x", timestamp="2024-03-05", namespace="ivan")
            assert said["status"] == 422 and "timestamp: Extra inputs" in said["what"]
            said = await refused(client, "undo", operation=True)
            assert said["status"] == 422 and "operation: Input should be a valid integer" in said["what"]
            assert (await called(client, "history"))["total"] == 0

    asyncio.run(run())


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_one_token_does_not_reach_the_memory_of_another(server, mode):
    async def run():
        async with over_http(server, "marta", mode) as marta, over_http(server, "ivan", mode) as ivan:
            await called(marta, "add", text=f"marta has a secret {mode}")
            assert (await called(ivan, "search", query="secret"))["entries"] == []
            assert (await called(ivan, "memory"))["total"] == 0
            both = await asyncio.gather(*(called(c, "memory") for c in (marta, ivan) * 8))  # at the same time
            assert [len(each["entries"]) > 0 for each in both] == [True, False] * 8

    asyncio.run(run())


def test_without_a_token_there_is_no_mcp(server):
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    headers = {"Accept": "application/json, text/event-stream"}
    assert httpx2.post(f"{server.url}/mcp", json=listing, headers=headers).status_code == 401
    assert httpx2.post(f"{server.url}/mcp", json=listing, headers={**headers, **bearer("marta")}).status_code == 200
