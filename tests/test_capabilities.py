"""The capabilities of each Spark, as the tests know them."""

from __future__ import annotations

import pytest

from tests import capabilities


@pytest.mark.parametrize(
    ("version", "lacks"),
    [
        ("4.0.4", {"PIPELINES", "TIME", "SPATIAL", "READ_LIMITS", "NAMED_SOURCES"}),
        ("4.1.4", {"READ_LIMITS", "NAMED_SOURCES"}),
        ("4.2.1", set()),
        ("4.3.0", {"DELTA"}),
    ],
)
def test_a_spark_lacks_what_came_later_and_what_is_not_there_yet(
    version: str, lacks: set[str]
) -> None:
    names = {"PIPELINES", "TIME", "SPATIAL", "READ_LIMITS", "NAMED_SOURCES", "DELTA"}
    assert {name for name in names if not capabilities.has(name, version)} == lacks


def test_a_capability_with_a_wrong_name_is_no_skip() -> None:
    with pytest.raises(AttributeError):
        capabilities.has("TIMES", "4.0.4")
