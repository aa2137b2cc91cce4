"""Table and log read as one, without Spark."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import sparkwal
from sparkwal.errors import ConfirmError, OptionError, TableReadError
from sparkwal.events import CurrentRead, Event, RowsInTable, subscribe
from sparkwal.protocol.clock import Clock
from tests.all_types import one_row
from tests.lifecycle.lakes import SCHEMA, STAGES, Lake


def rows(current: Any) -> Counter[Any]:
    return Counter(tuple(row.values()) for row in current.to_arrow().to_pylist())


def values(*numbers: int) -> list[dict[str, Any]]:
    return [{"id": number, "v": f"v{number}"} for number in numbers]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def test_without_a_table_the_log_is_read_whole(lake: Lake) -> None:
    lake.append(values(1, 2))
    current = lake.reader().current()
    assert (current.table, current.table_version) == (None, None)
    assert current.position == lake.end - 1
    assert rows(current) == {(1, "v1"): 1, (2, "v2"): 1}


def test_a_missing_log_raises(lake: Lake) -> None:
    with pytest.raises(OptionError, match="there is no log"):
        lake.reader().current()


@pytest.mark.parametrize("stage", STAGES)
def test_appended_rows_are_read_once_at_every_stage_of_a_compaction(lake: Lake, stage: str) -> None:
    lake.append(values(1, 2))
    lake.compact()
    lake.append(values(2, 3))
    lake.compact(stage)
    lake.append(values(4))
    current = lake.reader().current()
    assert rows(current) == Counter([(1, "v1"), (2, "v2"), (2, "v2"), (3, "v3"), (4, "v4")])
    assert current.position == lake.end - 1
    assert current.table_version == DeltaTable(lake.target.table).version()


@pytest.mark.parametrize("stage", STAGES)
def test_the_first_compaction_has_every_stage_too(lake: Lake, stage: str) -> None:
    lake.append(values(1, 2))
    lake.compact(stage)
    lake.append(values(3))
    assert rows(lake.reader().current()) == Counter([(1, "v1"), (2, "v2"), (3, "v3")])


@pytest.mark.parametrize("by", [pytest.param("", marks=pytest.mark.slow), "n"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_keyed_rows_are_a_dictionary_at_every_stage(tmp_path: Path, seed: int, by: str) -> None:
    """The last row for each key, or the one with the greatest n; "gone" deletes; null is a key."""
    schema = pa.schema(
        [("a", pa.int64()), ("b", pa.string()), ("n", pa.int64()), ("gone", pa.bool_())]
    )
    lake = Lake(tmp_path, "a", "b", delete_when="gone", sequence_by=by)
    random_ = random.Random(seed)
    model: dict[Any, dict[str, Any]] = {}
    number = 0
    # A key that was deleted, and older rows that come after: compaction forgets deletes, so each
    # key is deleted at most by its greatest n.
    for stage in [random_.choice(STAGES[1:]) for _ in range(6)]:
        batch = []
        for _ in range(random_.randrange(1, 12)):
            number += 1
            row = {
                "a": random_.choice([1, 2, None]),
                "b": random_.choice(["x", "y", None]),
                "n": number if not by else random_.randrange(100),
                "gone": random_.choice([True, False, False, None]) if not by else None,
            }
            batch.append(row)
            key = (row["a"], row["b"])
            if by and key in model and model[key]["n"] > row["n"]:
                continue
            if row["gone"]:
                model.pop(key, None)
            else:
                model[key] = row
        lake.append(batch, schema=schema)
        expected = Counter(tuple(row.values()) for row in model.values())
        head = lake.head()
        if head.is_open:
            if DeltaTable(lake.target.table).transaction_version(head.log_id) != head.k:
                lake.write()
                assert rows(lake.reader().current()) == expected
            lake.done()
            assert rows(lake.reader().current()) == expected
        lake.compact(stage)
        assert rows(lake.reader().current()) == expected, (seed, stage)


def test_a_pinned_state_stays(lake: Lake) -> None:
    lake.append(values(1))
    lake.compact()
    lake.append(values(2))
    current = lake.reader().current()
    before = rows(current)
    lake.append(values(3))
    lake.compact()
    assert rows(current) == before == Counter([(1, "v1"), (2, "v2")])
    assert rows(lake.reader().current()) == Counter([(1, "v1"), (2, "v2"), (3, "v3")])


def test_the_log_has_columns_that_the_table_does_not_have_yet(lake: Lake) -> None:
    lake.append(values(1))
    lake.compact()
    wider = pa.schema([*SCHEMA, ("w", pa.float64())])
    lake.append([{"id": 2, "v": "v2", "w": 2.5}], schema=wider)
    current = lake.reader().current()
    assert current.schema.names == ["id", "v", "w"]
    assert rows(current) == Counter([(1, "v1", None), (2, "v2", 2.5)])
    lake.compact()
    lake.append(values(3))
    assert rows(lake.reader().current()) == Counter(
        [(1, "v1", None), (2, "v2", 2.5), (3, "v3", None)]
    )


def test_the_table_has_wider_types_than_the_log(lake: Lake) -> None:
    wide = pa.schema([("id", pa.int64()), SCHEMA.field("v"), ("at", pa.timestamp("us"))])
    write_deltalake(lake.target.table, wide.empty_table())
    narrow = pa.schema([("id", pa.int32()), SCHEMA.field("v"), ("at", pa.date32())])
    day = {"at": date(2024, 2, 29)}
    lake.append([{**values(1)[0], **day}], schema=narrow)
    lake.compact()
    lake.append([{**values(2)[0], **day}], schema=narrow)
    current = lake.reader().current()
    assert current.schema == wide
    moment = datetime(2024, 2, 29)
    assert rows(current) == Counter([(1, "v1", moment), (2, "v2", moment)])


def widen(table: str, column: str, kind: str) -> None:
    """Widen a column as Spark does it, which delta-rs cannot: it refuses the table then."""
    log = Path(table, "_delta_log")
    lines = [
        json.loads(line)
        for commit in sorted(log.glob("*.json"))
        for line in commit.read_text().splitlines()
    ]
    metadata = next(line for line in reversed(lines) if "metaData" in line)
    columns = json.loads(metadata["metaData"]["schemaString"])
    field = next(each for each in columns["fields"] if each["name"] == column)
    field["metadata"] = {"delta.typeChanges": [{"fromType": field["type"], "toType": kind}]}
    field["type"] = kind
    metadata["metaData"]["schemaString"] = json.dumps(columns)
    features = {"readerFeatures": ["typeWidening"], "writerFeatures": ["typeWidening"]}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    commit = {"timestamp": 0, "operation": "CHANGE COLUMN", "operationParameters": {}}
    actions = [{"commitInfo": commit}, {"protocol": protocol}, metadata]
    version = DeltaTable(table).version() + 1
    Path(log, f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def test_a_table_whose_columns_were_widened_is_read_file_by_file(lake: Lake) -> None:
    narrow = pa.schema([("id", pa.int32()), SCHEMA.field("v")])
    lake.append(values(1), schema=narrow)
    lake.compact()
    lake.append(values(2), schema=narrow)
    lake.compact()
    widen(lake.target.table, "id", "long")
    large = {"id": 2**40, "v": "large"}
    lake.append([large])
    current = lake.reader().current()
    assert current.schema.field("id").type == pa.int64()
    assert rows(current) == Counter([(1, "v1"), (2, "v2"), (2**40, "large")])
    assert sorted(current.to_arrow(["id"])["id"].to_pylist()) == [1, 2, 2**40]
    replayed = [
        row["id"]
        for part in lake.reader(lease="1h").replay(start="table")
        for batch in part.rows
        for row in batch.to_pylist()
    ]
    assert sorted(replayed) == [1, 2, 2**40]


def test_a_table_may_spell_a_column_in_another_case(lake: Lake) -> None:
    other = pa.schema([("ID", pa.int64()), ("only", pa.int32()), SCHEMA.field("v")])
    write_deltalake(lake.target.table, other.empty_table())
    lake.append(values(1))
    lake.compact()
    lake.append(values(2))
    current = lake.reader().current()
    assert current.schema.names == ["id", "v", "only"]
    assert rows(current) == Counter([(1, "v1", None), (2, "v2", None)])
    assert current.to_arrow(["id"]).to_pydict() == {"id": [1, 2]}


def test_all_types_come_alike_from_both_sides(lake: Lake) -> None:
    table = one_row("Europe/Vienna")
    lake.append(table)
    lake.compact()
    lake.append(table)
    log = lake.reader()
    current = log.current()
    assert current.schema == log.scan().schema
    found = current.to_arrow()
    found.validate(full=True)
    first, second = found.to_pylist()
    assert first == second == log.scan().read_all().to_pylist()[0]


def test_a_table_that_was_restored_is_an_error(lake: Lake) -> None:
    for number in (1, 2):
        lake.append(values(number))
        lake.compact()
    DeltaTable(lake.target.table).restore(1)
    with pytest.raises(ConfirmError, match="RESTORE"):
        lake.reader().current()


def test_a_table_that_was_overwritten_is_an_error(lake: Lake) -> None:
    lake.append(values(1))
    lake.compact()
    write_deltalake(lake.target.table, pa.table({"id": [7], "v": ["x"]}), mode="overwrite")
    with pytest.raises(ConfirmError, match="WRITE"):
        lake.reader().current()


def test_others_may_optimize_the_table(lake: Lake) -> None:
    for number in (1, 2):
        lake.append(values(number))
        lake.compact()
    DeltaTable(lake.target.table).optimize.compact()
    lake.append(values(3))
    assert rows(lake.reader().current()) == Counter([(1, "v1"), (2, "v2"), (3, "v3")])


def test_a_floor_that_passes_what_was_pinned_ends_no_read_of_it(lake: Lake) -> None:
    """The rows are deleted a grace later at the earliest."""
    lake.append(values(1))
    lake.compact()
    lake.append(values(2))
    lake.append(values(3))
    current = lake.reader().current()
    reader = current.reader()
    first = reader.read_next_batch().to_pylist()
    lake.compact()
    lake.floor(lake.end)
    assert rows(current) == Counter([(1, "v1"), (2, "v2"), (3, "v3")])
    assert [*first, *reader.read_all().to_pylist()] == values(1, 2, 3)


def test_a_floor_that_passes_what_was_pinned_long_ago_is_an_error(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.append(values(1))
    lake.compact()
    lake.append(values(2))
    current = lake.reader().current()
    lake.compact()
    lake.floor(lake.end)
    # Half of the lake's grace of an hour.
    later_ms = Clock().now_ms() + 1_800_001
    monkeypatch.setattr(Clock, "now_ms", lambda self: later_ms)
    with pytest.raises(sparkwal.CollectedError):
        current.to_arrow()
    assert rows(lake.reader().current()) == Counter([(1, "v1"), (2, "v2")])


def test_a_version_that_a_vacuum_took_is_an_error(lake: Lake) -> None:
    lake.append(values(1))
    lake.compact()
    current = lake.reader().current()
    for file in Path(lake.target.table).glob("*.parquet"):
        file.unlink()
    with pytest.raises(TableReadError, match="VACUUM"):
        current.to_arrow()


def test_a_missing_table_raises(lake: Lake, tmp_path: Path) -> None:
    lake.append(values(1))
    lake.compact()
    Path(lake.target.table).rename(tmp_path / "elsewhere")
    with pytest.raises(ConfirmError, match="does not exist any more"):
        lake.reader().current()


def test_columns_are_selected_and_polars_and_duckdb_read_it(lake: Lake) -> None:
    import duckdb
    import polars

    lake.append(values(1))
    lake.compact()
    lake.append(values(2))
    current = lake.reader().current()
    assert current.to_arrow(["v"]).to_pylist() == [{"v": "v1"}, {"v": "v2"}]
    assert current.to_pandas(["v", "id"]).columns.to_list() == ["v", "id"]
    assert polars.DataFrame(current).sort("id").rows() == [(1, "v1"), (2, "v2")]
    assert pa.table(current).num_rows == 2
    assert duckdb.sql("select sum(id) from current").fetchall() == [(3,)]
    with pytest.raises(OptionError, match="no_such"):
        current.reader(["no_such"])


def test_an_event_names_the_version_and_the_positions(lake: Lake) -> None:
    lake.append(values(1))
    lake.compact()
    cut = lake.end
    lake.append(values(2))
    events: list[Event] = []
    stop = subscribe(events.append)
    try:
        lake.reader().current()
    finally:
        stop()
    assert CurrentRead(lake.log.url, 1, cut, lake.end) in events


def test_a_plain_read_names_the_table_that_has_the_rows_below_the_floor(lake: Lake) -> None:
    lake.append(values(1))
    lake.compact()
    cut = lake.end
    lake.append(values(2))
    lake.floor(cut)
    events: list[Event] = []
    stop = subscribe(events.append)
    try:
        assert lake.reader().scan().read_all().num_rows == 1
        assert lake.reader(startingPosition=cut).scan().read_all().num_rows == 1
    finally:
        stop()
    expected = RowsInTable(lake.log.url, cut, lake.target.table)
    assert [event for event in events if isinstance(event, RowsInTable)] == [expected]


def test_several_logs_in_one_table(tmp_path: Path) -> None:
    one, two = (Lake(tmp_path, sequencer=name) for name in "ab")
    one.append(values(1))
    one.compact()
    two.append(values(2))
    two.compact("written")
    one.append(values(3))
    two.append([{"id": 4, "v": "v4", "w": 4}], schema=pa.schema([*SCHEMA, ("w", pa.int64())]))
    current = sparkwal.Log(one.path).current(sequencers="*")
    assert rows(current) == Counter([(n, f"v{n}", 4 if n == 4 else None) for n in (1, 2, 3, 4)])
    assert current.positions == {"a": one.end - 1, "b": two.end - 1}
    with pytest.raises(OptionError, match="positions"):
        _ = current.position


def test_several_logs_in_different_tables_are_an_error(tmp_path: Path) -> None:
    one = Lake(tmp_path, sequencer="a")
    two = Lake(tmp_path, "id", sequencer="b", table=f"{tmp_path}/other")
    for lake in (one, two):
        lake.append(values(1))
        lake.compact()
    with pytest.raises(OptionError, match="different"):
        sparkwal.Log(one.path).current(sequencers="*")


def test_options_that_would_show_less_than_all_are_refused(lake: Lake) -> None:
    lake.append(values(1))
    with pytest.raises(OptionError, match="startingPosition"):
        lake.reader(startingPosition=1).current()
    with pytest.raises(OptionError, match="lease is for scan"):
        lake.reader(lease="6h").current()


def test_a_chain_that_moves_on_while_it_is_read_is_looked_at_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparkwal.lifecycle import current_rows

    lake.append(values(1))
    lake.compact()
    lake.append(values(2))
    real, left = current_rows.open_table, [1, 1]

    def slow(*args: Any) -> Any:
        # Between the look at the chain and the look at the table.
        if left:
            left.pop()
            lake.compact()
            lake.append(values(3))
            lake.compact("written")
            lake.done()
        return real(*args)

    monkeypatch.setattr(current_rows, "open_table", slow)
    assert rows(lake.reader().current()) == Counter([(1, "v1"), (2, "v2"), (3, "v3"), (3, "v3")])
    assert not left


def test_a_table_on_the_logs_own_s3_is_read_with_the_logs_options(
    s3_path: tuple[str, dict[str, str]],
) -> None:
    path, options = s3_path
    lake = Lake(path, "id", options=options)
    lake.append(values(1, 2))
    lake.compact()
    lake.append([{"id": 2, "v": "new"}])
    assert rows(lake.reader().current()) == {(1, "v1"): 1, (2, "new"): 1}
    lake.delta().restore(0)
    with pytest.raises(ConfirmError, match="RESTORE"):
        lake.reader().current()


def test_a_column_added_during_the_look_is_read(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparkwal.lifecycle import current_rows

    lake.append(values(1))
    lake.compact()
    real, left = current_rows.open_table, [1]

    def slow(*args: Any) -> Any:
        if left:
            left.pop()
            wide = pa.schema([*SCHEMA, ("w", pa.int64())])
            lake.append([{"id": 2, "v": "v2", "w": 2}], schema=wide)
        return real(*args)

    monkeypatch.setattr(current_rows, "open_table", slow)
    assert rows(lake.reader().current()) == Counter([(1, "v1", None), (2, "v2", 2)])
