#!/usr/bin/env bash
# sparkwal beside what else writes to S3, from a fresh clone. Arguments go to tests/benchmarks.
set -euo pipefail
# shellcheck source=jobs/support/venv.sh
source "$(dirname "${BASH_SOURCE[0]}")/../jobs/support/venv.sh"
venv_ready test
export PYTHONPATH="$ROOT/tests:$ROOT/jobs:$ROOT"
exec "$VENV_PYTHON" -P -m benchmarks "$@"
