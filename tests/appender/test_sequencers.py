"""Sequencers: keys that stay together, listing in few requests, logs that share a path."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkwal import Appender, Log, list_sequencers, partition_by, sequencer_for, verify
from sparkwal.errors import OptionError
from sparkwal.format import keys
from sparkwal.options.open import open_log
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.options.writing import SinkOptions
from sparkwal.reading.sequencers import all_logs, encode_key
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests.logs import SCHEMA, rows


def test_the_sequencer_of_a_key_never_changes() -> None:
    # Rows that are stored already depend on it: these must hold in every version.
    keys = [
        0,
        -7,
        2**70,
        "Ada",
        "ä",
        b"\0",
        True,
        None,
        1.5,
        Decimal("1.50"),
        ("a", 1),
        date(2026, 1, 31),
        datetime(2026, 1, 31, 12, tzinfo=UTC),
    ]
    assert [int(sequencer_for(key, 16)) for key in keys] == [
        13,
        13,
        9,
        4,
        7,
        0,
        0,
        2,
        15,
        0,
        9,
        1,
        6,
    ]


def test_the_threads_decimal_context_moves_no_key() -> None:
    keys = [Decimal("1234.5678"), Decimal("-12345678901234567890123456789.123456789")]
    with localcontext() as context:
        context.prec = 4
        narrow = [encode_key(key) for key in keys]
    assert narrow == [b"d1234.5678", b"d-12345678901234567890123456789.123456789"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, Decimal("1.0")),
        (0.0, -0.0),
        (1, np.int64(1)),
        (b"x", bytearray(b"x")),
        ((1, "a"), [1, "a"]),
        (Decimal("1.5"), Decimal("1.50")),
        (float("nan"), -float("nan")),
        (
            datetime(2026, 1, 1, 12, tzinfo=UTC),
            datetime(2026, 1, 1, 14, tzinfo=timezone(timedelta(hours=2))),
        ),
    ],
)
def test_equal_keys_of_different_classes_go_together(one: Any, other: Any) -> None:
    assert encode_key(one) == encode_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, "1"), (True, 1), ("x", b"x"), (None, "None"), (("a", "b"), ("ab",)), ((), None)],
)
def test_different_keys_have_different_bytes(one: Any, other: Any) -> None:
    assert encode_key(one) != encode_key(other)


def test_a_key_without_canonical_bytes_is_refused() -> None:
    with pytest.raises(OptionError, match="object is no key"):
        sequencer_for(object(), 4)
    with pytest.raises(OptionError, match="at least one"):
        sequencer_for(1, 0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers())), st.integers(1, 4))
def test_partitions_hold_every_row_once_in_order(pairs: list[tuple[int, int]], count: int) -> None:
    given_rows = [{"k": key, "v": value % 100} for key, value in pairs]
    arrow = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    for form in (given_rows, pa.Table.from_pylist(given_rows, schema=arrow)):
        parts = partition_by(form, "k", count)
        for name, part in parts.items():
            kept = part if isinstance(part, list) else part.to_pylist()
            assert kept == [r for r in given_rows if sequencer_for(r["k"], count) == name]
        assert sum(len(part) for part in parts.values()) == len(given_rows)


def test_several_columns_form_one_key_and_a_missing_column_is_refused() -> None:
    two = [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}]
    assert set(partition_by(two, ["a", "b"], 64)) == {
        sequencer_for((1, "x"), 64),
        sequencer_for((1, "y"), 64),
    }
    with pytest.raises(OptionError, match="no column 'c'"):
        partition_by(two, "c", 4)
    with pytest.raises(OptionError, match="no column"):
        partition_by(pa.table({"a": [1]}), "c", 4)


@pytest.mark.parametrize("root", ["", "some/wal"])
def test_sequencers_are_listed_by_hops(root: str) -> None:
    store = MemoryStore()
    prefix = f"{root}/" if root else ""
    names = ["a", "a-b", "a0", "B", "z_"]
    for name in names:
        for number in range(2500 if name in ("a", "B") else 3):
            store.put_if_absent(f"{prefix}sequencers/{name}/batches/{number:020d}", b"")
    store.put_if_absent(f"{prefix}sequencers/refused/proof/x", b"")
    store.counts.clear()
    assert all_logs(LogStore(store, root)) == sorted(names)
    # Not one for every thousand objects: "a" and "B" alone have five thousand.
    assert store.counts["LIST"] <= 4
    store.put_if_absent(f"{prefix}batches/{keys.MAX:020d}", b"")
    assert all_logs(LogStore(store, root)) == ["default", *sorted(names)]


def test_a_folder_with_an_empty_name_is_not_listed_as_a_sequencer() -> None:
    assert all_logs(LogStore(MemoryStore(), "wal")) == []


def test_sequencers_are_logs_of_their_own(tmp_path: Path) -> None:
    path = str(tmp_path / "wal")
    with (
        Appender(path, SCHEMA, producer_id="p", sequencer="a") as a,
        Appender(path, SCHEMA, producer_id="p", sequencer="b") as b,
        Appender(path, SCHEMA, producer_id="p") as root,
    ):
        for number, wal in enumerate((a, b, root, a)):
            wal.append(rows(number)).result()
        assert (a.last_sequence, b.last_sequence, root.last_sequence) == (1, 0, 0)
    assert list_sequencers(path) == ["default", "a", "b"]
    with pytest.raises(OptionError, match="remove sequencer"):
        list_sequencers(path, sequencer="a")
    for name, values in (("a", [0, 3]), ("b", [1]), ("default", [2])):
        assert list(Log(path, sequencer=name).to_pandas()["v"]) == values
        report = verify(path, sequencer=name)
        assert report.ok and report.rows == len(values)
    assert list(Log(path).to_pandas()["v"]) == [2]
    assert list(Log(f"{path}/sequencers/a").to_pandas()["v"]) == [0, 3]


def test_log_and_verify_refuse_the_option_sequencers(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="sequencers is for spark.read"):
        Log(str(tmp_path), sequencers="*")
    with pytest.raises(OptionError, match="'sequencers' is for reading"):
        verify(str(tmp_path), sequencers="*")


def test_a_sequencers_log_is_under_the_path_in_sequencers() -> None:
    sink = parse(SinkOptions, {"path": "s3://bucket/wal/", "sequencer": "a"})
    assert open_log(sink).prefix == "wal/sequencers/a"
    assert sink.log_path == "s3://bucket/wal/sequencers/a"
    everything = parse(SourceOptions, {"path": "s3://bucket/wal", "sequencers": "*"})
    assert open_log(everything).prefix == "wal" and everything.log_path == "s3://bucket/wal"
