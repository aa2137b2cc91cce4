#!/usr/bin/env bash
# Builds sparkwal-s3a.jar beside this file: build.sh JARS, a class path with the jars of Spark 4.1 or
# newer and io.delta:delta-storage. The same bytes each time with one JDK.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
javac --release 17 -cp "$1" -d "$out" "$here"/*.java
jar --create --file "$here/sparkwal-s3a.jar" --date=2024-01-01T00:00:00Z --no-manifest \
    -C "$out" sparkwal
