"""The tables of the documentation equal the code."""

from __future__ import annotations

import pytest

from tests.docs.tables import KEYWORDS, PAGES, TABLES, keywords, table

AGAIN = "run python -m tests.docs.tables"


@pytest.mark.parametrize(("page", "heading"), TABLES)
def test_the_table_is_made_from_the_code(page: str, heading: str) -> None:
    assert table((PAGES / page).read_text(), heading)["table"] == TABLES[page, heading](), AGAIN


def test_the_types_of_the_keywords_are_made_from_the_options() -> None:
    assert KEYWORDS.read_text() == keywords(), AGAIN
