"""The index of symptoms."""

from __future__ import annotations

import re

from sparkwal.errors import SparkWalError
from tests.docs.pages import ROOT


def test_the_page_has_advice_for_each_error() -> None:
    page = (ROOT / "sparkwal/docs/operations.md").read_text()
    rows = re.findall(r"^\| `(\w+Error)` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted(kind.__name__ for kind in SparkWalError.__subclasses__())


def test_no_text_installs_a_package_that_no_index_has() -> None:
    """Whoever registers its name would run as root in the images of those who copy the line."""
    released = "not released yet" not in (ROOT / "sparkwal/docs/changelog.md").read_text()
    files = [ROOT / "README.md"]
    for folder in ("sparkwal", "jobs", "notebooks", "conf", ".github"):
        files += (ROOT / folder).rglob("*")
    places = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in files
        if path.suffix in (".md", ".py", ".sh", ".ipynb", ".yml")
        for line in path.read_text().splitlines()
        if re.search(r"""pip install (-\S+ )*['"]?sparkwal\b""", line)
    ]
    assert released or places == []
