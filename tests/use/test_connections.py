"""Hostile connections over real sockets: they are closed in time, and shut nobody out."""

import select
import socket
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from servers import client, running

SHORT = {"_IDLE_SECONDS": 2, "_UNREAD_SECONDS": 2}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(
        store=tmp_path_factory.mktemp("s") / "s.db", user="marta", max_requests=1, constants=SHORT
    ) as server:
        yield server


@contextmanager
def connected(server, number, first=b""):
    sockets = [
        socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(number)
    ]
    for each in sockets:
        each.sendall(first)
    try:
        yield sockets
    finally:
        for each in sockets:
            each.close()


def seconds_until_closed(sock, trickle=b""):
    began = time.monotonic()
    while time.monotonic() - began < 12:
        try:
            if trickle:
                sock.sendall(trickle)
            if select.select([sock], [], [], 0.3)[0] and not sock.recv(65536):
                break
        except OSError:
            break
    return time.monotonic() - began


def test_no_answer_waits_for_the_acknowledgement_of_its_header(server):
    """A header and a body are two writes: with Nagle's algorithm the second waits for the first's
    acknowledgement, some 40 ms."""
    times = []
    with client(server) as http:
        for path in ["/health"] * 9 + ["/v1/memory"] * 9:
            began = time.monotonic()
            assert http.get(path).status_code == 200
            times.append(time.monotonic() - began)
    assert min(times[1:9]) < 0.02 and min(times[9:]) < 0.03


def test_connections_that_say_nothing_shut_nobody_out_and_are_closed(server):
    with client(server) as http:
        with connected(server, 12) as idle:
            assert http.get("/health").status_code == http.get("/v1/memory").status_code == 200
            assert [connection.recv(1) for connection in idle] == [b""] * 12
        assert http.post("/v1/add", json={"text": "tea"}).status_code == 200


def test_many_unfinished_headers_shut_nobody_out(server):
    with connected(server, 540, b"G"), client(server) as http:
        assert http.get("/v1/memory").status_code == 200


@pytest.mark.parametrize(
    "first", [b"G", b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"]
)
def test_a_header_or_an_unread_body_that_trickles_in_is_cut_off(server, first):
    with connected(server, 1, first) as (slow,):
        assert seconds_until_closed(slow, b"a") < 8


def test_a_slow_header_that_ends_in_time_is_answered(server):
    with connected(server, 1) as (slow,):
        for part in (b"GET /health HT", b"TP/1.1\r\nHost: localhost\r\n\r\n"):
            time.sleep(0.8)
            slow.sendall(part)
        assert slow.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_client_that_does_not_read_is_cut_off(tmp_path):
    asking = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000
    with running(store=tmp_path / "s.db", user="marta", constants=SHORT) as server:
        files = Path(f"/proc/{server.process.pid}/fd")
        before = len(list(files.iterdir()))
        with connected(server, 1, asking[:1]) as (deaf,):
            deaf.settimeout(1)
            with suppress(TimeoutError):  # the server has stopped reading
                deaf.sendall(asking[1:])
            began = time.monotonic()
            while len(list(files.iterdir())) > before:
                assert time.monotonic() - began < 20
                time.sleep(0.1)


def test_at_the_limit_of_descriptors_requests_are_answered_and_the_log_stays_short(tmp_path):
    with running(store=tmp_path / "s.db", user="marta", files=80) as server:
        with connected(server, 300), client(server) as http:
            time.sleep(2)
            assert http.post("/v1/add", json={"text": "tea"}).status_code == 200
        server.stop()
    assert len(server.errors) < 2000


def test_a_request_of_two_lengths_is_refused_and_its_connection_closed(server):
    smuggled = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    both = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    with connected(server, 1, both + smuggled) as (sock,), sock.makefile("rb") as answers:
        answer = answers.read()
    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1
