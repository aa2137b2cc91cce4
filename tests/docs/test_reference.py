"""The reference documents what is public, and docstrings have the sections that it shows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import cache

import griffe
import pytest

import sparkwal
from tests.docs.pages import ROOT
from tests.docs.site import REFERENCE

# griffe asks git where the package lies.
pytestmark = pytest.mark.process

NAMES = [name for _, names in REFERENCE.values() for name in names]
# They raise nothing on purpose.
SAFE = {
    "Appender.wait_room",
    "Appender.subscribe",
    "AsyncAppender.subscribe",
    "format.header.CommitHeader.metric",
}
# Only the library makes their objects.
RETURNED = {"Ticket", *(name for name in sparkwal.__all__ if name.endswith("Error"))}


@cache
def package() -> griffe.Module:
    """The package as mkdocstrings reads it: parsed, not imported."""
    loader = griffe.GriffeLoader(search_paths=[ROOT], docstring_parser="google")
    module = loader.load("sparkwal")
    assert isinstance(module, griffe.Module)
    return module


def public(item: griffe.Object | griffe.Alias) -> Iterator[griffe.Object | griffe.Alias]:
    """An object of the reference, and its public members."""
    yield item
    if item.is_class:
        for name, member in item.all_members.items():
            if not name.startswith("_"):
                yield member


def functions() -> Iterator[tuple[str, griffe.Object | griffe.Alias]]:
    """Each public function and method with its path. A class counts as its constructor."""
    for name in NAMES:
        for item in public(package()[name]):
            is_made = item.is_class and name in sparkwal.__all__ and name not in RETURNED
            if is_made or (item.is_function and "property" not in item.labels):
                yield item.path.removeprefix("sparkwal."), item


def sections(item: griffe.Object | griffe.Alias) -> dict[str, griffe.DocstringSection]:
    assert item.docstring is not None, f"{item.path} has no docstring"
    return {section.kind.value: section for section in item.docstring.parsed}


def test_the_reference_documents_what_is_public() -> None:
    assert sorted(name for name in NAMES if "." not in name) == sorted(sparkwal.__all__)


def test_ruff_asks_for_docstrings_in_each_module_of_the_reference() -> None:
    modules = {package()[name].canonical_path.rpartition(".")[0] for name in NAMES}
    # The classes of headers share a module with many private ones.
    for module in sorted(modules - {"sparkwal.format.header"}):
        path = ROOT / module.replace(".", "/")
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        command = [sys.executable, "-m", "ruff", "check", "--stdin-filename", str(file), "-"]
        checked = subprocess.run(
            command, input="def f() -> None: ...\n", capture_output=True, text=True, cwd=ROOT
        )
        assert "D103" in checked.stdout, file


def test_each_name_and_each_public_member_has_a_docstring() -> None:
    for name in NAMES:
        for item in public(package()[name]):
            if not item.is_attribute or "property" in item.labels:
                assert item.docstring, item.path


def test_a_docstring_names_each_argument_and_no_other() -> None:
    wrong = []
    for path, item in functions():
        arguments = [one.name for one in item.parameters if one.name not in ("self", "cls")]
        section = sections(item).get("parameters")
        documented = [one.name for one in section.value] if section else []
        if [name.lstrip("*") for name in documented] != [name.lstrip("*") for name in arguments]:
            wrong.append(f"{path}: {arguments}, documented are {documented}")
    assert wrong == []


def test_a_docstring_names_the_result_and_the_errors() -> None:
    wrong = []
    for path, item in functions():
        kinds = sections(item).keys()
        returns = item.is_function and str(item.returns) != "None"
        if returns and not {"returns", "yields"} & kinds:
            wrong.append(f"{path} returns {item.returns}")
        if "raises" not in kinds and path not in SAFE:
            wrong.append(f"{path} has no section Raises")
    assert wrong == []
