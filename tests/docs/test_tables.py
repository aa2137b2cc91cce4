"""The tables in the documentation say what the code says."""

from __future__ import annotations

import pytest

from .tables import TABLES, found


@pytest.mark.parametrize(("page", "opening"), TABLES)
def test_the_table_is_made_from_the_code(page: str, opening: str) -> None:
    assert found(page, opening) == TABLES[page, opening](), "run python -m tests.docs.tables"
