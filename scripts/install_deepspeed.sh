#!/usr/bin/env bash
# Makes .venv-deepspeed for the ZeRO tests of tests/scale/test_sharded.py: DeepSpeed and what it needs, over the packages of .venv.
# It is an environment of its own, so that the tests of everything else run without DeepSpeed, as they do for most users. About 50 MB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

.venv/bin/python -m venv --clear .venv-deepspeed
packages() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
# Packages of its own come first, then those of .venv, with memalpha as .venv has it.
printf 'import site; site.addsitedir(%s)\n' "'$(packages .venv/bin/python)'" >"$(packages .venv-deepspeed/bin/python)/base.pth"
DS_BUILD_OPS=0 .venv-deepspeed/bin/python -m pip install -c constraints.txt "deepspeed==0.19.8"
