"""The rules of a table, of whatever format: those that `sparkwal.lifecycle.table` states.

They run over tables in memory, a Delta table that delta-rs writes, and an Iceberg table.
tests/spark/tables/test_rules.py runs them over one that Spark writes. A new format adds a `Format`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest

from sparkwal.errors import ConfirmError, PlanError
from sparkwal.format.lifecycle_record import NO_TABLE_VERSION, Promise
from sparkwal.lifecycle.coordinator import Coordinator
from sparkwal.lifecycle.policy import Policy
from sparkwal.lifecycle.table import TableState, check_history, is_burned, snapshot_of
from tests.lifecycle.lakes import Lake
from tests.lifecycle.table import ModelTable

COLUMNS = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("gone", pa.bool_())])


class Format(Protocol):
    """A table of a format, and what others do to it."""

    lake: Lake

    def ids(self) -> list[int]:
        """The rows of the newest version, by their first column, sorted."""

    def touch(self) -> None:
        """Another writer makes a version with the same rows."""

    def restore(self, version: int) -> None:
        """The rows of an earlier version come back."""

    def overwrite(self, *ids: int) -> None:
        """Other rows replace all."""

    def make_again(self) -> None:
        """The table is dropped, and made again without rows."""

    def forget_history(self) -> None:
        """Another version comes, and the table loses the history before it, and no row."""


class InMemory:
    """A table in memory, whose versions have these numbers."""

    def __init__(self, lake: Lake, numbers: Callable[[int], int]) -> None:
        self.lake = lake
        self.lake.table = self._table = ModelTable(lake.log, lake.target, numbers)
        self._numbers = numbers

    def ids(self) -> list[int]:
        return sorted(self._table.rows)

    def touch(self) -> None:
        self._table.optimize()

    def restore(self, version: int) -> None:
        places = range(len(self._table.versions))
        self._table.restore(next(place for place in places if self._numbers(place) == version))

    def overwrite(self, *ids: int) -> None:
        self._table.overwrite([*ids])

    def make_again(self) -> None:
        self._table.make_again()

    def forget_history(self) -> None:
        self.touch()
        self._table.oldest = len(self._table.versions) - 1


class Delta:
    """A Delta table on a disk. delta-rs does what others do to it."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._url = lake.target.table

    def _table(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(self._url)

    def ids(self) -> list[int]:
        found: list[int] = pa.table(self._table().scan(columns=["id"])).column("id").to_pylist()
        return sorted(found)

    def touch(self) -> None:
        self._table().alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})

    def restore(self, version: int) -> None:
        self._table().restore(version)

    def overwrite(self, *ids: int) -> None:
        from deltalake import write_deltalake

        rows = pa.Table.from_pylist([row(number) for number in ids], COLUMNS)
        write_deltalake(self._url, rows, mode="overwrite")

    def make_again(self) -> None:
        shutil.rmtree(self._url)
        self.lake.prepare()

    def forget_history(self) -> None:
        self.touch()
        table = self._table()
        table.create_checkpoint()
        for version in range(table.version()):
            Path(self._url, "_delta_log", f"{version:020d}.json").unlink()


def unordered(place: int) -> int:
    """Numbers of versions in no order, as those of some formats."""
    return (place * 7_919 + 4_242) % 10_007


MakeFormat = Callable[..., Format]


