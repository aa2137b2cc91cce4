"""Separate Pythons: with the packages of the tests' Python, and with replacements for some."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from sparkwal.testing.servers import ACCESS_KEY, REGION, SECRET_KEY

ROOT = Path(__file__).resolve().parents[2]
# The packages of `pip install sparkwal`: install_requires of setup.cfg and their requirements.
BASE = ("pyarrow", "isal", "msgspec", "botocore", "jmespath", "dateutil", "urllib3", "six")


def make(folder: Path, *requirements: object, sees_tests: bool) -> Path:
    """The Python of a fresh venv with these requirements, without what they require.

    Args:
        sees_tests: whether it finds the rest in the tests' own Python.
    """
    # Without pip: one of another venv takes part of a second, not ten.
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    if sees_tests:
        # After the venv's own path, which comes first.
        (site,) = (folder / "lib").glob("python*/site-packages")
        (site / "tests.pth").write_text(sysconfig.get_path("purelib"))
    if requirements:
        pip(python, "install", "--no-deps", "--no-compile", *requirements)
    return python


def see(python: Path, *packages: str) -> None:
    """Let another Python import some packages of the tests' own, and no others."""
    (site,) = (python.parents[1] / "lib").glob("python*/site-packages")
    there = Path(sysconfig.get_path("purelib"))
    for name in packages:
        (found,) = [path for path in there.iterdir() if path.name in (name, f"{name}.py")]
        (site / found.name).symlink_to(found)


def pip(python: Path, *arguments: object) -> None:
    """pip of the tests' Python, for another one."""
    quiet = ("-q", "--disable-pip-version-check")
    # The modules that a fixture lets Spark's workers import are not installed in it.
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run(sys.executable, "-m", "pip", "--python", python, *arguments, *quiet, env=own)


def run(
    *command: object, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """A command that must succeed, with all that it printed."""
    done = subprocess.run([*map(str, command)], env=env, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done


def clean(**more: object) -> dict[str, str]:
    """An environment as of `env -i`, without the variables of the tests."""
    kept = {
        name: os.environ[name]
        for name in ("JAVA_HOME", "SPARK_SUBMIT_OPTS", "LANG")
        if name in os.environ
    }
    own = {name: str(value) for name, value in more.items()}
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "SPARK_LOCAL_IP": "127.0.0.1"} | kept | own


def reaches(s3: str) -> dict[str, str]:
    """How sparkwal reaches a local S3 server, by its environment alone."""
    return {
        "AWS_ENDPOINT_URL": s3,
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
