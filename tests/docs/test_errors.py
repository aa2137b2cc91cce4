"""The README's table of errors."""

from __future__ import annotations

import re

from sparkwal.errors import SparkWalError

from .pages import ROOT


def test_the_readme_tells_what_to_do_about_each_error() -> None:
    rows = re.findall(r"^\| `(\w+Error)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(kind.__name__ for kind in SparkWalError.__subclasses__())
