#!/usr/bin/env bash
# Does training work on this machine's GPU, and how fast? Five minutes: GRPO with LoRA in bfloat16 on SmolLM2-135M from the shipped warm start,
# then pass or fail for seven faults that only GPUs show (docs/guides/gpus.md).
#   bash scripts/gpu_check.sh [--cpu]    writes runs/gpu_check/gpu_check.json; exits 0 if all is well, 1 if not, 2 without a GPU
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ " $* " != *" --cpu "* ]] && ! command -v nvidia-smi >/dev/null 2>&1; then
    echo "gpu_check: no NVIDIA GPU on this machine (nvidia-smi is not there); nothing was installed or run" >&2
    exit 2
fi
bash scripts/install.sh run
[[ " $* " == *" --cpu "* ]] || .venv/bin/memalpha fetch smollm2-135m-instruct
HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false exec .venv/bin/python scripts/gpu_check.py "$@"
