#!/usr/bin/env bash
# What a rented GPU can do with this project, measured in ten minutes: decoding, the update, real training (docs/performance.md).
#   bash scripts/gpu_session.sh [--only PART ...]    writes runs/gpu_session/gpu_session.json as it goes; call it again to go on
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ ! -x .venv/bin/python ]]; then bash scripts/install.sh run; fi
.venv/bin/memalpha fetch smollm2-135m-instruct
HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false exec .venv/bin/python scripts/gpu_session.py "$@"
