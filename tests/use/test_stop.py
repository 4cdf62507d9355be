"""Stopping: a request under way is answered, nothing new is taken, what was answered is on disk; also after kill -9."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from server_worker import make_agent
from servers import ENVIRONMENT, WORKER, client, running

from memalpha.agent.config import AgentConfig
from memalpha.cli import run
from memalpha.errors import InputError, JournalDamagedError
from memalpha.models.nano import build_nano, toy_texts
from memalpha.store.journal import Journal, Namespace, Origin
from memalpha.types import Operation, OperationKind
from memalpha.use.callers import Caller, Callers, Grant, Tokens
from memalpha.use.problems import Refused
from memalpha.use.serve_config import ServeConfig
from memalpha.use.server import serve_http


def texts(path):
    with make_agent(path) as agent:
        assert agent.journal.verify().ok
        return [entry.content for entry in agent.memory("marta")]


def slow_add(server, into):
    with client(server) as http:
        try:
            into.append(http.post("/v1/add", json={"text": "a slow text"}).status_code)
        except httpx.TransportError:
            into.append(None)


def wait_until_reading(server):
    """Until the model is at work: the text's namespace is locked for writers, and the request is under way."""
    time.sleep(0.4)


def test_what_is_under_way_is_answered_and_nothing_new_is_taken(tmp_path):
    answers: list[int | None] = []
    with running(store=tmp_path / "s.db", user="marta") as server:
        with client(server) as idle:
            idle.post("/v1/add", json={"text": "before"})
            thread = threading.Thread(target=slow_add, args=(server, answers))
            thread.start()
            wait_until_reading(server)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            assert server.process.poll() is None and answers == []  # it still works on that one
            with pytest.raises(httpx.TransportError):
                idle.get("/health")
            thread.join()
        assert server.process.wait(30) == 0
    assert answers == [200] and texts(tmp_path / "s.db") == ["before", "a slow text"]


def test_a_request_that_outlasts_the_patience_is_not_acknowledged_and_whole_or_absent(tmp_path):
    answers: list[int | None] = []
    with running(store=tmp_path / "s.db", user="marta", delay=2.5, stop_seconds=1) as server:
        thread = threading.Thread(target=slow_add, args=(server, answers))
        thread.start()
        wait_until_reading(server)
        assert server.stop(signal.SIGINT) == 0
        thread.join()
    assert answers[0] != 200 and texts(tmp_path / "s.db") in ([], ["a slow text"])


def test_after_kill_9_every_acknowledged_write_is_there(tmp_path):
    answers: list[int | None] = []
    with running(store=tmp_path / "s.db", user="marta") as server:
        with client(server) as http:
            for i in range(5):
                assert http.post("/v1/add", json={"text": f"text {i}"}).status_code == 200
        thread = threading.Thread(target=slow_add, args=(server, answers))
        thread.start()
        wait_until_reading(server)
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
        thread.join()
    assert answers == [None] and texts(tmp_path / "s.db") == [f"text {i}" for i in range(5)]


def test_a_store_in_use_can_be_served_by_two_processes(tmp_path):
    options = {"store": tmp_path / "s.db", "user": "marta"}
    with running(**options) as one, running(**options) as two, client(one) as first, client(two) as second:
        first.post("/v1/add", json={"text": "from one"})
        second.post("/v1/add", json={"text": "from two"})
        assert [e["content"] for e in first.get("/v1/memory").json()["entries"]] == ["from one", "from two"]


def test_stdio_ends_when_its_client_does(tmp_path):
    import anyio

    options = json.dumps({"store": str(tmp_path / "s.db"), "user": "marta", "stdio": True})
    command = StdioServerParameters(command=sys.executable, args=[str(WORKER), options], env=ENVIRONMENT)

    async def come_and_go():
        async with stdio_client(command):
            await anyio.sleep(0)

    began = time.monotonic()
    anyio.run(come_and_go)
    assert time.monotonic() - began < 30 and texts(tmp_path / "s.db") == []


# ------------------------------------------------------------------------------------------------ the command line
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "nobody whose memory it is"),
        (["--user", "marta", "--host", "0.0.0.0"], "anybody on the network could use"),
        (["--user", "marta", "--port", "99999"], "port is 99999"),
        (["--user", " marta"], "user of a namespace is ' marta'"),
        (["--tokens", "no such file"], "tokens file 'no such file' cannot be read"),
        (["--user", "marta", "--max-requests", "0"], "max_requests is 0"),
    ],
)
def test_a_server_that_should_not_start_says_why(tmp_path, capsys, monkeypatch, options, says):
    monkeypatch.delenv("MEMALPHA_TOKENS", raising=False)
    assert run(["serve", "no/such/agent", "--store", str(tmp_path / "s.db"), *options]) == 1
    told = capsys.readouterr().err
    assert says in told and "expected: " in told and not (tmp_path / "s.db").exists()


