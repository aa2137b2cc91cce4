"""A protocol with one rule broken does not survive the search: the search can fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import sparkwal

from .mutation import Mutation
from .mutations import MUTATIONS

TESTS = Path(__file__).parents[2]

# The first test waits for the searches of all mutations.
pytestmark = pytest.mark.timeout(2400)


def _hunt(mutation: Mutation, folder: Path) -> subprocess.CompletedProcess[str]:
    shutil.copytree(
        Path(sparkwal.__file__).parent,
        folder / "sparkwal",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copytree(TESTS / "tests" / "simulation", folder / "simulation")
    inside = "" if mutation.file.startswith("simulation/") else "sparkwal"
    file = folder / inside / mutation.file
    text = file.read_text()
    for old, new in filter(None, [(mutation.old, mutation.new), mutation.also]):
        assert old in text, f"{mutation.file} no longer has {old!r}"
        text = text.replace(old, new)
    file.write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "simulation.hunt", mutation.where],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}:{TESTS / 'tests'}"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def hunts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, subprocess.CompletedProcess[str]]:
    with ThreadPoolExecutor(2) as pool:
        done = pool.map(
            lambda item: _hunt(item[1], tmp_path_factory.mktemp(f"mutation{item[0]}")),
            enumerate(MUTATIONS),
        )
        return {mutation.name: found for mutation, found in zip(MUTATIONS, done, strict=True)}


@pytest.mark.parametrize("name", [mutation.name for mutation in MUTATIONS])
def test_the_search_catches(name: str, hunts: dict[str, subprocess.CompletedProcess[str]]) -> None:
    found = hunts[name]
    assert found.returncode == 0, f"not caught\n{found.stdout}\n{found.stderr}"
    assert found.stdout
