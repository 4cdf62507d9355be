#!/usr/bin/env bash
# What a rented GPU can do with this project, measured in ten minutes: decoding, the update, real training (docs/performance.md).
#   bash scripts/gpu_session.sh [--only PART ...]    writes runs/gpu_session/gpu_session.json as it goes; call it again to go on
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-.venv/bin/python}" # without a network: PYTHON=python3, with the packages of that interpreter
if ! command -v "$python" >/dev/null; then bash scripts/install.sh run; fi
"$python" -m memalpha fetch smollm2-135m-instruct || echo "gpu_session: no SmolLM2-135M, so the parts grpo* will fail" >&2
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false VLLM_USE_FLASHINFER_SAMPLER=0
exec "$python" scripts/gpu_session.py "$@"
