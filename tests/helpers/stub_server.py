"""A stub of an OpenAI-compatible chat server with scripted faults, for tests."""

import json
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Fault:
    """One scripted reply: a status, headers and a body as they are; or silence until the server
    closes (``hang``)."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False
    cut: bool = False  # promise one byte more than is sent


def error(status, message="scripted", **headers):
    body = json.dumps({"error": {"message": message}}).encode()
    return Fault(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


def completion(text, finish="stop", **more):
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text, **more},
        "finish_reason": finish,
    }
    head = {"id": "stub", "object": "chat.completion", "created": 0, "model": "stub"}
    return json.dumps({**head, "choices": [choice]}).encode()


def embeddings(*vectors):
    """A reply with vectors, the last one first: their order is that of their indexes."""
    rows = [{"object": "embedding", "index": i, "embedding": v} for i, v in enumerate(vectors)]
    return json.dumps({"object": "list", "data": rows[::-1], "model": "stub"}).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # a full queue costs a client a second

    def __init__(self, *arguments):
        self.accepted = []  # every connection
        super().__init__(*arguments)

    def get_request(self):
        connection, address = super().get_request()
        self.accepted.append(connection)
        return connection, address

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), OSError):  # a client may leave at any time
            super().handle_error(request, client_address)

    def server_close(self):
        super().server_close()
        for connection in self.accepted:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class StubServer:
    """Serves ``script`` fault by fault, then answers with ``reply(body)``; keeps every request.

    ``fault_for`` may name a fault for a request by its body instead, whatever the order of arrival.
    ``port`` 0 takes a free one.
    ``page`` makes the reply to a GET.
    """

    def __init__(self, port=0):
        self.script: list[Fault] = []
        self.fault_for: Callable[[dict[str, Any]], Fault | None] = lambda body: None
        self.reply: Callable[[dict[str, Any]], str] = lambda body: str(
            body["messages"][-1]["content"]
        ).upper()
        self.page: Callable[[], Fault] = lambda: error(404)
        self.finish = "stop"
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.asked: list[tuple[str, str]] = []  # method and path of every request
        self.active = self.most_active = 0
        self.delay = 0.0
        self.keep_alive = False  # whether a connection may be used again
        self.released = threading.Event()
        self.lock = threading.Lock()
        self._http = _Server(("127.0.0.1", port), _handler(self))
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    @property
    def connections(self):
        """How many connections were accepted so far."""
        return len(self._http.accepted)

    def close(self):
        self.released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def _handler(stub):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # a connection is used again
        disable_nagle_algorithm = True

        def do_POST(self):
            stub.asked.append((self.command, self.path))
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with stub.lock:
                stub.bodies.append(body)
                stub.headers.append(dict(self.headers.items()))
                stub.paths.append(self.path)
                stub.active += 1
                stub.most_active = max(stub.most_active, stub.active)
                fault = stub.fault_for(body) or (stub.script.pop(0) if stub.script else None)
            stub.released.wait(stub.delay)
            with (
                stub.lock
            ):  # before the answer: the client may send its next request as soon as it has one
                stub.active -= 1
            self.answer(fault or Fault(200, completion(stub.reply(body), stub.finish)))

        def do_GET(self):
            stub.asked.append((self.command, self.path))
            self.answer(stub.page())

        def answer(self, fault):
            self.close_connection = self.close_connection or fault.hang or fault.cut
            if fault.hang:
                stub.released.wait(10)
                return
            self.send_response(fault.status)
            for name, value in fault.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(fault.body) + fault.cut))
            if not stub.keep_alive:
                self.send_header("Connection", "close")
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(fault.body)

        def log_message(self, format, *args):
            pass

    return Handler
