"""Connections over real sockets: answers come at once, slow ones shut nobody out."""

import socket
import time
from contextlib import ExitStack

import pytest

from tests.helpers.servers import client, running


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(
        store=tmp_path_factory.mktemp("s") / "s.db", user="marta", max_requests=1
    ) as server:
        yield server


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


@pytest.mark.parametrize(("number", "first"), [(12, b""), (300, b"G")])
def test_connections_that_say_nothing_or_never_end_a_header_shut_nobody_out(server, number, first):
    with ExitStack() as stack:
        http = stack.enter_context(client(server))
        for _ in range(number):
            address = ("127.0.0.1", server.port)
            stack.enter_context(socket.create_connection(address, timeout=20)).sendall(first)
        assert http.get("/health").status_code == http.get("/v1/memory").status_code == 200
        assert http.post("/v1/add", json={"text": "tea"}).status_code == 200
