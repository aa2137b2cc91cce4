#!/usr/bin/env bash
# What does not depend on a version of Python by chance, under other Pythons than .venv's:
#   bash tests/versions.sh [PYTHON…]     without: python3.12 python3.13
# Each gets an environment of its own, which is removed at the end (2 GB; the first time a download).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TESTS=(
    tests/format tests/options tests/store tests/protocol tests/reading tests/appender
    tests/journal tests/checkpoints tests/cli tests/testing
    tests/spark/test_register.py tests/spark/test_sink.py tests/spark/test_source.py
    tests/spark/test_types.py tests/spark/test_errors.py
)

[ $# -gt 0 ] || set -- python3.12 python3.13
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
for python in "$@"; do
    version="$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')"
    echo "Python $version"
    SPARKWAL_VENV="$folder/$version" PYTHON="$python" bash tests/run.sh "${TESTS[@]}"
    rm -rf "${folder:?}/$version"
done
