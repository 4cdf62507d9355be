#!/usr/bin/env bash
# torch 2.13.0: under autocast for CUDA torch.nn.functional.rms_norm of a 16-bit tensor returns float32, on CPUs it returns 16 bits, and
# the norm of a transformers model (5.23.0) returns 16 bits on both. So whoever puts torch's one kernel in the place of the model's eight
# makes every linear layer behind it cast and keep its own copy of the input, and a Qwen3's keys float32; nothing fails, and nothing
# shows on a CPU. Seen without a GPU on tensors that have a device and no data.
set -euo pipefail
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet "transformers==5.23.0" "torch==2.13.0" "numpy==2.4.6"
cd "$place"
"$place/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import rms_norm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

found = {}
for device in ("cpu", "cuda"):
    with FakeTensorMode(), torch.device(device), torch.no_grad():
        norm = Qwen3RMSNorm(8)
        norm.weight = torch.nn.Parameter(torch.empty(8, dtype=torch.bfloat16), requires_grad=False)
        x = torch.empty(2, 8, dtype=torch.bfloat16)
        torch.set_autocast_enabled(device, True)  # torch.autocast("cuda") would want a GPU
        found[device] = rms_norm(x, (8,), norm.weight).dtype, norm(x).dtype
        torch.set_autocast_enabled(device, False)
print("torch", torch.__version__, "transformers", transformers.__version__)
for device, (of_torch, of_model) in found.items():
    print(f"{device}: rms_norm gives {of_torch}, the model's norm {of_model}")
assert found["cpu"] == (torch.bfloat16, torch.bfloat16)
assert found["cuda"] == (torch.float32, torch.bfloat16)
PYTHON
