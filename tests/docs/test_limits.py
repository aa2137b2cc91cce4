"""security.md names the limits of the code."""

from __future__ import annotations

import re

import pytest

from sparkwal.format import arrow_types, arrowfile, frames, limits, schema
from sparkwal.journal import segment
from sparkwal.lifecycle.merging import condition
from sparkwal.reading import rows
from tests.docs.tables import PAGES

UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
LIMITS = {
    "an object before its first frame": [arrowfile.LARGEST_FRONT],
    "the header of an object": [limits.HEADER],
    "a JSON text": [limits.JSON_VALUES, limits.JSON_LEVELS],
    "a schema": [schema.LONGEST, arrow_types.DEEPEST],
    "a frame, unpacked": [frames.LARGEST, 4 * 2**30, arrowfile.LARGEST_FRAME],
    "columns that a read adds to a frame": [rows.MAX_ADDED_BYTES],
    "a checkpoint in a record": [limits.CHECKPOINT, limits.CHECKPOINT_FILES],
    "the state of a query": [limits.STATE, limits.STATE_RECORDS],
    "a lifecycle record": [limits.LIFECYCLE_RECORD],
    "a consumer, a lease": [limits.CONSUMER, limits.CONSUMER_OF_ALL],
    "an archive of transactions": [limits.ARCHIVE],
    "a request to hand the log over": [limits.HANDOVER],
    "a delete condition": [condition.LONGEST, condition.DEEPEST],
    "a journal's notes, the header of its segment": [2**16, segment.LARGEST_HEADER],
}


def numbers(text: str) -> list[int]:
    """The numbers in a cell of the table, sizes in bytes."""
    return [
        int(number.replace(",", "")) * UNITS.get(unit, 1)
        for number, unit in re.findall(r"([0-9][0-9,]*)(?: ([KMG]iB))?", text)
    ]


def test_the_table_of_limits_has_a_row_for_each() -> None:
    assert {*rows_of_page()} == {*LIMITS}


@pytest.mark.parametrize("of", LIMITS)
def test_a_row_names_the_limits_of_the_code(of: str) -> None:
    assert numbers(rows_of_page()[of]) == LIMITS[of]


def rows_of_page() -> dict[str, str]:
    """The table below the heading, by its first column."""
    page = (PAGES / "security.md").read_text()
    _, _, after = page.partition("\n## Limits of what is read\n")
    cells = [line.strip("| ").split(" | ") for line in after.split("\n## ")[0].splitlines()]
    return {each[0]: each[1] for each in cells if len(each) == 2 and each[0] != "of"}
