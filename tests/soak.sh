#!/usr/bin/env bash
# Kills, faults and takeovers at random, for as long as asked. Arguments go to tests/soak.py.
set -euo pipefail
# shellcheck source=jobs/support/venv.sh
source "$(dirname "${BASH_SOURCE[0]}")/../jobs/support/venv.sh"
venv_ready test
export PYTHONPATH="$ROOT/tests:$ROOT/jobs"
exec "$VENV_PYTHON" -P -m soak "$@"
