"""``memalpha`` by .venv-vllm, with notes of what vLLM does: ``events`` in the run folder lists starts,
adapters, draws, sleeps, wakes and updates. ADAPTERS=first leaves the first adapter in the engine.
"""

import os
import sys
from pathlib import Path

from memalpha.cli import run
from memalpha.generation.vllm_process import VLLMProcess
from memalpha.training.trainer import MemoryGRPOTrainer

FOLDER = Path(sys.argv[sys.argv.index("--output_dir") + 1])


def note(line):
    with (FOLDER / "events").open("a") as events:
        events.write(f"{line}\n")


def noting(owner, name, before):
    right = getattr(owner, name)

    def noted(self, *arguments, **options):
        note(before)
        return right(self, *arguments, **options)

    setattr(owner, name, noted)


def only_first(self, name, folder):
    if self._adapter is None:
        load(self, name, folder)


if __name__ == "__main__":
    import vllm

    load = VLLMProcess.load
    noting(VLLMProcess, "load", "load")
    if os.environ.get("ADAPTERS") == "first":
        VLLMProcess.load = only_first
    noting(MemoryGRPOTrainer, "_keep_step", "update")
    noting(vllm.LLM, "__init__", "start")
    noting(vllm.LLM, "generate", "draw")
    noting(vllm.LLM, "sleep", "sleep")
    noting(vllm.LLM, "wake_up", "wake")
    sys.exit(run(sys.argv[1:]))
