"""Runs of a compaction into an Iceberg table, with what others do between two calls of its catalog.

They are the search for the mutations of the rules that only Iceberg has.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

import sparkwal
from sparkwal.errors import ConfirmError, PlanError
from tests.lifecycle.iceberg_table import (
    NAME,
    IcebergLake,
    cherry_pick,
    compact,
    configure,
    expire,
    failing,
    meanwhile,
)
from tests.lifecycle.lakes import value

Work = Callable[[IcebergLake], object]
# A row that another writer adds.
_OTHERS = 1000


def ids(lake: IcebergLake) -> list[int]:
    return sorted(row["id"] for row in lake.found())


def others(lake: IcebergLake) -> None:
    """Another writer appends a row."""
    lake.iceberg().append(pa.Table.from_pylist([value(_OTHERS)], lake.schema))


def roll_back(lake: IcebergLake) -> None:
    """The table goes back to the snapshot before its newest."""
    before = lake.iceberg().history()[-2].snapshot_id
    lake.iceberg().manage_snapshots().rollback_to_snapshot(before).commit()


def compact_and_roll_back(lake: IcebergLake) -> None:
    """Another process brings the range, and the table goes back to before it."""
    compact(lake)
    roll_back(lake)


def compact_and_expire(lake: IcebergLake) -> None:
    """Another process brings the range, and all older snapshots expire."""
    compact(lake)
    expire(lake)


# What happens, and whether the table then lacks rows that were confirmed.
EVENTS: dict[str, tuple[Work, bool]] = {
    "nothing": (lambda lake: None, False),
    "another compaction": (compact, False),
    "another writer": (others, False),
    "an expiry": (expire, False),
    "another compaction, and an expiry": (compact_and_expire, False),
    "a rollback": (roll_back, True),
    "another compaction, and a rollback": (compact_and_roll_back, True),
}
# What the catalog answers to the commit of a range that it took.
ANSWERS = {
    "a lost answer": lambda: CommitStateUnknownException("lost"),
    "a conflict with itself": lambda: CommitFailedException("409"),
}


@contextmanager
def lake_in_a_folder(version: int = 2) -> Iterator[IcebergLake]:
    """A log with rows 1 and 2, each a range of its table, and row 3, which is new."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        lake = IcebergLake(name, table=configure(patch, Path(name)))
        lake.catalog.create_namespace("db")
        properties = {"format-version": str(version)}
        lake.catalog.create_table(NAME, lake.schema, properties=properties)
        for number in (1, 2):
            lake.append([value(number)])
            compact(lake)
        lake.append([value(3)])
        yield lake


def run(event: str, *, between: bool) -> None:
    """One event, before the first commit of a range, or between two compactions.

    Raises:
        AssertionError: a row is missing or there twice, or missing rows were not noticed.
    """
    work, loses = EVENTS[event]
    with lake_in_a_folder() as lake:
        before = ids(lake)
        if between:
            work(lake)
        with nullcontext() if between else meanwhile(lambda: work(lake)):
            try:
                compact(lake)
            except ConfirmError:
                assert loses, event
        if loses:
            assert set(ids(lake)) < {1, 2, 3}, event
            assert len(ids(lake)) <= len(before), f"{event}: a range came after the rollback"
            with pytest.raises(ConfirmError):
                compact(lake)
            return
        check(lake, [1, 2, 3], event)
        expire(lake)
        lake.append([value(4)])
        compact(lake)
        check(lake, [1, 2, 3, 4], event)


def check(lake: IcebergLake, rows: list[int], event: str) -> None:
    """Each row of the log is there once, and each of another writer."""
    found = [number for number in ids(lake) if number != _OTHERS]
    assert found == rows, f"{event}: {ids(lake)}"
    assert (_OTHERS in ids(lake)) == (EVENTS[event][0] is others), event


def run_answer(answer: str) -> None:
    """The catalog took a range, and does not say so."""
    with lake_in_a_folder() as lake:
        with failing(0, ANSWERS[answer], after=True, only="commit_table"):
            compact(lake)
        assert ids(lake) == [1, 2, 3], answer


def run_old_format() -> None:
    """A table of version 1 has no sequence numbers, so a late commit would pass a rollback."""
    with pytest.raises(PlanError, match="format-version"), lake_in_a_folder(1) as lake:
        with meanwhile(lambda: compact_and_roll_back(lake)), pytest.raises(ConfirmError):
            compact(lake)
        assert ids(lake) == [1, 2]


def run_picked(*, expires: bool = False) -> None:
    """A user takes another writer's rows back, and picks the range that came after them."""
    with lake_in_a_folder() as lake:
        others(lake)
        lake.intent()
        lake.write()
        table = lake.iceberg()
        *_, before, _, written = [entry.snapshot_id for entry in table.history()]
        table.manage_snapshots().rollback_to_snapshot(before).commit()
        cherry_pick(lake.iceberg(), written)
        if expires:
            lake.iceberg().maintenance.expire_snapshots().by_id(written).commit()
        with pytest.raises(ConfirmError):
            compact(lake)
        sparkwal.Lifecycle(lake.path, table=lake.target.table).accept_table()
        compact(lake)
        assert ids(lake) == [1, 2, 3], "a range that was picked is there twice"
        lake.append([value(4)])
        compact(lake)
        assert ids(lake) == [1, 2, 3, 4]


def run_many() -> None:
    """All runs."""
    run_old_format()
    for event in EVENTS:
        for between in (False, True):
            run(event, between=between)
    for answer in ANSWERS:
        run_answer(answer)
    for expires in (False, True):
        run_picked(expires=expires)
