"""`tests/run.sh` tests what pip installed, not the tree beside it."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest

import sparkwal

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(
    not sys.flags.safe_path, reason="started without -P, so that the working tree comes first"
)
def test_run_sh_tests_the_installed_package() -> None:
    assert Path(sparkwal.__file__).parents[1] == Path(sysconfig.get_path("purelib"))


@pytest.mark.skipif(not sys.flags.safe_path, reason="nothing is installed for this run")
def test_every_file_of_the_tree_is_installed() -> None:
    def files(package: Path) -> set[str]:
        found = (path for path in package.rglob("*") if path.suffix in (".py", ".md", ".typed"))
        return {str(path.relative_to(package)) for path in found}

    there = {name for name in files(ROOT / "sparkwal") if "pyspark_weaselwal" not in name}
    assert files(Path(sparkwal.__file__).parent) == there
