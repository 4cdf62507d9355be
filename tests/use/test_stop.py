"""Stopping: a request under way is answered, nothing new is taken, what was answered is on disk;
also after kill -9."""

import shlex
import signal
import socket
import threading
import time
from contextlib import suppress

import httpx
import pytest

from memalpha.agent.config import AgentConfig
from memalpha.cli import run
from memalpha.errors import InputError
from memalpha.models.registry import build_nano, toy_texts
from memalpha.store.journal import Journal, Namespace, Origin
from memalpha.types import Operation, OperationKind
from memalpha.use.access import Caller, Callers, Grant, ServeConfig
from memalpha.use.server import serve_http
from tests.helpers.servers import client, make_agent, running


def texts(path):
    with make_agent(path) as agent:
        assert agent.journal.verify().ok
        return [entry.content for entry in agent.memory("marta")]


def slow_add(server, into, text="a slow text"):
    with client(server) as http, suppress(httpx.TransportError):
        into.append(http.post("/v1/add", json={"text": text}).status_code)


def test_what_is_under_way_is_answered_and_nothing_new_is_taken(tmp_path):
    answers = []
    with running(store=tmp_path / "s.db", user="marta") as server:
        with client(server) as idle:
            idle.post("/v1/add", json={"text": "before"})
            thread = threading.Thread(target=slow_add, args=(server, answers))
            thread.start()
            time.sleep(0.4)  # the model is at work
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            assert server.process.poll() is None and answers == []  # it still works on that one
            with pytest.raises(httpx.TransportError):
                idle.get("/health")
            thread.join()
        assert server.process.wait(30) == 0
    assert answers == [200] and texts(tmp_path / "s.db") == ["before", "a slow text"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 0)])
def test_what_was_answered_is_there_and_what_was_not_is_whole_or_absent(tmp_path, number, code):
    answers, kept = [], [f"text {i}" for i in range(3)]
    with running(store=tmp_path / "s.db", user="marta", delay=0.1, stop_seconds=1) as server:
        with client(server) as http:
            assert [http.post("/v1/add", json={"text": text}).status_code for text in kept] == [
                200
            ] * 3
        thread = threading.Thread(target=slow_add, args=(server, answers, "a very slow text"))
        thread.start()
        time.sleep(0.4)
        assert server.stop(number) == code
        thread.join()
    assert 200 not in answers and texts(tmp_path / "s.db") in (kept, [*kept, "a very slow text"])


WRONG = [
    ("", "no user is given whose memory"),
    ("--user marta --host 0.0.0.0", "0.0.0.0"),
    ("--tokens missing.yaml", "'missing.yaml'"),
    ("--tokens t.yaml --user marta", "beside tokens"),
    ("--user marta --max-request 9", "'max_request'"),
]


@pytest.mark.parametrize(("options", "says"), WRONG)
def test_a_server_that_should_not_start_says_why(tmp_path, capsys, monkeypatch, options, says):
    monkeypatch.delenv("MEMALPHA_TOKENS", raising=False)
    assert (
        run(["serve", "no/such/agent", "--store", str(tmp_path / "s.db"), *shlex.split(options)])
        == 1
    )
    told = capsys.readouterr().err
    assert says in told and "expected: " in told and not (tmp_path / "s.db").exists()


def test_a_port_in_use_is_said(tmp_path):
    with (
        socket.create_server(("127.0.0.1", 0)) as used,
        pytest.raises(InputError, match="cannot listen at"),
    ):
        serve_http(
            make_agent(":memory:"),
            ServeConfig(port=used.getsockname()[1]),
            Callers(Grant("local", "marta")),
        )


def test_the_command_hands_over_what_it_was_given(tmp_path, monkeypatch):
    trained, given = build_nano(tmp_path / "agent", toy_texts(), layers=1, hidden=32), []
    AgentConfig(schema="facts", codec="compact", max_chunk_tokens=200, view_tokens=200).save(
        trained
    )
    monkeypatch.setattr(
        "memalpha.use.server.serve_http", lambda *arguments: given.extend(arguments)
    )
    (tmp_path / "key").write_bytes(b"a key\n")
    options = f"--store {tmp_path}/s.db --key-file {tmp_path}/key --user marta --port 7"
    options += " --max-requests=9 --allow_origin https://a.example --allow-host a.example b.example"
    options += " --reader-url http://127.0.0.1:1/v1 --reader-model m --retrieve-k 3"
    assert run(["serve", str(trained), *options.split()]) == 0
    agent, config, callers, _, of_routes = given
    assert [(type(each).__name__, each.upstream) for each in of_routes] == [("ProxyOptions", "")]
    assert config == ServeConfig(
        port=7,
        max_requests=9,
        allow_host=("a.example", "b.example"),
        allow_origin=("https://a.example",),
    )
    assert callers.identify({}) == Caller("local", Namespace("marta"))
    assert (agent.name, agent.retrieve_k, agent.reader.budget_tokens) == ("agent", 3, 2048)
    durable = agent.journal.memory(Namespace("marta"), agent.step.schema)
    durable.apply(Operation(OperationKind.INSERT, "facts", "Marta lives in Oslo"), Origin("me"))
    agent.close()
    with Journal.open(tmp_path / "s.db", key=b"a key") as journal:
        assert journal.verify().ok and journal.namespaces() == (Namespace("marta"),)
