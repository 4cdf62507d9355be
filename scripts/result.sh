#!/usr/bin/env bash
# Everything behind the published result, from the original files of the data sets to the tables: some fourteen hours of one core, most of it ablations (four) and evaluation (seven).
#
#   bash scripts/result.sh ORIGINALS      folder with squad/, hotpotqa/, locomo/, trec/ and csabstruct/ as published
#
# Each stage leaves a folder and is skipped where that is finished; a stage that was cut short goes on where it stopped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
originals=${1:?folder of the original data sets}
model=smollm2-135m-instruct
memalpha() { .venv/bin/python -m memalpha "$@"; }

prepare() { # folder, then arguments of memalpha prepare
    local folder=runs/data/$1
    shift
    [ -f "$folder/manifest.json" ] || memalpha prepare "$@" --output "$folder" --model "$model"
}

echo "[result] 1/7 data"
dialogues="--option p_change=0.5 --option p_retract=0.2"
prepare warm-small synthetic --seed 1000 --option split=train --option n=1400 $dialogues
prepare warm-medium synthetic --seed 1001 --option split=train --option preset=medium --option n=200 $dialogues
prepare warm-varied synthetic --seed 1004 --option split=train --option n=900 --option n_chunks=4 --option p_change=0.6 --option p_retract=0.3 --option facts_per_chunk=0-5 --option chitchat_per_chunk=1-4
prepare train-varied synthetic --seed 1 --option split=train --option n=600 --option n_chunks=4 $dialogues --option facts_per_chunk=0-4 --option chitchat_per_chunk=1-4
prepare watch-dialogues synthetic --seed 3 --option split=test --option n=32
short="--option chunk_tokens=80-200 --option chunks=2-2 --option max_answer_tokens=8"
prepare squad-train squad --input "$originals/squad/train_flat.json" $short
prepare warm-squad squad --input "$originals/squad/train_flat.json" --seed 4 $short --option shuffle=true --option max_instances=250
prepare train-squad squad --input "$originals/squad/train_flat.json" --seed 1 $short --option shuffle=true --option max_instances=600
prepare test-squad squad --input "$originals/squad/dev_half_v2.json" $short --check-against runs/data/squad-train --drop-leaks

echo "[result] 2/7 warm start: shipped, or made anew where it is not"
warm=data/adapters/smollm2-135m-warmup
if [ ! -f "$warm/adapter_model.safetensors" ]; then
    [ -f runs/warmup/adapter_model.safetensors ] || memalpha warmup --config configs/train/warmup.yaml --overwrite
    memalpha warmup --config configs/train/warmup-corrections.yaml --output_dir "$warm" --overwrite
fi

train() { # folder, then options
    local folder=$1
    shift
    [ -f "$folder/summary.json" ] && return
    memalpha train --config configs/train/mixed.yaml --output_dir "$folder" "$@" $([ -f "$folder/config.yaml" ] && echo --resume)
}

echo "[result] 3/7 three seeds"
for seed in 1 2 3; do train "runs/mixed-$seed" --seed "$seed"; done

echo "[result] 4/7 the control"
train runs/control --seed 1 --shuffle_advantages true

echo "[result] the shipped adapter: the best of the three on the dialogues watched; made anew where it is not there"
released=data/adapters/smollm2-135m-memory
[ -d "$released" ] || memalpha export runs/mixed-2 --output "$released" --dtype float16

echo "[result] 5/7 ablations"
.venv/bin/python scripts/ablations.py --output_dir runs/ablations --max_steps 16 --seeds 1

echo "[result] 6/7 evaluation"
.venv/bin/python scripts/evaluate_all.py "$originals"

echo "[result] 7/7 what the policies do, and which bars are met"
rollouts() { # name, adapter
    [ -f "runs/behaviour/$1/summary.json" ] || memalpha rollout --config configs/train/mixed.yaml --adapter "$2" --eval_data runs/data/test-dialogues --output_dir "runs/behaviour/$1"
}
rollouts warm "$warm"
for seed in 1 3; do rollouts "grpo-$seed" "runs/mixed-$seed/adapter"; done
rollouts grpo-2 "$released"
rollouts control runs/control/adapter
.venv/bin/python scripts/bars.py runs/main runs/behaviour
