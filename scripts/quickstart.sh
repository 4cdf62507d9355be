#!/usr/bin/env bash
# From nothing to a trained memory agent: installs memalpha in .venv, then runs memalpha quickstart, which makes runs/quickstart.
#
#   bash scripts/quickstart.sh [--max_steps 4]         arguments are options of memalpha quickstart
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/install.sh run
exec .venv/bin/memalpha quickstart "$@"
