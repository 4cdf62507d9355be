"""Wall time of a training step while a reader answers that takes as long as the rollouts:
overlapped against one after the other.

The reader is a server on this machine that waits before each answer. Its wait is set by a run that
scores without a reader. The first step, which may draw two batches, and the last, which may draw
none, are not timed.
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks import common

CONCURRENCY = 8
VARIANTS = {
    "one after the other": {},
    "in 4 parts": {"scoring_parts": 4},
    "a batch ahead": {"staleness": 1},
    "in 4 parts, a batch ahead": {"scoring_parts": 4, "staleness": 1},
}


class Slow(BaseHTTPRequestHandler):
    wait, asked = 0.0, 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).asked += 1
        time.sleep(self.wait)
        said = json.dumps(
            {"choices": [{"message": {"content": "unknown"}, "finish_reason": "stop"}]}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: Any) -> None:
        """Keep the output clean."""


def run(options: Any) -> dict[str, Any]:
    from memalpha.training.run import train

    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sizes = (
        "--per_device_train_batch_size",
        "16",
        "--num_generations",
        "4",
        "--max_steps",
        str(options.steps),
    )
    reader = (
        "--reader",
        "endpoint",
        "--endpoint_url",
        f"http://127.0.0.1:{server.server_port}/v1",
        "--endpoint_model",
        "slow",
    )

    def steps(name: str) -> list[dict[str, float]]:
        folder, more = (
            f"{options.folder}/{name}",
            [word for pair in VARIANTS[name].items() for word in (f"--{pair[0]}", str(pair[1]))],
        )
        train(
            common.quickstart(
                options, folder, *sizes, *reader, "--endpoint_concurrency", str(CONCURRENCY), *more
            )
        )
        return [
            json.loads(line)
            for line in Path(folder, "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        ][1:-1]

    plain = next(iter(VARIANTS))
    drawn = sum(row["time/rollouts"] for row in steps(plain)) / (options.steps - 2)
    Slow.wait = drawn * CONCURRENCY / (Slow.asked / options.steps)
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(max(1, options.rounds)):
        for name, found in seconds.items():
            rows = steps(name)
            found.append(
                sum(row["time/rollouts"] + row["time/scoring"] + row["step_time"] for row in rows)
                / len(rows)
            )
    table = [{"variant": name, "seconds_a_step": min(found)} for name, found in seconds.items()]
    ratios = {
        name: min(found) / min(seconds[plain]) for name, found in seconds.items() if name != plain
    }
    return {
        "ratios": ratios,
        "details": {"sizes": {"steps": options.steps, "wait": Slow.wait}, "table": table},
    }
