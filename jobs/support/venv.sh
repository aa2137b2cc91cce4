# shellcheck shell=bash
# Sourced by jobs/*.sh, tests/run.sh and .ci/run:
#   venv_ready EXTRA   leaves $VENV_PYTHON with this tree and its [EXTRA] installed.
# Installs only when the tree or the Python changed, so that a second run needs no network.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)"
# SPARKWAL_VENV: another place, for another Python or another Spark.
VENV="${SPARKWAL_VENV:-$ROOT/.venv}"
# The PySpark that is installed, such as 4.1 or 4.1.4. By default the newest that Delta Lake is for.
SPARK="${SPARKWAL_SPARK:-4.2}"
VENV_PYTHON="$VENV/bin/python"

_say() { printf '%s\n' "$*" >&2; }

# Prints the first Python on this machine that is new enough.
_find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python3.14 python; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$candidate"
            return 0
        fi
    done
    _say "Python 3.11 or newer is needed and was not found. Install it, then run this again:
  Debian 12, Ubuntu 24.04 and newer:  sudo apt install python3 python3-venv
  macOS:                              brew install python@3.12
  Windows:                            wsl --install -d Ubuntu, then as on Ubuntu, inside WSL
Another place: PYTHON=/path/to/python3.12 $0"
    return 1
}

# Prints the major version of the given java, nothing when it does not run.
_java_version() {
    "$1" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' | head -n 1
}

_need_java() {
    local java version
    java="${JAVA_HOME:+$JAVA_HOME/bin/java}"
    java="${java:-java}"
    version="$(_java_version "$java" || true)"
    if [ -z "$version" ] || [ "$version" -lt 17 ]; then
        _say "Spark needs Java 17 or newer; $java is ${version:+version }${version:-not there}.
Install it, then run this again:
  Debian, Ubuntu:  sudo apt install openjdk-17-jre-headless
  macOS:           brew install openjdk@17
                   export JAVA_HOME=\"\$(brew --prefix openjdk@17)/libexec/openjdk.jdk/Contents/Home\"
  Windows:         wsl --install -d Ubuntu, then as on Ubuntu, inside WSL
Another place: JAVA_HOME=/path/to/java $0"
        return 1
    fi
}

# A hash of all that goes into the package, of the Python that runs it and of the Spark.
_fingerprint() {
    "$VENV_PYTHON" - "$ROOT" "$SPARK" <<'PYTHON'
import hashlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
files = [root / "setup.cfg", root / "pyproject.toml"]
files += [p for p in (root / "sparkwal").rglob("*") if p.is_file() and p.suffix != ".pyc"]
digest = hashlib.sha256((sys.version + sys.argv[2]).encode())
for path in sorted(files):
    digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
print(digest.hexdigest())
PYTHON
}

_install() {
    local copy status=0
    # From a copy: setuptools leaves build/ behind, and takes deleted modules from it later.
    copy="$(mktemp -d)"
    cp -R "$ROOT/setup.cfg" "$ROOT/pyproject.toml" "$ROOT/sparkwal" "$copy/"
    if [ -f "$ROOT/README.md" ]; then cp "$ROOT/README.md" "$copy/"; fi
    (cd "$copy" && "$VENV_PYTHON" -m pip install -q --disable-pip-version-check ".[$1]" \
        "pyspark==$SPARK.*") || status=$?
    rm -rf "$copy"
    return "$status"
}

venv_ready() {
    local extra="$1" stamp="$VENV/sparkwal.stamp" python now known=""
    _need_java
    if ! "$VENV_PYTHON" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python="$(_find_python)"
        _say "Making $VENV with $("$python" -V)"
        rm -rf "$VENV"
        if ! "$python" -m venv "$VENV"; then
            rm -rf "$VENV"
            _say "$python has no venv. On Debian and Ubuntu: sudo apt install python3-venv"
            return 1
        fi
    fi
    now="$(_fingerprint)"
    # The stamp's lines: the fingerprint, then the extras installed with it.
    if [ -f "$stamp" ] && [ "$(head -n 1 "$stamp")" = "$now" ]; then
        known="$(tail -n +2 "$stamp")"
    fi
    case " $known " in *" $extra "*) ;; *)
        _say "Installing sparkwal[$extra] into $VENV (the first time this downloads Spark)"
        rm -f "$stamp"
        _install "$extra"
        # [test] holds all that [examples] does.
        if [ "$extra" = test ]; then known="$known examples"; fi
        printf '%s\n%s\n' "$now" "$known $extra" >"$stamp"
        ;;
    esac
    # Spark's workers must run this very Python, not the python3 that is first in PATH.
    export PYSPARK_PYTHON="$VENV_PYTHON" PYSPARK_DRIVER_PYTHON="$VENV_PYTHON"
    # A Spark of another version around here would be found before the installed one.
    unset SPARK_HOME
}
