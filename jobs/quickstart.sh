#!/usr/bin/env bash
# Streams 336,776 real flights into a write-ahead log on the local disk, stops in the middle,
# goes on, reads them back and proves that the log holds them exactly once and in order.
# Needs Python 3.11+ and Java 17+; everything else goes into .venv. Options: see --help.
set -euo pipefail
# shellcheck source=jobs/support/venv.sh
source "$(dirname "${BASH_SOURCE[0]}")/support/venv.sh"
venv_ready examples
exec "$VENV_PYTHON" "$ROOT/jobs/quickstart.py" "$@"
