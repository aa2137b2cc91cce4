"""A log whose columns became wider: each reader gives its older rows in the new type."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import sparkwal
from sparkwal import DivergedCheckpointError, Log, OptionError
from sparkwal.checkpoints.carry import StreamCheckpoint
from sparkwal.format.schema import from_arrow as text_of
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.reading.log_range import LogRange
from sparkwal.spark.source import log_schema
from sparkwal.testing.memory import MemoryStore
from tests.protocol.query import SCHEMA, Query, hints_in, values_of

NARROW = pa.schema(
    [
        ("id", pa.int32()),
        ("x", pa.float32()),
        ("d", pa.decimal128(5, 2)),
        ("l", pa.list_(pa.int16())),
    ]
)
WIDE = pa.schema(
    [
        ("id", pa.int64()),
        ("x", pa.float64()),
        ("d", pa.decimal128(9, 2)),
        ("l", pa.list_(pa.int64())),
    ]
)
OLD = {"id": -7, "x": 0.5, "d": Decimal("1.25"), "l": [-1]}
NEW = {"id": 2**40, "x": 0.1, "d": Decimal("1234567.25"), "l": [2**40]}
BOTH = [OLD, NEW]


def append(path: Path, schema: pa.Schema, *rows: dict[str, object], **options: object) -> None:
    with sparkwal.Appender(str(path), schema, producer_id="p", **options) as wal:
        wal.append([dict(row) for row in rows]).result()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "wal"
    append(path, NARROW, OLD)
    with pytest.raises(OptionError, match="'id' is int in the log and bigint.*mergeSchema=true"):
        append(path, WIDE, NEW)
    append(path, WIDE, NEW, mergeSchema=True)
    return path


def test_a_log_gives_all_rows_in_the_new_type(path: Path) -> None:
    log = Log(str(path))
    table = log.scan().read_all()
    assert table.schema.types == WIDE.types and table.to_pylist() == BOTH
    head = log.head()
    assert head is not None and head.schema.types == WIDE.types
    first = Log(str(path), endingPosition=1).scan().read_all()
    assert first.schema.types == WIDE.types and first.to_pylist() == [OLD]
    assert sparkwal.verify(str(path)).ok


def test_sql_and_a_replay_give_all_rows_in_the_new_type(path: Path) -> None:
    log = Log(str(path))
    (row,) = log.sql("SELECT sum(id) AS s, max(d) AS d FROM log").read_all().to_pylist()
    assert row == {"s": 2**40 - 7, "d": NEW["d"]}
    replay = log.replay()
    tables = [pa.Table.from_batches(entry.rows) for entry in replay]
    assert [row for table in tables for row in table.to_pylist()] == BOTH
    assert all(table.schema.types == WIDE.types for table in tables)
    assert replay.schema.types == WIDE.types


def test_a_writer_with_the_former_types_continues(path: Path) -> None:
    append(path, NARROW, OLD, mergeSchema=True)
    table = Log(str(path)).scan().read_all()
    assert table.schema.types == WIDE.types and table.to_pylist() == [OLD, NEW, OLD]
    with pytest.raises(OptionError, match="bigint in the log and int in these rows"):
        append(path, NARROW, OLD)


def test_several_sequencers_are_read_as_wide_as_all_need(tmp_path: Path) -> None:
    append(tmp_path / "wal/sequencers/a", NARROW, OLD)
    append(tmp_path / "wal/sequencers/b", WIDE, NEW)
    replay = Log(str(tmp_path / "wal")).replay(sequencers=["a", "b"])
    assert sorted(pa.Table.from_batches(entry.rows)["id"][0].as_py() for entry in replay) == [
        -7,
        2**40,
    ]
    assert replay.schema.types == WIDE.types
    options = from_keywords(SourceOptions, str(tmp_path / "wal"), {"sequencers": "*"})
    assert [field.dataType.typeName() for field in log_schema(options)][:2] == ["long", "double"]


def test_a_read_that_began_before_the_widening_raises_with_advice(tmp_path: Path) -> None:
    append(tmp_path / "wal", NARROW, OLD)
    options = from_keywords(SourceOptions, str(tmp_path / "wal"), {})
    log = LogRange(options, "default", open_log(options))
    log.refresh()
    append(tmp_path / "wal", WIDE, OLD, mergeSchema=True)
    log.refresh()
    # Although each value would fit: a double never becomes a float in silence.
    with pytest.raises(OptionError, match="'id' is int64 in the log .* start it again"):
        list(log.scan(0, log.gap, NARROW))


def test_a_microbatch_that_is_repeated_in_the_new_type_is_the_same(tmp_path: Path) -> None:
    carrier = StreamCheckpoint("s3a://bucket/checkpoint", "query", 10**6)
    narrow = text_of(pa.schema({"v": pa.int32()}))
    query = Query(MemoryStore(), hints_in(tmp_path), spark_schema=narrow, carrier=carrier)
    query.microbatch(0, (-1, 2))
    again = replace(query.restarted(), spark_schema=SCHEMA, merge_schema=True)
    assert again.microbatch(0, (-1, 2)) is None
    with pytest.raises(DivergedCheckpointError, match="not the same ones"):
        again.restarted().microbatch(0, (-1, 2**32 + 2))
    assert again.restarted().microbatch(1, (2**40,)) is not None
    assert values_of(query.store) == [-1, 2, 2**40]
