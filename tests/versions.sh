#!/usr/bin/env bash
# What depends on the version of Python or of Spark, under others than .venv's:
#   bash tests/versions.sh [NAME…]     python3.12, spark4.1, spark4.1.4 …; without: all of them
# Each gets an environment of its own in .cache/versions, of up to 2 GB, which stays for the next
# time. Under a Spark all tests run that need one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

OF_PYTHON=(
    tests/format tests/options tests/store tests/protocol tests/reading tests/appender
    tests/journal tests/checkpoints tests/cli tests/testing
    tests/spark/test_register.py tests/spark/test_sink.py tests/spark/test_source.py
    tests/spark/test_types.py tests/spark/test_errors.py
)

[ $# -gt 0 ] || set -- python3.12 python3.13 spark4.0 spark4.1 spark4.3
folder="$PWD/.cache/versions"
mkdir -p "$folder"
for name in "$@"; do
    export SPARKWAL_VENV="$folder/$name"
    case "$name" in
    spark*)
        export SPARKWAL_SPARK="${name#spark}"
        echo "Spark $SPARKWAL_SPARK"
        bash tests/run.sh -m "spark and not slow"
        bash tests/run.sh -m "slow or not slow" tests/spark/test_register.py \
            tests/deploying/test_pipelines.py tests/notebooks
        ;;
    *)
        version="$("$name" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')"
        echo "Python $version"
        unset SPARKWAL_SPARK
        PYTHON="$name" bash tests/run.sh "${OF_PYTHON[@]}"
        ;;
    esac
done
