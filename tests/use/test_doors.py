"""Doors of a server process: pages of other origins, bodies that do not come, an end in time."""

import signal
import socket
import threading
import time

from tests.helpers.servers import client, running

PAGE = "https://chat.example"
HEAD = "POST /v1/add HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n{}\r\n\r\n"


def test_an_allowed_origin_is_answered_everywhere_and_a_foreign_one_nowhere(tmp_path):
    with (
        running(store=tmp_path / "s.db", user="marta", allow_origin=[PAGE]) as server,
        client(server) as http,
    ):
        asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-odd"}
        for path in ("/v1/ask", "/mcp", "/v1/memories/", "/search", "/v1/nothing", "/health"):
            asked = http.options(path, headers={"Origin": PAGE, **asks})
            assert asked.status_code == 204 and not asked.content
            assert asked.headers["Access-Control-Allow-Headers"] == "x-odd"
            assert "POST" in asked.headers["Access-Control-Allow-Methods"]
            assert int(asked.headers["Access-Control-Max-Age"]) > 0
            sent = http.post(path, headers={"Origin": PAGE}, content=b"x" * 20)
            for answer in (asked, sent):
                assert answer.headers["Access-Control-Allow-Origin"] == PAGE
                assert answer.headers["Vary"] == "Origin"
                assert "Mcp-Session-Id" in answer.headers["Access-Control-Expose-Headers"]
            for method in ("OPTIONS", "POST"):
                foreign = http.request(method, path, headers={**asks, "Origin": "https://x.org"})
                assert foreign.status_code == 403
                assert not [name for name in foreign.headers if name.startswith("access-control")]


def test_bodies_that_do_not_come_take_no_place_and_long_ones_are_refused_at_once(tmp_path):
    with running(
        store=tmp_path / "s.db", user="marta", max_requests=2, max_body_bytes=1000
    ) as server:
        host = server.url.removeprefix("http://")
        address = ("127.0.0.1", server.port)
        waiting = [socket.create_connection(address) for _ in range(8)]
        for one in waiting:
            one.sendall(HEAD.format(host, "Content-Length: 900").encode() + b'{"text":')
        with client(server) as http:
            for _ in range(3):
                assert http.post("/v1/add", json={"text": "tea"}).status_code == 200
        for one in waiting:
            one.close()
        for length, body in (
            ("Content-Length: 1001", b""),
            ("Transfer-Encoding: chunked", b"3e9\r\n" + b"x" * 1001 + b"\r\n"),
        ):
            with socket.create_connection(address, timeout=5) as one:
                one.sendall(HEAD.format(host, length).encode() + body)
                assert one.recv(20).startswith(b"HTTP/1.1 413")


def test_a_stop_ends_in_its_time_and_says_so_to_who_waits(tmp_path):
    answers = []
    with running(store=tmp_path / "s.db", user="marta", delay=30, stop_seconds=1) as server:

        def add():
            with client(server) as http:
                answers.append(http.post("/v1/add", json={"text": "tea"}, timeout=60))

        thread = threading.Thread(target=add)
        thread.start()
        time.sleep(1)
        began = time.monotonic()
        assert server.stop(signal.SIGTERM) == 0
        thread.join()
        assert time.monotonic() - began < 10
    assert answers[0].status_code == 503
    assert answers[0].headers["Content-Type"] == "application/problem+json"
    assert answers[0].json()["what"] == "the server is stopping"


def test_an_unknown_tool_is_a_protocol_error(tmp_path):
    accept = {"Accept": "application/json, text/event-stream"}
    with running(store=tmp_path / "s.db", user="marta") as server, client(server) as http:
        for name in ("nothing", "", "Add", "x" * 5000):
            call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": name}}
            answer = http.post("/mcp", json=call, headers=accept).json()
            assert answer["id"] == 7 and "result" not in answer
            assert answer["error"]["code"] == -32602
            assert answer["error"]["message"].startswith("Unknown tool: ")
            assert len(answer["error"]["message"]) < 500
