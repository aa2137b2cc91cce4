#!/usr/bin/env bash
# Histories of real processes, and what contradicts the guarantees in them.
#   tests/histories.sh [--azure] [SEEDS] [FIRST]   so many seeds (10), from the first on (0)
set -euo pipefail
# shellcheck source=jobs/support/venv.sh
source "$(dirname "${BASH_SOURCE[0]}")/../jobs/support/venv.sh"
venv_ready test
export PYTHONPATH="$ROOT/tests:$ROOT/jobs:$ROOT"
exec "$VENV_PYTHON" -P -m histories.run "$@"
