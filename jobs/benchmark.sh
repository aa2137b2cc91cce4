#!/usr/bin/env bash
# sparkwal beside what else writes to S3, from a fresh clone. Arguments go to jobs/benchmark.py.
set -euo pipefail
# shellcheck source=jobs/support/venv.sh
source "$(dirname "${BASH_SOURCE[0]}")/support/venv.sh"
venv_ready bench
exec "$VENV_PYTHON" "$ROOT/jobs/benchmark.py" "$@"
