"""Deleted keys whose older rows come late, without Spark: wherever the ranges are cut, the table,
and table and log as one, are the same."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparkwal.errors import ConfirmError, OptionError
from sparkwal.format.lifecycle_record import MERGE, Target
from sparkwal.lifecycle.delta.files import StoreFiles
from sparkwal.lifecycle.merging.keyed import older_rows
from sparkwal.lifecycle.opening import check_apart
from tests.delta_rs_table import rank
from tests.lifecycle.iceberg_table import lake_of
from tests.lifecycle.lakes import STAGES, Lake

pytestmark = pytest.mark.long

SCHEMA = pa.schema(
    [("a", pa.int64()), ("b", pa.string()), ("n", pa.float64()), ("gone", pa.bool_())]
)
NAN = float("nan")
WEEK_MS = 7 * 86_400_000


def row(n: float | None, *, gone: bool = False, a: int | None = 1) -> dict[str, Any]:
    return {"a": a, "b": None, "n": None if n is None else float(n), "gone": gone}


def rows(found: pa.Table) -> Counter[str]:
    return Counter(repr(tuple(each.values())) for each in found.to_pylist())


def current(lake: Lake) -> Counter[str]:
    return rows(lake.reader().current().to_arrow())


def table(lake: Lake) -> Counter[str]:
    return of(*lake.found())


def of(*expected: dict[str, Any]) -> Counter[str]:
    return Counter(repr(tuple(each.values())) for each in expected)


@pytest.fixture(params=["delta-rs", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    make = lake_of(request.param, tmp_path, monkeypatch)
    return make("a", "b", sequence_by="n", delete_when="gone", tombstone_horizon_ms=WEEK_MS)


@pytest.mark.parametrize("cuts", [(3,), (1, 3), (2, 3), (1, 2, 3)])
def test_a_late_row_does_not_bring_a_deleted_key_back(lake: Lake, cuts: tuple[int, ...]) -> None:
    changes = [row(1), row(10, gone=True), row(5)]
    lake.append([row(0)], schema=SCHEMA)
    lake.compact()
    done = 0
    for cut in cuts:
        lake.append(changes[done:cut], schema=SCHEMA)
        before = current(lake)
        lake.compact()
        assert current(lake) == before == table(lake)
        done = cut
    assert table(lake) == of()
    lake.append([row(11)], schema=SCHEMA)
    assert current(lake) == of(row(11))


@pytest.mark.parametrize(
    ("deleted", "late", "is_back"),
    [
        (5.0, 5.0, True),
        (5.0, None, False),
        (None, None, True),
        (None, 5.0, True),
        (NAN, 5.0, False),
        (NAN, None, False),
        (NAN, NAN, True),
        (5.0, NAN, True),
        (0.0, -0.0, True),
    ],
)
def test_ties_nulls_and_nan_are_those_of_the_table(
    lake: Lake, deleted: float | None, late: float | None, is_back: bool
) -> None:
    lake.append([row(None)], schema=SCHEMA)
    lake.append([row(deleted, gone=True)], schema=SCHEMA)
    lake.compact()
    lake.append([row(late)], schema=SCHEMA)
    expected = of(row(late)) if is_back else of()
    assert current(lake) == expected
    lake.compact()
    assert table(lake) == current(lake) == expected


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_the_greatest_row_of_each_key_stays_at_every_stage(lake: Lake, seed: int) -> None:
    random_ = random.Random(seed)
    first = row(None)
    lake.append([first], schema=SCHEMA)
    lake.compact()
    model: dict[Any, dict[str, Any]] = {(1, None): first}
    # Delta-rs finds no NaN equal to another.
    sequences = [None, 0.0, 1.0, 2.0, 3.0, 4.0]
    for _ in range(8):
        batch = []
        for _ in range(random_.randrange(1, 8)):
            each = {
                "a": random_.choice([1, 2, None]),
                "b": random_.choice(["x", None]),
                "n": random_.choice(sequences),
                "gone": random_.choice([True, False, None]),
            }
            batch.append(each)
            key = (each["a"], each["b"])
            if key not in model or rank(each["n"]) >= rank(model[key]["n"]):
                model[key] = each
        lake.append(batch, schema=SCHEMA)
        expected = of(*(each for each in model.values() if not each["gone"]))
        assert current(lake) == expected
        stage = random_.choice([*STAGES, "kept"])
        lake.compact(stage)
        assert current(lake) == expected, (seed, stage)
        if lake.head().is_open:
            if stage != "written":
                lake.write()
                assert current(lake) == expected, (seed, stage)
            lake.done()
        if lake.head().cut == lake.end:
            assert table(lake) == expected
        assert current(lake) == expected, (seed, stage)


def test_tombstones_that_were_restored_are_an_error(lake: Lake) -> None:
    for each in (row(10, gone=True), row(12)):
        lake.append([each], schema=SCHEMA)
        lake.compact()
    lake.append([row(5)], schema=SCHEMA)
    lake.restore_tombstones()
    with pytest.raises(ConfirmError, match=r"Restore .*_tombstones to version \d+, or delete"):
        lake.reader().current()


def test_missing_tombstones_are_an_error(lake: Lake) -> None:
    lake.append([row(10, gone=True)], schema=SCHEMA)
    lake.compact()
    lake.append([row(5)], schema=SCHEMA)
    lake.lose_tombstones()
    with pytest.raises(ConfirmError, match="which keeps the deleted keys .* is missing"):
        lake.reader().current()


def test_a_read_without_newer_rows_needs_no_tombstones(lake: Lake) -> None:
    lake.append([row(10)], schema=SCHEMA)
    lake.compact()
    lake.lose_tombstones()
    assert current(lake) == of(row(10))


def test_a_reader_meets_tombstones_of_a_range_that_the_table_gets_next(lake: Lake) -> None:
    lake.append([row(1)], schema=SCHEMA)
    lake.compact()
    lake.append([row(10, gone=True)], schema=SCHEMA)
    lake.compact("kept")
    lake.append([row(10), row(11, a=2)], schema=SCHEMA)
    assert current(lake) == of(row(10), row(11, a=2))


def test_later_deletes_do_not_change_a_pinned_state(lake: Lake) -> None:
    lake.append([row(1)], schema=SCHEMA)
    lake.compact()
    lake.append([row(5)], schema=SCHEMA)
    pinned = lake.reader().current()
    lake.append([row(10, gone=True)], schema=SCHEMA)
    lake.compact()
    assert rows(pinned.to_arrow()) == of(row(5))
    assert current(lake) == of()


def test_a_delete_of_one_log_counts_for_the_rows_of_another(tmp_path: Path) -> None:
    how: dict[str, Any] = {
        "sequence_by": "n",
        "delete_when": "gone",
        "tombstone_horizon_ms": WEEK_MS,
    }
    one, two = (Lake(tmp_path, "a", "b", sequencer=name, **how) for name in "xy")
    one.append([row(1)], schema=SCHEMA)
    one.compact()
    one.append([row(10, gone=True)], schema=SCHEMA)
    one.compact()
    two.append([row(5), row(6, a=2)], schema=SCHEMA)
    found = two.reader().current(sequencers="*")
    assert rows(found.to_arrow()) == of(row(6, a=2))


def test_a_tombstone_counts_for_rows_that_are_older() -> None:
    """More rows than are compared at once, several tombstones of a key, and keys of each type."""
    schema = pa.schema([("k", pa.struct([("x", pa.float64())])), ("n", pa.int64())])

    def each(*values: tuple[float | None, int | None]) -> pa.Table:
        return pa.Table.from_pylist([{"k": {"x": x}, "n": n} for x, n in values], schema)

    tail = each((0.0, 5), (NAN, 5), (None, None), (1.0, 9), (2.0, 1), (3.0, None))
    kept = each((-0.0, 6), (NAN, 1), (NAN, 7), (None, 1), (1.0, 9), (4.0, 9), (2.0, 2))
    found = older_rows(iter(kept.to_batches(2)), tail, ["k"], "n")
    assert found.to_pylist() == [True, True, True, False, True, False]


def test_a_place_that_has_none_beside_it_or_is_the_logs_is_refused() -> None:
    keys = Target("s3://b/t", MERGE, ("k",), "n", "gone", tombstone_horizon_ms=WEEK_MS)
    check_apart("s3://b/log", keys)
    with pytest.raises(OptionError, match="keeps the deleted keys"):
        check_apart("s3://b/t_tombstones/log", keys)
    whole = Target("s3://b", MERGE, ("k",), "n", "gone", tombstone_horizon_ms=WEEK_MS)
    with pytest.raises(OptionError, match="whole bucket"):
        check_apart("s3://c/log", whole)


@pytest.mark.parametrize("keeps", [True, False])
def test_tombstones_cost_a_reader_one_list_and_their_newest_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    """Only a log with newer rows pays, and only with both options."""
    lake = Lake(
        tmp_path,
        "a",
        "b",
        sequence_by="n",
        delete_when="gone",
        tombstone_horizon_ms=WEEK_MS if keeps else 0,
    )
    for n in range(3):
        lake.append([row(n, gone=n == 1)], schema=SCHEMA)
        lake.compact()
    requests: list[str] = []
    sizes, read = StoreFiles.sizes, StoreFiles.read

    def list_(files: Any, start: int) -> Any:
        requests.append(f"LIST {files.table}")
        return sizes(files, start)

    def get(files: Any, name: str, *more: Any) -> bytes:
        requests.append(f"GET {files.table} {name}")
        return read(files, name, *more)

    monkeypatch.setattr(StoreFiles, "sizes", list_)
    monkeypatch.setattr(StoreFiles, "read", get)
    lake.reader().current()
    of_table = len(requests)
    assert not [request for request in requests if lake.target.tombstones in request]
    lake.append([row(1)], schema=SCHEMA)
    requests.clear()
    current(lake)
    looked = [request for request in requests if lake.target.tombstones in request]
    assert len(requests) - len(looked) == of_table
    names = [request.split()[-1] for request in looked]
    commits = [f"{version:020d}.json" for version in reversed(range(4))]
    where = lake.target.tombstones
    assert sorted(names) == (sorted(["_last_checkpoint", where, *commits]) if keeps else [])
