"""Rows that an Iceberg table refused are written again after it was changed, each once."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitStateUnknownException

import sparkwal
from sparkwal.errors import WriteError
from sparkwal.format.lifecycle_record import Promise
from sparkwal.lifecycle.iceberg.refused import IcebergRefused
from sparkwal.lifecycle.iceberg.table import IcebergTable
from sparkwal.lifecycle.known_log import Again
from tests.all_types import JSON_COLUMNS, json_rows
from tests.cli.logs import ran
from tests.lifecycle.iceberg_table import (
    Died,
    IcebergLake,
    expire,
    failing,
    ids,
)
from tests.lifecycle.test_iceberg_refused import LONG, REFUSED, aside, compact, lake, row, url

__all__ = ["lake", "url"]


def life(lake: IcebergLake, **target: Any) -> sparkwal.Lifecycle:
    return sparkwal.Lifecycle(lake.path, table=lake.target.table, **target)


def again(lake: IcebergLake, **target: Any) -> Again:
    return life(lake, **target).refused_again()


def mend(lake: IcebergLake) -> None:
    """The table takes rows without an id."""
    with lake.iceberg().update_schema() as change:
        change.make_column_optional("id")


def take_long_values(lake: IcebergLake, name: str = "v") -> None:
    """The table is partitioned by nothing any more."""
    with lake.iceberg().update_spec() as change:
        change.remove_field(name)


def refuse_long_values(lake: IcebergLake, name: str = "v") -> None:
    """The table is partitioned by this column, so it takes no long values of it."""
    with lake.iceberg().update_spec() as change:
        change.add_identity(name)


def counting(lake: IcebergLake) -> list[str]:
    """The values `v` of the refused rows that count."""
    log = lake.head().promise.logs["default"]
    rows = [each for each in aside(lake) if each["position"] < log.cut]
    return [json.loads(each["values"])["v"] for each in rows if each["range"] >= log.taken]


def values(lake: IcebergLake) -> list[Any]:
    return sorted((each["v"] for each in lake.found()), key=str)


def test_refused_rows_go_into_the_table_after_it_was_mended_and_others_stay(
    lake: IcebergLake,
) -> None:
    lake.append([row(1), row(None, "b"), row(3, LONG)], [row(None, "c")])
    compact(lake)
    assert values(lake) == ["a"] and len(aside(lake)) == 3
    mend(lake)
    assert again(lake) == Again(2, 1)
    assert values(lake) == ["a", "b", "c"]
    (left,) = aside(lake)
    assert json.loads(left["values"]) == row(3, LONG) and "too long" in left["reason"]
    # Nothing changed, so nothing is written, and the table may refuse each row.
    assert again(lake) == Again(0, 1)
    assert "refused rows: 1" in ran("refused", lake.path)
    take_long_values(lake)
    assert again(lake) == Again(1, 0)
    assert values(lake) == ["a", "b", "c", LONG] and aside(lake) == []
    assert again(lake) == Again(0, 0)
    assert "no refused rows" in ran("refused", lake.path)
    # The next range is an ordinary one, also after all older snapshots expired.
    expire(lake)
    lake.catalog.load_table(REFUSED).maintenance.expire_snapshots().older_than(
        datetime.now(UTC)
    ).commit()
    lake.append([row(4, "d")])
    compact(lake)
    assert values(lake) == ["a", "b", "c", "d", LONG]


TYPED = pa.schema([*JSON_COLUMNS, ("s", pa.map_(pa.string(), pa.int32())), ("p", pa.string())])
LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)


def test_a_row_of_each_type_is_as_it_was_written(url: str, tmp_path: Path) -> None:
    early = datetime(1, 1, 1, 0, 0, 0, 1, UTC)
    first_row, *more = json_rows(early, LAST)
    rows = [{**first_row, "s": [("", 1), ("b", None)]}, *more]
    lake = IcebergLake(tmp_path, table=url, schema=TYPED)
    lake.append([])
    bad = [{**each, "p": LONG} for each in rows]
    good = [{**each, "id": each["id"] + 1, "p": "x"} for each in rows]
    lake.prepare()
    refuse_long_values(lake, "p")
    lake.append([*bad, *good])
    compact(lake)
    assert ids(lake) == [3, 5, 7] and len(aside(lake)) == 3
    take_long_values(lake, "p")
    assert again(lake) == Again(3, 0)
    found = sorted(lake.found(), key=lambda each: int(each["id"]))
    assert [{**each, "id": each["id"] + 1, "p": "x"} for each in found[::2]] == found[1::2]
    # −0.0 equals 0.0.
    assert str(found[2]["d"]) == "-0.0" and found[0]["n"] == rows[0]["n"]


def keyed_lake(url: str, tmp_path: Path) -> IcebergLake:
    """A table that is partitioned by `v`, which decides what it refuses."""
    columns = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("v", pa.string())])
    return IcebergLake(tmp_path, table=url, schema=columns)


def numbered(*row: Any) -> dict[str, Any]:
    return dict(zip(("id", "n", "v"), row, strict=True))


KEYED: dict[str, Any] = {"keys": ["id"], "sequence_by": "n", "delete_when": "v = 'gone'"}


def test_by_keys_a_row_replaces_only_an_older_one(url: str, tmp_path: Path) -> None:
    lake = keyed_lake(url, tmp_path)
    bad = [numbered(key, 5, LONG) for key in (1, 2, 3, 4, 8)]
    lake.append([numbered(7, 1, "ok")])
    compact(lake, **KEYED)
    refuse_long_values(lake)
    lake.append(bad, [numbered(6, 3, LONG), numbered(6, 4, LONG), numbered(7, 2, "ok")])
    compact(lake, **KEYED)
    assert len(aside(lake)) == 7
    # Later rows of these keys: older, of the same sequence, newer, a delete.
    lake.append([numbered(1, 4, "old"), numbered(2, 5, "same"), numbered(3, 6, "new")])
    # A newer delete, and one of the same sequence.
    lake.append([numbered(4, 6, "gone"), numbered(8, 5, "gone")])
    compact(lake, **KEYED)
    take_long_values(lake)
    again(lake, **KEYED)
    found = sorted(tuple(each.values()) for each in lake.found())
    assert found == [(1, 5, LONG), (2, 5, "same"), (3, 6, "new"), (6, 4, LONG), (7, 2, "ok")]
    assert aside(lake) == []


def test_a_column_that_came_later_keeps_its_value(url: str, tmp_path: Path) -> None:
    lake = keyed_lake(url, tmp_path)
    target: dict[str, Any] = {"keys": ["id"], "sequence_by": "n"}
    lake.append([numbered(4, 1, "ok")])
    compact(lake, **target)
    refuse_long_values(lake)
    lake.append([numbered(1, 9, LONG), numbered(2, 9, LONG), numbered(3, 1, "ok")])
    compact(lake, **target)
    wider = lake.schema.append(pa.field("w", pa.string()))
    lake.append([{**numbered(1, 2, "ok"), "w": "kept"}], schema=wider)
    compact(lake, **target)
    take_long_values(lake)
    assert again(lake, **target) == Again(2, 0)
    found = sorted(tuple(each.values()) for each in lake.found())
    assert found == [
        (1, 9, LONG, "kept"),
        (2, 9, LONG, None),
        (3, 1, "ok", None),
        (4, 1, "ok", None),
    ]


def test_a_row_that_fits_no_column_any_more_stays_aside(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.append([row(1), row(None, "b"), row(None, "c"), row(None, "d"), row(None, "e")])
    compact(lake)
    mend(lake)
    texts = ['{"id":1.5,"v":"b"}', '{"id":2,"old":1}', '{"id":7,"old":null}', "none"]
    real = IcebergRefused.waiting

    def waiting(table: IcebergRefused, promise: Promise) -> pa.Table:
        rows = real(table, promise)
        values = [texts[number - 1] for number in rows["row"].to_pylist()]
        index = rows.schema.get_field_index("values")
        return rows.set_column(index, "values", pa.array(values, pa.string()))

    # As if the columns had been others once.
    monkeypatch.setattr(IcebergRefused, "waiting", waiting)
    assert again(lake) == Again(1, 3)
    assert ids(lake) == [1, 7]
    reasons = [each["reason"] for each in aside(lake)]
    assert reasons[0] == "its id is no bigint" and reasons[2] == "its values are no JSON object"
    assert reasons[1] == "the table has no column old of a type that a log has"


ERRORS: list[tuple[Callable[[], BaseException], bool]] = [
    (Died, False),
    (Died, True),
    (lambda: CommitStateUnknownException("no answer"), True),
]


@pytest.mark.long
@pytest.mark.parametrize(("error", "after"), ERRORS)
def test_each_row_is_in_one_of_the_two_whichever_call_of_the_catalog_fails(
    lake: IcebergLake, error: Callable[[], BaseException], *, after: bool
) -> None:
    expected: list[str] = []
    for nth in range(60):
        if nth:
            refuse_long_values(lake)
        lake.append([row(2 * nth), row(None, str(nth)), row(2 * nth + 1, f"{nth:03}{LONG}")])
        expected += ["a", f"{nth:03}{LONG}"]
        compact(lake)
        take_long_values(lake)
        with failing(nth, error, after=after) as calls, suppress(Died, sparkwal.SparkWalError):
            again(lake)
        if nth % 2:
            # Also a process without the option finishes it.
            life(lake).run_once()
        again(lake)
        assert values(lake) == sorted(expected), f"after call {nth}: {calls}"
        assert counting(lake) == [*map(str, range(nth + 1))], f"after call {nth}: {calls}"
        if len(calls) <= nth:
            break
    assert nth > 12
    log = lake.head().promise.logs["default"]
    assert log.rows_aside == nth + 1


def test_a_range_that_the_table_refuses_after_all_is_given_up_and_its_rows_wait(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.append([row(1), row(None, "b")])
    compact(lake)
    mend(lake)

    def refuses(table: IcebergTable, *arguments: Any) -> None:
        raise WriteError("the table refuses it now")

    with monkeypatch.context() as patch:
        patch.setattr(IcebergTable, "write", refuses)
        with pytest.raises(WriteError, match="refuses it now"):
            again(lake)
    assert values(lake) == ["a"] and len(aside(lake)) == 1
    assert again(lake) == Again(1, 0) and values(lake) == ["a", "b"]