def test_without_the_extra_the_install_line_is_shown(tmp_path, capsys, monkeypatch):
    for name in ("memalpha.use.server", "memalpha.use.http_api"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert run(["serve", "no/agent", "--store", str(tmp_path / "s.db"), "--user", "marta"]) == 1
    assert "pip install 'memalpha[serve]'" in capsys.readouterr().err


def test_tokens_and_a_user_are_not_mixed(tmp_path, capsys):
    assert run(["serve", "no/agent", "--store", str(tmp_path / "s.db"), "--tokens", "t.yaml", "--user", "marta"]) == 1
    assert "beside tokens" in capsys.readouterr().err


def test_a_made_token_opens_the_server_it_was_made_for(tmp_path, capsys):
    assert run(["token", "laptop", "--user", "marta", "--session", "s"]) == 0
    told, _, entry = capsys.readouterr().out.splitlines()
    (tmp_path / "tokens.yaml").write_text(f"tokens:\n{entry}\n")
    callers, key = Callers(Tokens.load(tmp_path / "tokens.yaml")), {"authorization": f"Bearer {told.split()[-1]}"}
    assert callers.identify(key) == Caller("laptop", Namespace("marta", "default", "s"))
    with pytest.raises(Refused, match="may not reach the session 't'"):
        callers.identify({**key, "memalpha-session": "t"})


def test_a_port_in_use_is_said(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as used, pytest.raises(InputError, match="cannot be listened at"):
        serve_http(make_agent(":memory:"), ServeConfig(port=used.getsockname()[1]), Callers(Grant("local", "marta")))


@pytest.fixture
def trained(tmp_path):
    """A folder such as memalpha train writes, with random weights."""
    agent = build_nano(tmp_path / "agent", toy_texts(), layers=1, hidden=32)
    AgentConfig(schema="facts", codec="compact", max_chunk_tokens=200, view_tokens=200, max_completion_length=4).save(agent)
    return agent


def test_the_command_hands_over_what_it_was_given(trained, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr("memalpha.use.server.serve_http", lambda *arguments: given.extend(arguments))
    options = [
        "--user",
        "marta",
        "--port",
        "7",
        "--max-requests",
        "9",
        "--allow-host",
        "a.example",
        "--allow-origin",
        "https://a.example",
    ]
    reader = ["--reader-url", "http://127.0.0.1:1/v1", "--reader-model", "m", "--retrieve-k", "3"]
    (tmp_path / "key").write_bytes(b"a key\n")
    keyed = ["--store", str(tmp_path / "s.db"), "--key-file", str(tmp_path / "key")]
    assert run(["serve", str(trained), *keyed, *options, *reader]) == 0
    agent, config, callers, _ = given
    assert config == ServeConfig(port=7, max_requests=9, hosts=("a.example",), origins=("https://a.example",))
    assert callers.identify({}) == Caller("local", Namespace("marta"))
    assert (agent.name, agent.retrieve_k, agent.reader.budget_tokens) == ("agent", 3, 2048)
    agent._store.apply(Namespace("marta"), Operation(OperationKind.INSERT, "facts", "Marta lives in Oslo"), Origin("me"))
    agent.close()
    with pytest.raises(JournalDamagedError, match="another key"), Journal.open(tmp_path / "s.db") as journal:
        journal.namespaces()
    with Journal.open(tmp_path / "s.db", key=b"a key") as journal:
        assert journal.namespaces() == (Namespace("marta"),)


@pytest.mark.slow
def test_the_command_serves_a_trained_agent(trained, tmp_path):
    """From a folder on disk to an answer over HTTP: the whole way."""
    command = [sys.executable, "-m", "memalpha", "serve", str(trained), "--store", str(tmp_path / "s.db"), "--user", "marta"]
    process = subprocess.Popen([*command, "--port", "0"], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    try:
        url = next(line for line in process.stderr if "serving at" in line).split("serving at ")[1].split()[0]
        added = httpx.post(f"{url}/v1/add", json={"text": "Marta lives in Oslo"}, timeout=60, trust_env=False)
        assert added.status_code == 200 and added.json()["pieces"] == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


def test_connections_that_say_nothing_shut_nobody_out_and_are_closed(tmp_path):
    with running(store=tmp_path / "s.db", user="marta", max_requests=1) as server, client(server) as http:
        idle = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(12)]
        assert http.get("/health").status_code == http.get("/v1/memory").status_code == 200
        assert [connection.recv(1) for connection in idle] == [b""] * 12
        for connection in idle:
            connection.close()
        assert http.post("/v1/add", json={"text": "tea"}).status_code == 200
