#!/usr/bin/env bash
# The tests, against this tree as pip installs it. Arguments go to pytest; without a path: all.
set -euo pipefail
# shellcheck source=jobs/support/venv.sh
source "$(dirname "${BASH_SOURCE[0]}")/../jobs/support/venv.sh"
venv_ready test
cd "$ROOT"
# -P: not the working tree beside the installed package; Spark's workers see only the latter.
exec "$VENV_PYTHON" -P -m pytest "$@"
