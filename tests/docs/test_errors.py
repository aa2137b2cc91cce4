"""The table of errors."""

from __future__ import annotations

import re

from sparkwal.errors import SparkWalError

from .pages import ROOT


def test_the_page_tells_what_to_do_about_each_error() -> None:
    page = (ROOT / "sparkwal/docs/errors.md").read_text()
    rows = re.findall(r"^\| `(\w+Error)` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted(kind.__name__ for kind in SparkWalError.__subclasses__())
