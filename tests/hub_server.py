"""A stand-in for the Hub: the few addresses an upload uses, keeping what was sent."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class HubServer:
    """Runs until closed; ``files`` holds what was committed, ``requests`` every (path, authorization).

    A repository ``.../refused`` is not given to anybody, for ``.../gone`` the connection breaks.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, body: bytes) -> dict[str, Any]:
        if path == "/api/repos/create":
            wanted = json.loads(body)
            return {"url": f"{self.url}/{wanted.get('organization', 'me')}/{wanted['name']}", "id": "me/agent", "name": "me/agent"}
        if "/preupload/" in path:
            return {
                "files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]]
            }
        if "/commit/" in path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            return {"commitUrl": f"{self.url}/me/agent/commit/abc", "commitOid": "abc", "success": True}
        return {}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def _reply(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if b"gone" in body or "gone" in self.path:
                    self.close_connection = True
                    return
                refused = b"refused" in body or "refused" in self.path
                hub.requests.append((self.path, self.headers.get("authorization", "")))
                data = json.dumps({"error": "no"} if refused else hub.answer(self.path, body)).encode()
                self.send_response(403 if refused else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_HEAD = _reply  # noqa: N815

            def log_message(self, *args: Any) -> None:
                pass

        return Handler
