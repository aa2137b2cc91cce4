"""A protocol with one rule broken does not survive the search: the search can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.mutations import MUTATIONS

TESTS = Path(__file__).parents[1]

# The first test waits for the searches of all mutations.
pytestmark = [pytest.mark.timeout(2400), pytest.mark.slow]


@pytest.fixture(scope="module")
def hunts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hunts")
    # It imports the library that this process does.
    places = os.pathsep.join([*sys.path, str(TESTS.parent), str(TESTS)])
    with (folder / "log").open("w") as log:
        subprocess.run(
            [sys.executable, "-P", "-m", "tests.simulation.hunt", str(folder)],
            env={**os.environ, "PYTHONPATH": places},
            stdout=log,
            stderr=log,
            check=False,
        )
    return folder


@pytest.mark.parametrize("number", range(len(MUTATIONS)), ids=lambda n: MUTATIONS[n].name)
def test_the_search_catches(number: int, hunts: Path) -> None:
    found = hunts / str(number)
    assert found.exists(), f"not caught\n{(hunts / 'log').read_text()}"
    # A mutation that names what its module lacks breaks no rule.
    assert found.read_text() and not found.read_text().startswith("NameError")
