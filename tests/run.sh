#!/usr/bin/env bash
# The tests, against this tree as pip installs it. Arguments go to pytest; without any: all that
# are not slow, four files at a time (each worker has its own Spark, servers and folders).
set -euo pipefail
# shellcheck source=jobs/support/venv.sh
source "$(dirname "${BASH_SOURCE[0]}")/../jobs/support/venv.sh"
venv_ready test
cd "$ROOT"
# Of some thousand tests pytest keeps what it compiled, also where the environment forbids it.
unset PYTHONDONTWRITEBYTECODE
# -P: not the working tree beside the installed package; Spark's workers see only the latter.
pytest=("$VENV_PYTHON" -P -m pytest)
if [ $# -eq 0 ]; then
    # Compile all once, and not in each worker. An error is shown by the run itself.
    "${pytest[@]}" --collect-only >/dev/null 2>&1 || true
    # In the order of the folders: sorted by the number of tests, the longest file would begin last.
    set -- -n 4 --dist loadfile --no-loadscope-reorder
fi
exec "${pytest[@]}" "$@"
