"""The wheel of this tree, built once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploying.building import build, copy


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy(tmp_path_factory.mktemp("clone") / "sparkwal")


@pytest.fixture(scope="session")
def wheel(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(clone, tmp_path_factory.mktemp("wheel"), "wheel")
