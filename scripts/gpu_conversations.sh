#!/usr/bin/env bash
# Does GRPO help on conversations? Trains configs/train/conversations.yaml on one GPU and compares it with its warm start on data/trial.
#   bash scripts/gpu_conversations.sh [--max_minutes N] [--small]    writes runs/conversations/conversations.json and .md; call it again to go on
# --max_minutes stops the training after the step that is then at work; --small tries everything on a CPU in minutes. Other options are those of
# memalpha train, such as --model FOLDER where the base cannot be fetched. PYTHON=python3 takes the packages of that interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-.venv/bin/python}"
if ! command -v "$python" >/dev/null; then bash scripts/install.sh run; fi
[[ " $*" == *" --model"[\ =]* ]] || "$python" -m memalpha fetch qwen2.5-coder-0.5b-instruct
HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false exec "$python" scripts/gpu_conversations.py "$@"
