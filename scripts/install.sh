#!/usr/bin/env bash
# Makes .venv and installs the pinned set; a second run with nothing changed is instant and needs no network.
#
#   bash scripts/install.sh            what using and training needs
#   bash scripts/install.sh dev        that, and what the tests need
#
# PYTHON=/path/to/python picks the interpreter (3.11 or newer). Called by scripts/quickstart.sh and scripts/test.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TORCH="torch==2.13.0"
CPU_WHEELS="https://download.pytorch.org/whl/cpu" # PyTorch's own CPU builds, much smaller than the default ones
REACH_SECONDS=5
APT="apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=20"
AXE="axe-core@4.14.1" # which the tests of the pages ask about accessibility
BROWSER="export DEBIAN_FRONTEND=noninteractive; $APT update; $APT install -y --no-install-recommends chromium"

what="${1:-run}"
case "$what" in
run) extras="data,report,minilm,gguf,routing,serve" ;;
dev) extras="dev" ;;
*)
    echo "install: unknown set '$what'; expected: run or dev" >&2
    exit 2
    ;;
esac

say() { printf '[install] %s\n' "$*"; }

die() {
    printf '[install] error: %s\n' "$@" >&2
    exit 1
}

usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

# The first usable of the usual names; $PYTHON, where given, is the only candidate.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3 python}; do
        if usable "$candidate"; then
            command -v "$candidate" # its path, the answer
            return 0
        fi
    done
    return 1
}

reachable() {
    .venv/bin/python - "$1" "$REACH_SECONDS" >/dev/null 2>&1 <<'PY'
import sys, urllib.request
urllib.request.urlopen(sys.argv[1] + "/torch/", timeout=float(sys.argv[2])).close()
PY
}

install_torch() {
    if .venv/bin/python -m pip show torch 2>/dev/null | grep -q "^Version: ${TORCH#torch==}"; then
        say "$TORCH is there"
    elif command -v nvidia-smi >/dev/null 2>&1; then
        say "installing $TORCH for the NVIDIA GPU of this machine (several GB)"
        .venv/bin/python -m pip install -c constraints.txt "$TORCH"
    elif reachable "$CPU_WHEELS"; then
        say "no NVIDIA GPU: installing $TORCH from PyTorch's CPU builds"
        .venv/bin/python -m pip install -c constraints.txt --extra-index-url "$CPU_WHEELS" "$TORCH"
    else
        say "no NVIDIA GPU, and PyTorch's CPU builds do not answer: installing pip's $TORCH"
        .venv/bin/python -m pip install -c constraints.txt "$TORCH"
    fi
}

# The report's tests want a browser; where there is none they skip and say so. Only CI is given one unasked.
offer_browser() {
    local name
    for name in chromium chromium-browser google-chrome; do
        if command -v "$name" >/dev/null 2>&1; then return 0; fi
    done
    if [ -z "${CI:-}" ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        say "no Chromium: the tests of the report in a browser will be skipped (Debian: apt-get install chromium)"
    elif say "installing Chromium" && timeout 300 sh -c "$BROWSER" >/dev/null 2>&1; then
        say "Chromium is there"
    else
        say "Chromium could not be installed: the tests of the report in a browser will be skipped"
    fi
}

# axe-core in build/axe; where there is no npm, the tests that ask it skip and say so.
offer_axe() {
    if [ -f build/axe/node_modules/axe-core/axe.min.js ]; then return 0; fi
    if ! command -v npm >/dev/null 2>&1; then
        say "no npm: the tests of the pages' accessibility will be skipped"
    elif mkdir -p build/axe && timeout 60 npm install --prefix build/axe --no-audit --no-fund --fetch-retries 0 "$AXE" >/dev/null 2>&1; then
        say "axe-core is there"
    else
        say "axe-core could not be fetched: the tests of the pages' accessibility will be skipped"
    fi
}

# What the installation depends on; the dev set contains the run set.
fingerprint() {
    .venv/bin/python - "$PWD" constraints.txt pyproject.toml memalpha/__init__.py scripts/install.sh <<'PY'
import hashlib, pathlib, sys
digest = hashlib.sha256(sys.argv[1].encode())
for name in sys.argv[2:]:
    digest.update(pathlib.Path(name).read_bytes())
print(digest.hexdigest())
PY
}

installed() {
    local set
    usable .venv/bin/python || return 1
    for set in "$what" dev; do
        if [ -f ".venv/memalpha-$set" ] && [ "$(cat ".venv/memalpha-$set")" = "$(fingerprint)" ]; then return 0; fi
    done
    return 1
}

if installed; then
    say "up to date"
else
    say "preparing .venv (the first time: about 2 GB and a few minutes)"
    if ! usable .venv/bin/python || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        python="$(find_python)" || die "no Python 3.11 or newer found (looked for: ${PYTHON:-python3.11 python3.12 python3.13 python3 python})" \
            "to fix: install Python 3.11 or newer, or run PYTHON=/path/to/python bash scripts/install.sh"
        say "making .venv with $python"
        "$python" -m venv --clear .venv || die "$python could not make a virtual environment" "to fix: install its venv module (Debian: python3-venv)"
    fi
    install_torch
    say "installing memalpha[$extras] with the versions of constraints.txt"
    .venv/bin/python -m pip install -c constraints.txt -e ".[$extras]"
    fingerprint >".venv/memalpha-$what"
    say "done"
fi

if [ "$what" = dev ]; then
    offer_browser
    offer_axe
fi
say "the command memalpha is there after: source .venv/bin/activate"
