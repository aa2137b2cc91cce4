"""The tables of the documentation equal the code."""

from __future__ import annotations

import inspect

import pytest

import sparkwal
from sparkwal.metrics.stream import watch_stream
from tests.docs.tables import KEYWORDS, PAGES, TABLES, keywords, table

AGAIN = "run python -m tests.docs.tables"


@pytest.mark.parametrize(("page", "heading"), TABLES)
def test_the_table_is_made_from_the_code(page: str, heading: str) -> None:
    assert table((PAGES / page).read_text(), heading)["table"] == TABLES[page, heading](), AGAIN


def test_the_types_of_the_keywords_are_made_from_the_options() -> None:
    assert KEYWORDS.read_text() == keywords(), AGAIN


def test_no_public_function_takes_options_of_any_name() -> None:
    names = [name for name in sparkwal.__all__ if not name.endswith("Error")]
    functions = [*(getattr(sparkwal, name) for name in names), watch_stream]
    loose = [
        f"{function.__name__}(**{each.name}: {each.annotation})"
        for function in functions
        if callable(function)
        for each in inspect.signature(function).parameters.values()
        if each.kind is each.VAR_KEYWORD and "Keywords" not in str(each.annotation)
    ]
    assert loose == []
