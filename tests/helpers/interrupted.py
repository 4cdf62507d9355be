"""Runs ``memalpha`` and kills it while an evaluation writes its n-th batch of lines:
``interrupted.py N evaluate ...``."""

import json
import os
import signal
import sys

from memalpha.cli import main
from memalpha.measure import run


def kill_at(number: int) -> None:
    append, calls = run.append_rows, [0]

    def cut_short(path, rows) -> None:
        calls[0] += 1
        if calls[0] < number:
            append(path, rows)
            return
        append(path, rows[:1])
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(rows[-1].to_json())[:200])
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    run.append_rows = cut_short


if __name__ == "__main__":
    kill_at(int(sys.argv[1]))
    main(sys.argv[2:])
