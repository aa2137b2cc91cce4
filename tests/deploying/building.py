"""The distributions, built from a copy of what a clone has."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tests.deploying.environments import ROOT, run

NOT_CODE = ("README.md", "setup.cfg", "pyproject.toml", "MANIFEST.in")


def copy(folder: Path) -> Path:
    """All that goes into a distribution or must not, and nothing that was built before."""
    leave = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info", "build", "dist")
    for each in ("sparkwal", "jobs", "tests", "conf", "notebooks"):
        shutil.copytree(ROOT / each, folder / each, ignore=leave)
    for each in NOT_CODE:
        shutil.copy(ROOT / each, folder)
    return folder


def build(source: Path, to: Path, kind: str) -> Path:
    """The one distribution of this kind. Not a word of warning is allowed."""
    # --no-isolation: with the setuptools that is here, so that no test needs a network.
    # -P: a folder `build` beside it is no module.
    command = [sys.executable, "-P", "-W", "default", "-m", "build", "--no-isolation"]
    # With it setuptools warns that it compiles nothing.
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = run(*command, f"--{kind}", "--outdir", to, source, env=own)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "warn" in line.lower()]
    assert said == [], said
    (made,) = to.iterdir()
    return made
