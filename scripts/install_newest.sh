#!/usr/bin/env bash
# Makes .venv-newest with the newest version of each dependency, over the packages of .venv: only what is newer is installed.
# Upper limits and constraints.txt do not count, except for torch. Called by scripts/test.sh --newest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

.venv/bin/python -m venv --clear .venv-newest
packages() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
# Packages of its own come first, then those of .venv, with memalpha as .venv has it.
printf 'import site; site.addsitedir(%s)\n' "'$(packages .venv/bin/python)'" >"$(packages .venv-newest/bin/python)/base.pth"
.venv/bin/python scripts/newest.py requirements >.venv-newest/requirements.txt
grep '^torch==' constraints.txt >.venv-newest/constraints.txt
.venv-newest/bin/python -m pip install --upgrade --upgrade-strategy eager \
    -c .venv-newest/constraints.txt -r .venv-newest/requirements.txt
