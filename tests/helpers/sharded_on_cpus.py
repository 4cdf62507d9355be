"""``memalpha`` on CPUs as if they were accelerators, for tests of sharding; several commands are
joined by --then.

Needs ACCELERATE_TORCH_DEVICE=cpu and ``--use_cpu false``. Into each run folder goes
``sharded.json``: for each step, how many parameters are shards, and how many there are.
NAN_GRADIENT=1 gives a loss of 0 whose gradient is NaN.
"""

import json
import os
import sys
from pathlib import Path

from accelerate import PartialState
from accelerate.utils import DistributedType
from transformers import training_args


def cpus_as_accelerators():
    if not {"ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"} & os.environ.keys():
        return
    training_args.is_torch_bf16_gpu_available = lambda: True
    PartialState._prepare_backend = lambda self, *_, **__: ("gloo", DistributedType.MULTI_GPU)
    if os.environ.get("ACCELERATE_USE_DEEPSPEED"):
        import deepspeed.comm.torch  # noqa: F401

        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: (
            None
        )  # compiled at the first use, for minutes


def is_shard(parameter):
    local = parameter.to_local() if hasattr(parameter, "to_local") else parameter.data
    return local.numel() < getattr(parameter, "ds_numel", parameter.numel())


def run_one(arguments):
    from memalpha.cli import run
    from memalpha.training import trainer

    original, counts = trainer.MemoryGRPOTrainer.training_step, []

    def training_step(self, model, *args, **kwargs):
        parameters = list(model.parameters())
        counts.append([sum(map(is_shard, parameters)), len(parameters)])
        return original(self, model, *args, **kwargs)

    trainer.MemoryGRPOTrainer.training_step = training_step
    if os.environ.get("NAN_GRADIENT"):
        loss = trainer.MemoryGRPOTrainer.compute_loss
        trainer.MemoryGRPOTrainer.compute_loss = lambda *args, **kwargs: (
            loss(*args, **kwargs) * 0
        ).sqrt()
    code = run(arguments)
    trainer.MemoryGRPOTrainer.training_step = original
    if code == 0 and os.environ["RANK"] == "0":
        folder = Path(arguments[arguments.index("--output_dir") + 1])
        (folder / "sharded.json").write_text(json.dumps(counts))
    return code


def main(arguments):
    cpus_as_accelerators()
    while arguments:
        end = arguments.index("--then") if "--then" in arguments else len(arguments)
        if code := run_one(arguments[:end]):
            return code
        arguments = arguments[end + 1 :]
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # gloo sometimes aborts in its static destructors, after all work is done
