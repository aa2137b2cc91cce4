"""Every interleaving of small configurations of the real protocol code keeps every promise."""

from __future__ import annotations

import pytest

from .configurations import exhaustive

CONFIGURATIONS = exhaustive()


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_interleaving_breaks_a_promise(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = CONFIGURATIONS[name].explore()
    with capsys.disabled():
        print(f"\n  {name}: {report.states:,} states, {report.steps:,} steps")
    # Fewer would mean that the processes ended early, and the search proved nothing.
    assert report.states > 30