@pytest.fixture(params=["memory", "memory, versions in no order", "delta-rs", "iceberg"])
def make_format(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> MakeFormat:
    """Makes a log with a table of a format, by the arguments of a `Lake`."""

    def make(*keys: str, **target: Any) -> Format:
        if request.param == "iceberg":
            from tests.lifecycle.iceberg_table import Iceberg, IcebergLake, configure

            url = configure(monkeypatch, tmp_path)
            return Iceberg(IcebergLake(tmp_path, *keys, table=url, schema=COLUMNS, **target))
        lake = Lake(tmp_path, *keys, schema=COLUMNS, **target)
        if request.param == "delta-rs":
            return Delta(lake)
        return InMemory(lake, unordered if "no order" in request.param else int)

    return make


@pytest.fixture
def of(make_format: MakeFormat) -> Format:
    """A log with the row 1 in its table, and the row 2 that is promised."""
    found = make_format()
    found.lake.append([row(1)])
    found.lake.carry()
    found.lake.append([row(2)])
    found.lake.intent()
    return found


def row(number: int, n: int = 0, *, gone: bool = False) -> dict[str, Any]:
    return {"id": number, "n": n, "gone": gone}


def promise(of: Format) -> Promise:
    return of.lake.head().promise


def now(of: Format) -> TableState:
    """The newest snapshot, with what happened since the confirmed version."""
    found = snapshot_of(promise(of), of.lake.table)
    assert found is not None
    return found


def ranges(of: Format) -> list[int]:
    return [change.k for change in now(of).changes if change.k]


def test_there_is_no_table_before_it_is_prepared(make_format: MakeFormat) -> None:
    of = make_format()
    of.lake.append([row(1)])
    log_id = of.lake.head().txn_id
    assert of.lake.table.snapshot(log_id, None) is None
    assert of.lake.table.held(log_id, NO_TABLE_VERSION) is None
    of.lake.prepare()
    first = of.lake.table.snapshot(log_id, NO_TABLE_VERSION)
    of.lake.prepare()
    assert first is not None and first == of.lake.table.snapshot(log_id, NO_TABLE_VERSION)
    assert first.k == 0 and first.newer == 1 and of.ids() == []


def test_a_range_is_one_version_that_names_its_positions(of: Format) -> None:
    of.lake.write()
    found = now(of)
    (change,) = found.changes
    (range_,) = promise(of).ranges
    assert (change.log_id, change.k) == promise(of).range_id
    assert (change.version, change.cut, change.to) == (found.version, range_.cut, range_.to)
    assert not change.undoes and not change.is_burned
    assert (found.k, found.newer, found.complete) == (2, 1, True)
    assert of.ids() == [1, 2]


def test_a_range_that_is_written_again_is_there_once(of: Format) -> None:
    first = promise(of)
    for _ in range(2):
        of.lake.write()
    assert ranges(of) == [2] and of.ids() == [1, 2]
    of.lake.done()
    of.lake.append([row(3)])
    of.lake.carry()
    # By a process that slept meanwhile.
    of.lake.table.write(first)
    assert of.ids() == [1, 2, 3]


def test_a_range_without_rows_is_a_version_too(of: Format) -> None:
    of.lake.write()
    of.lake.done()
    of.lake.append()
    assert of.lake.carry().k == 3 and of.ids() == [1, 2]


def test_only_the_versions_since_one_are_listed(of: Format) -> None:
    of.lake.write()
    found = now(of)
    log_id = promise(of).table.app_id
    table = of.lake.table
    everything = table.snapshot(log_id, NO_TABLE_VERSION)
    assert everything is not None and [each.k for each in everything.changes] == [0, 1, 2]
    for since, changes, newer in ((None, (), 0), (found.version, (), 0)):
        state = table.snapshot(log_id, since)
        assert state is not None and (state.changes, state.newer) == (changes, newer)
        assert (state.version, state.k, state.complete) == (found.version, 2, True)
    # No version has this number.
    unknown = table.snapshot(log_id, 123_456)
    assert unknown is not None and not unknown.complete


def test_a_burned_range_has_its_number_and_no_rows(of: Format) -> None:
    of.lake.table.burn(promise(of))
    found = now(of)
    assert found.k == 2 and is_burned(promise(of), found) and ranges(of) == [2]
    of.lake.table.write(promise(of))
    assert now(of) == found and of.ids() == [1]
    held = of.lake.table.held(*_since(of))
    assert held is not None and held.ranges == ()


def test_a_range_that_was_written_is_not_burned(of: Format) -> None:
    of.lake.write()
    of.lake.table.burn(promise(of))
    assert not is_burned(promise(of), now(of)) and of.ids() == [1, 2]


def _since(of: Format) -> tuple[str, int, int]:
    """The arguments of `held` for what came after the confirmed version."""
    return promise(of).table.app_id, promise(of).table.table_version, promise(of).confirmed_k


def test_what_another_writer_adds_undoes_nothing(of: Format) -> None:
    of.touch()
    of.lake.write()
    of.touch()
    found = now(of)
    check_history(promise(of), found)
    assert ranges(of) == [2] and found.newer == 3
    held = of.lake.table.held(*_since(of))
    assert held is not None and [change.k for change in held.ranges] == [2]
    assert held.overwrite is None and not held.unknown


def test_a_restore_takes_a_range_away_and_not_its_number(of: Format) -> None:
    of.lake.write()
    of.restore(promise(of).table.table_version)
    found = now(of)
    assert found.k == 2 and of.ids() == [1]
    with pytest.raises(ConfirmError, match="it may have removed rows"):
        check_history(promise(of), found)
    held = of.lake.table.held(*_since(of))
    assert held is not None and not held.unknown
    assert held.ranges == () and held.overwrite is None
    # Its number is taken.
    of.lake.table.write(promise(of))
    assert of.ids() == [1]


def test_a_restore_to_a_version_with_the_range_keeps_it(of: Format) -> None:
    of.lake.write()
    with_range = now(of).version
    of.touch()
    of.restore(promise(of).table.table_version)
    of.restore(with_range)
    held = of.lake.table.held(*_since(of))
    assert held is not None and not held.unknown
    assert [change.k for change in held.ranges] == [2] and of.ids() == [1, 2]


def test_a_restore_to_before_the_confirmed_version_is_not_known(of: Format) -> None:
    log_id, confirmed, k = _since(of)
    everything = of.lake.table.snapshot(log_id, NO_TABLE_VERSION)
    assert everything is not None
    of.restore(everything.changes[0].version)
    held = of.lake.table.held(log_id, confirmed, k)
    assert held is not None and "older" in held.unknown
    # Later restores count from the version that they bring back.
    of.restore(confirmed)
    held = of.lake.table.held(log_id, confirmed, k)
    assert held is not None and not held.unknown and held.ranges == ()
    of.lake.put("floor", table_version=held.table.version)
    of.restore(confirmed)
    held = of.lake.table.held(*_since(of))
    assert held is not None and not held.unknown, "two versions with the same rows"


def test_an_overwrite_leaves_no_range(of: Format) -> None:
    of.lake.write()
    of.overwrite(7)
    with pytest.raises(ConfirmError, match="it may have removed rows"):
        check_history(promise(of), now(of))
    held = of.lake.table.held(*_since(of))
    assert held is not None and held.ranges == () and not held.unknown
    assert held.overwrite is not None and held.overwrite.version == held.table.version


def test_a_history_that_does_not_reach_back_is_incomplete(of: Format) -> None:
    of.lake.write()
    of.forget_history()
    found = now(of)
    assert found.k == 2 and not found.complete
    with pytest.raises(ConfirmError, match="does not reach back"):
        check_history(promise(of), found)
    log_id, confirmed, k = _since(of)
    held = of.lake.table.held(log_id, confirmed, k)
    assert held is not None and "does not reach back" in held.unknown
    # It took no range since this one.
    held = of.lake.table.held(log_id, confirmed, k + 1)
    assert held is not None and not held.unknown


def test_a_table_that_was_made_again_has_another_id(of: Format) -> None:
    before = now(of)
    of.make_again()
    found = now(of)
    assert found.table_id != before.table_id and found.k == 0 and of.ids() == []
    with pytest.raises(ConfirmError, match="dropped and recreated"):
        check_history(promise(of), found)


def test_the_deleted_keys_of_a_range_have_its_number_and_a_table_of_their_own(
    make_format: MakeFormat,
) -> None:
    of = make_format("id", sequence_by="n", delete_when="gone", tombstone_horizon_ms=10**12)
    of.lake.append([row(1, 5, gone=True)])
    state = of.lake.intent()
    tombstones = of.lake.table.tombstones
    assert tombstones is not None
    log_id, k = state.range_id
    made = tombstones.snapshot(log_id, NO_TABLE_VERSION)
    assert made is not None and made.table_id == state.table.tombstones_id != state.table.table_id
    of.lake.table.snapshot(log_id, None)
    for _ in range(2):
        tombstones.write(state)
        found = tombstones.snapshot(log_id, made.version)
        assert found is not None and found.k == k and [each.k for each in found.changes] == [k]
    # After they were restored, the number is taken and the keys are not there.
    tombstones.write(state, is_repeated=True)
    held = tombstones.held(log_id, made.version)
    assert held is not None and held.table.k == k and {each.k for each in held.ranges} == {k}
    assert of.ids() == []


@pytest.mark.proves("lost-range-new-k")
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_lifecycle_continues_after_a_restore_that_a_user_accepted(
    of: Format, is_lost: bool
) -> None:
    """It promises a range that a restore took away again, and one that is there it does not."""
    of.lake.write()
    written = now(of).version
    of.touch()
    of.restore(promise(of).table.table_version if is_lost else written)
    life = Coordinator(
        of.lake.log, Policy(late_window_seconds=0), table=of.lake.table, collects=False
    )
    with pytest.raises(ConfirmError):
        life.run_once()
    kind = "intent" if is_lost else "done"
    assert life.accept_table().kind == kind
    of.lake.append([row(3)])
    for _ in range(2):
        life.run_once()
    assert of.ids() == [1, 2, 3]


def test_a_restore_to_before_the_confirmed_version_is_not_accepted(of: Format) -> None:
    everything = of.lake.table.snapshot(promise(of).table.app_id, NO_TABLE_VERSION)
    assert everything is not None
    of.restore(everything.changes[0].version)
    life = Coordinator(of.lake.log, Policy(), table=of.lake.table, collects=False)
    with pytest.raises(PlanError, match="older"):
        life.accept_table()
