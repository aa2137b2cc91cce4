"""`tests/run.sh` tests what pip installed, not the tree beside it."""

from __future__ import annotations

import ast
import re
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


def _texts(module: ast.Module) -> set[str]:
    """All texts of a module but its docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {
        ast.get_docstring(each, clean=False)
        for each in ast.walk(module)
        if isinstance(each, documented)
    }
    texts = {each.value for each in ast.walk(module) if isinstance(each, ast.Constant)}
    return {text for text in texts - docs if isinstance(text, str)}


def test_no_message_names_a_file_that_is_not_installed() -> None:
    missing = []
    for source in sorted((ROOT / "sparkwal").rglob("*.py")):
        for text in _texts(ast.parse(source.read_text())):
            for name in re.findall(r"\b(?:jobs|tests|conf|notebooks|docs)/[\w.-]+|README\S*", text):
                if not (ROOT / "sparkwal" / name).exists():
                    missing.append(f"{source.name}: {name}")
    assert missing == []
