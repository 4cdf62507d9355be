#!/usr/bin/env bash
# accelerate 1.15.0 takes mixed_precision="fp16" on a CPU, says "fp16" when it is asked, and computes in float32 without a loss scale:
# no autocast, no scaler, no warning. torch 2.13.0 has both for CPUs. transformers' TrainingArguments(fp16=True, use_cpu=True) pass it
# on. It matters to whoever tries a float16 recipe for a T4 or V100 on a CPU first: skipped steps, falling scales and rounding of
# float16 do not show there, and the run's record says that they would have.
set -euo pipefail
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet "accelerate==1.15.0" "transformers==5.23.0" "torch==2.13.0" "numpy==2.4.6"
cd "$place"
"$place/venv/bin/python" -W error - <<'PYTHON'
import accelerate
import torch
import transformers
from transformers import TrainingArguments

print("accelerate", accelerate.__version__, "transformers", transformers.__version__, "torch", torch.__version__)
arguments = TrainingArguments("out", fp16=True, use_cpu=True)
accelerator = accelerate.Accelerator(mixed_precision=arguments.mixed_precision, cpu=True)
layer = accelerator.prepare(torch.nn.Linear(4, 4))
with accelerator.autocast():
    computed = layer(torch.ones(1, 4)).dtype
with torch.autocast("cpu", torch.float16):
    possible = layer(torch.ones(1, 4)).dtype
scale = torch.amp.GradScaler("cpu").scale(torch.ones(())).item()
print("it says", accelerator.mixed_precision, "- computes in", computed, "- scaler:", accelerator.scaler)
print("torch alone computes in", possible, "and scales by", scale)
assert accelerator.mixed_precision == "fp16"
assert (computed, accelerator.scaler) == (torch.float32, None)
assert (possible, scale) == (torch.float16, 65536.0)
PYTHON
