#!/usr/bin/env bash
# Builds the site of the documentation into build/site, and fails at a broken link, a missing name or a page that is not listed.
#
#   bash scripts/docs.sh            then open build/site/index.html
#   bash scripts/docs.sh serve      a server that builds again at each change
#
# Search in a site that is opened from disk needs iframe-worker, a small script that npm fetches once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

WORKER="iframe-worker@1.0.4"
[ -x .venv/bin/mkdocs ] || bash scripts/install.sh dev

mkdir -p build/worker
if [ ! -f build/worker/package/shim/index.js ]; then
    if ! command -v npm >/dev/null 2>&1 || ! (cd build/worker && npm pack --silent "$WORKER" >/dev/null && tar -xzf ./*.tgz); then
        printf '[docs] %s could not be fetched with npm: search in the site will need a server\n' "$WORKER"
    fi
fi

export PYTHONPATH="$PWD" NO_MKDOCS_2_WARNING=1
if [ "${1:-}" = serve ]; then exec .venv/bin/python -m mkdocs serve --strict; fi
.venv/bin/python -m mkdocs build --strict --quiet
if [ -f build/worker/package/shim/index.js ]; then cp build/worker/package/shim/index.js build/site/assets/iframe-worker.js; fi
printf '[docs] build/site/index.html\n'
