#!/usr/bin/env bash
# What depends on the version of Python or of Spark, under others than .venv's:
#   bash tests/versions.sh [NAME…]     python3.12, spark4.1, spark4.1.4 …; without: all of them
# Each gets an environment of its own in .cache/versions, of up to 2 GB, which stays for the next
# time. Under a Spark all tests run that need one, for an hour or more; what they found goes into
# tests/docs/support.json, of which `python -m tests.docs.tables` makes the support table.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

OF_PYTHON=(
    tests/format tests/options tests/store tests/protocol tests/reading tests/appender
    tests/journal tests/checkpoints tests/cli tests/testing
    tests/spark/test_register.py tests/spark/test_sink.py tests/spark/test_source.py
    tests/spark/test_types.py tests/spark/test_errors.py
)

[ $# -gt 0 ] || set -- python3.12 python3.13 spark4.0 spark4.1 spark4.2 spark4.3
folder="$PWD/.cache/versions"
mkdir -p "$folder"
failed=()

# tests REPORT PYTEST'S ARGUMENTS…
tests() {
    local report="$SPARKWAL_VENV/reports/$1.xml"
    shift
    PYTEST_ADDOPTS="${PYTEST_ADDOPTS:-} --junitxml=$report" bash tests/run.sh "$@" || failed+=("$name")
}

for name in "$@"; do
    export SPARKWAL_VENV="$folder/$name"
    case "$name" in
    spark*)
        export SPARKWAL_SPARK="${name#spark}"
        echo "Spark $SPARKWAL_SPARK"
        tests spark -m "spark and not slow"
        tests more -m "slow or not slow" tests/spark/test_register.py \
            tests/deploying/test_pipelines.py tests/notebooks
        "$SPARKWAL_VENV/bin/python" -m tests.docs.support "$SPARKWAL_VENV/reports"
        ;;
    *)
        version="$("$name" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')"
        echo "Python $version"
        unset SPARKWAL_SPARK
        PYTHON="$name" tests python "${OF_PYTHON[@]}"
        ;;
    esac
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
