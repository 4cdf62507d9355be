#!/usr/bin/env bash
# uvicorn 0.54.0: with --workers 2 (or a socket of one's own) each answer on a kept connection comes some 40 ms late.
# asyncio sets TCP_NODELAY only on sockets whose protocol number is TCP; uvicorn binds the sockets that workers share without one. An
# answer is two writes, header and body, and the second waits until the client acknowledges the first (Nagle and delayed ACK).
# Why it matters: who scales a memory server up by workers makes a search of 8 ms one of 50. To fix: bind the socket yourself, set
# TCP_NODELAY on it, and hand it over (Server.run(sockets=[...])).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q uvicorn==0.54.0 httpx==0.28.1
cat > "$folder/app.py" <<'PY'
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})
PY
cat > "$folder/measure.py" <<'PY'
import socket, statistics, subprocess, sys, time
import httpx


def median(*options):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", str(port), "--lifespan", "off", "--log-level", "error", *options]
    server = subprocess.Popen(command)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            for _ in range(300):
                try:
                    client.get("/")
                    break
                except httpx.TransportError:
                    time.sleep(0.1)
            times = []
            for _ in range(60):
                began = time.perf_counter()
                assert client.get("/").text == "ok"
                times.append(1000 * (time.perf_counter() - began))
            return statistics.median(times[20:])
    finally:
        server.terminate()
        server.wait()


one, two = median(), median("--workers", "2")
print(f"uvicorn 0.54.0, median of an answer on a kept connection: one process {one:.1f} ms, --workers 2 {two:.1f} ms")
sys.exit(0 if one < 20 < 35 < two else 1)
PY
cd "$folder" && "$folder/venv/bin/python" measure.py
