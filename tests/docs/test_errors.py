"""The index of symptoms."""

from __future__ import annotations

import re

from sparkwal.errors import SparkWalError
from tests.docs.pages import ROOT


def test_the_page_has_advice_for_each_error() -> None:
    page = (ROOT / "sparkwal/docs/operations.md").read_text()
    rows = re.findall(r"^\| `(\w+Error)` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted(kind.__name__ for kind in SparkWalError.__subclasses__())
