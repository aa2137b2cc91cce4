#!/usr/bin/env bash
# The tests, against this tree as pip installs it, in three sizes:
#   tests/run.sh fast     what needs no Spark, no server, no other process and little time
#   tests/run.sh          all that are not slow
#   tests/run.sh -m slow  mutants, clusters, more seeds
# Further arguments go to pytest. Without any, a run is spread over four workers, which take a file
# at a time; each has its own servers and folders.
set -euo pipefail
# shellcheck source=jobs/support/venv.sh
source "$(dirname "${BASH_SOURCE[0]}")/../jobs/support/venv.sh"
venv_ready test
cd "$ROOT"
# Of some thousand tests pytest keeps what it compiled, also where the environment forbids it.
unset PYTHONDONTWRITEBYTECODE
# -P: not the working tree beside the installed package; Spark's workers see only the latter.
pytest=("$VENV_PYTHON" -P -m pytest)
size=()
if [ "${1:-}" = fast ]; then
    shift
    size=(-m "not (spark or s3 or process or long or slow)" --hypothesis-profile=fast)
fi
# Before the tests: under load it would take longer than the time limit of one test.
if [ ${#size[@]} -eq 0 ]; then
    "$VENV_PYTHON" -P -c 'import sys; sys.path.append("tests"); import classes; classes.options()'
fi
if [ $# -eq 0 ]; then
    # Compile all once, and not in each worker. An error is shown by the run itself.
    compgen -G "tests/__pycache__/conftest.*" >/dev/null || "${pytest[@]}" --collect-only >/dev/null 2>&1 || true
    # In the order of the tests: sorted by their number, the longest file would begin last.
    set -- -n 4 --dist loadfile --no-loadscope-reorder
fi
exec "${pytest[@]}" "${size[@]}" "$@"
