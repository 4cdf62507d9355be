#!/usr/bin/env bash
# Everything behind the published result, from the original files of the data sets to the tables: some seventeen hours of one core.
#
#   bash scripts/result.sh ORIGINALS      folder with squad/, hotpotqa/, locomo/, trec/ and csabstruct/ as published
#
# Each stage leaves a folder and is skipped where that is finished; a stage that was cut short goes on where it stopped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
originals=${1:?folder of the original data sets}
python() { .venv/bin/python "$@"; }
memalpha() { python -m memalpha "$@"; }
warm=data/adapters/smollm2-135m-warmup
released=data/adapters/smollm2-135m-memory

echo "[result] 1/7 data"
python scripts/prepare.py configs/data/recipe.yaml "$originals"
python scripts/prepare.py configs/data/comparison.yaml "$originals"

echo "[result] 2/7 warm starts: shipped, or made anew where they are not"
if [ ! -f "$warm/adapter_model.safetensors" ]; then
    [ -f runs/warmup/adapter_model.safetensors ] || memalpha warmup --config configs/train/warmup.yaml --overwrite
    memalpha warmup --config configs/train/warmup-corrections.yaml --output_dir "$warm" --overwrite
fi
hostile=data/adapters/smollm2-135m-hostile-warmup
[ -f "$hostile/adapter_model.safetensors" ] || memalpha warmup --config configs/train/warmup-hostile.yaml --output_dir "$hostile" --overwrite

train() { # configuration, folder, then options
    local config=$1 folder=$2
    shift 2
    [ -f "$folder/summary.json" ] && return
    memalpha train --config "configs/train/$config.yaml" --output_dir "$folder" "$@" $([ -f "$folder/config.yaml" ] && echo --resume)
}

echo "[result] 3/7 three seeds of each, and the control"
for seed in 1 2 3; do train mixed "runs/mixed-$seed" --seed "$seed"; done
for seed in 1 2 3; do train archive "runs/read-$seed" --seed "$seed"; done
train mixed runs/control --seed 1 --shuffle_advantages true

echo "[result] 4/7 the shipped adapter: the best of the three on the dialogues watched; made anew where it is not there"
[ -d "$released" ] || memalpha export runs/read-1 --output "$released"

echo "[result] 5/7 ablations"
python scripts/ablations.py runs/ablations --max_steps 16

echo "[result] 6/7 evaluation, and what the policies do"
memalpha evaluate --config configs/evaluate/main.yaml
memalpha evaluate --config configs/evaluate/archive.yaml
memalpha evaluate --config configs/evaluate/long.yaml
rollouts() { # name, adapter
    [ -f "runs/behaviour/$1/summary.json" ] || memalpha rollout --config configs/train/mixed.yaml --adapter "$2" \
        --eval_data runs/data/test-dialogues --output_dir "runs/behaviour/$1"
}
rollouts warm "$warm"
for seed in 1 2 3; do rollouts "grpo-$seed" "runs/mixed-$seed/adapter"; done
rollouts control runs/control/adapter

echo "[result] 7/7 numbers and pages of docs/"
for run in mixed-{1,2,3} read-{1,2,3} control; do python scripts/record.py run "runs/$run" "$run"; done
python scripts/record.py ablations runs/ablations
python scripts/record.py comparison runs/main
python scripts/record.py comparison runs/archive archive
python scripts/record.py comparison runs/long archive
memalpha poison "$hostile" "$released" runs/read-2/adapter runs/read-3/adapter --per-attack 8 --dtype bfloat16 --output docs/results/poisoning.json
python scripts/bars.py --main runs/main --rollouts runs/behaviour --archive runs/archive
python scripts/tables.py
