"""Many logs under one path go into one Delta table, as one version for each cycle."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import sparkwal
from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.lifecycle import cycle
from sparkwal.lifecycle.cycle import Run
from sparkwal.protocol.chain import Chain, newest_record
from sparkwal.spark.delta import SparkDeltaTable
from sparkwal.spark.delta_files import delta_log, spark_path
from sparkwal.store.base import LogStore
from sparkwal.store.config import RetryPolicy, S3Config
from sparkwal.store.open import open_store
from tests.chains import Seen
from tests.lifecycle.lakes import SCHEMA
from tests.lifecycle.partial_model import Model, counted

LOGS = [f"s{number}" for number in range(20)]


class Killed(BaseException):
    """The process ended."""


class Path20:
    """Twenty logs under one path, and their table."""

    def __init__(self, spark: SparkSession, folder: Path, **how: Any) -> None:
        self.spark = spark
        self.path = str(folder / "log")
        self.table = str(folder / "table")
        self._how = how
        store, root = open_store(self.path, S3Config(), RetryPolicy())
        self.root = LogStore(store, root)

    def life(self) -> sparkwal.Lifecycle:
        return sparkwal.Lifecycle(
            self.path, spark=self.spark, table=self.table, lateArriveWindowSeconds=0, **self._how
        )

    def append(
        self, name: str, *rows: dict[str, Any], schema: pa.Schema = SCHEMA, **options: Any
    ) -> None:
        with sparkwal.Appender(
            self.path, schema, producer_id="p", sequencer=name, mergeSchema=True, **options
        ) as wal:
            wal.append(pa.Table.from_pylist([*rows], schema)).result()

    def run(self) -> dict[str, Run]:
        results = self.life().run_all()
        errors = {name: run for name, run in results.items() if not isinstance(run, Run)}
        assert not errors
        return {name: run for name, run in results.items() if isinstance(run, Run)}

    def rows(self) -> list[dict[str, Any]]:
        found = self.spark.read.format("delta").load(spark_path(self.table)).collect()
        return sorted((row.asDict() for row in found), key=lambda row: (row["id"], row["v"]))

    def ranges(self) -> list[int]:
        log = delta_log(self.spark, self.table)
        assert log.update()
        chain = newest_record(self.root)
        assert chain is not None
        (table,) = chain.tables.values()
        state = log.snapshot(table.app_id, -1)
        assert state is not None
        return [change.k for change in state.changes if change.k]


def test_a_cycle_of_twenty_logs_with_other_columns_and_windows_is_one_version(
    delta: SparkSession, tmp_path: Path
) -> None:
    path = Path20(delta, tmp_path)
    wide = pa.schema([*SCHEMA, ("w", pa.int64())])
    others: dict[str, dict[str, Any]] = {"s4": {"schema": wide}, "s5": {"windowSize": 10_000}}
    wanted: list[dict[str, Any]] = []

    def append(name: str, *rows: dict[str, Any]) -> None:
        more = others.get(name, {})
        has_more = more.get("schema") is wide
        wanted.extend({**row, "w": row["id"] if has_more else None} for row in rows)
        path.append(name, *(wanted[-len(rows) :] if has_more else rows), **more)

    for number, name in enumerate(LOGS):
        append(name, *({"id": number, "v": f"{name}-{n}"} for n in range(3)))
    assert {run.compacted.k for run in path.run().values() if run.compacted} == {1}
    for name in LOGS[3:6]:
        append(name, {"id": 100, "v": name})
    runs = path.run()
    assert {name for name, run in runs.items() if run.compacted} == {*LOGS[3:6]}
    assert path.rows() == sorted(wanted, key=lambda row: (row["id"], row["v"]))
    assert path.ranges() == [1, 2]
    # A reader of table and logs has each row once, in Spark and without it.
    path.append("s1", {"id": 200, "v": "new"})
    current = sparkwal.read_current(delta, path.path, sequencers="*")
    assert current.count() == len(wanted) + 1
    assert sparkwal.Log(path.path).current(sequencers="*").to_pandas().shape[0] == len(wanted) + 1


def test_the_newest_commit_of_all_logs_wins_a_key(delta: SparkSession, tmp_path: Path) -> None:
    path = Path20(delta, tmp_path, keys=["id"])
    chosen = random.Random(1)
    wanted = {}
    for step in range(30):
        name, key = chosen.choice(LOGS[:5]), chosen.randrange(4)
        path.append(name, {"id": key, "v": f"{step}"})
        wanted[key] = f"{step}"
    path.run()
    assert path.rows() == [{"id": key, "v": v} for key, v in sorted(wanted.items())]
    assert path.ranges() == [1]


# test_a_delete_leaves_nothing_of_other_columns_wherever_ranges_are_cut has a sequence over logs.
@pytest.mark.slow
def test_with_a_sequence_its_greatest_value_wins(delta: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([*SCHEMA, ("at", pa.int64()), ("gone", pa.bool_())])
    path = Path20(delta, tmp_path, keys=["id"], sequence_by="at", delete_when="gone")
    path.append("a", {"id": 1, "v": "late", "at": 9, "gone": False}, schema=schema)
    path.append("b", {"id": 1, "v": "old", "at": 3, "gone": False}, schema=schema)
    path.append("c", {"id": 2, "v": "x", "at": 5, "gone": True}, schema=schema)
    path.append("b", {"id": 2, "v": "y", "at": 4, "gone": False}, schema=schema)
    path.run()
    path.append("a", {"id": 2, "v": "z", "at": 4, "gone": False}, schema=schema)
    path.run()
    assert [(row["id"], row["v"]) for row in path.rows()] == [(1, "late")]


def readers(path: Path20) -> Counter[str]:
    """Table and logs as one, by Spark and without it."""
    rows = sparkwal.read_current(path.spark, path.path, sequencers="*").collect()
    found = counted(row.asDict(recursive=True) for row in rows)
    without = sparkwal.Log(path.path).current(sequencers="*").to_arrow().to_pylist()
    assert counted(without) == found
    return found


# test_a_delete_leaves_nothing_of_other_columns_wherever_ranges_are_cut has such rows too.
@pytest.mark.slow
def test_a_row_keeps_the_values_of_the_columns_that_its_log_lacks(
    delta: SparkSession, tmp_path: Path
) -> None:
    path = Path20(delta, tmp_path, keys=["id"])
    wide = pa.schema([*SCHEMA, ("w", pa.int64())])
    path.append("a", {"id": 1, "v": "a", "w": 1}, {"id": 2, "v": "a", "w": 2}, schema=wide)
    path.run()
    delta.sql(f"ALTER TABLE delta.`{path.table}` ADD COLUMNS (own STRING)")
    delta.sql(f"UPDATE delta.`{path.table}` SET own = 'own'")
    path.append("a", {"id": 2, "v": "b", "w": None}, {"id": 4, "v": "b", "w": 4}, schema=wide)
    path.append("b", {"id": 1, "v": "c"}, {"id": 3, "v": "c"})
    wanted = [
        {"id": 1, "v": "c", "w": 1, "own": "own"},
        {"id": 2, "v": "b", "w": None, "own": "own"},
        {"id": 3, "v": "c", "w": None, "own": None},
        {"id": 4, "v": "b", "w": 4, "own": None},
    ]
    assert readers(path) == counted(wanted)
    path.run()
    assert path.rows() == wanted
    # Of one log too: its older records lack a column that its newer ones have.
    path.append("b", {"id": 4, "v": "d"})
    path.append("b", {"id": 3, "v": "d", "w": 3}, schema=wide)
    wanted[2:] = [{**wanted[2], "v": "d", "w": 3}, {**wanted[3], "v": "d"}]
    assert readers(path) == counted(wanted)
    path.run()
    assert path.rows() == wanted


@pytest.mark.parametrize("by", [pytest.param("", marks=pytest.mark.slow), "at"])
def test_a_delete_leaves_nothing_of_other_columns_wherever_ranges_are_cut(
    delta: SparkSession, tmp_path: Path, by: str
) -> None:
    narrow = pa.schema([*SCHEMA, ("at", pa.int64()), ("gone", pa.bool_())])
    wide = pa.schema([*narrow, ("w", pa.int64())])
    path = Path20(delta, tmp_path, keys=["id"], sequence_by=by, delete_when="gone")
    model = Model("id", by)

    def append(name: str, *rows: dict[str, Any]) -> None:
        path.append(name, *rows, schema=wide if "w" in rows[0] else narrow)
        for row in rows:
            model.apply(row)

    live: dict[str, Any] = {"v": "1", "at": 1, "gone": False}
    append("a", *({"id": key, **live, "w": 1} for key in range(5)))
    path.run()
    delta.sql(f"ALTER TABLE delta.`{path.table}` ADD COLUMNS (own STRING)")
    delta.sql(f"UPDATE delta.`{path.table}` SET own = 'own'")
    for row in model.rows.values():
        row["own"] = "own"
    # Log b lacks a column. It deletes a row and writes it again, and adds to one of log a.
    append("b", {"id": 0, "v": "2", "at": 2, "gone": True}, {"id": 0, **live, "at": 3})
    append("a", {"id": 1, **live, "at": 4, "w": 2}, {"id": 9, **live, "at": 4, "w": 9})
    append("b", {"id": 1, **live, "at": 5}, {"id": 9, **live, "at": 5})
    # Late rows, of which no column counts.
    append("a", {"id": 1, **live, "at": 4, "w": 3}, {"id": 2, **live, "at": 0, "w": 3})
    append("b", {"id": 2, **live, "at": 6})
    assert readers(path) == counted(model.rows.values())
    path.run()
    assert counted(path.rows()) == readers(path) == counted(model.rows.values())


@pytest.mark.slow
@pytest.mark.parametrize("by", ["", "at"])
def test_readers_show_what_the_table_has_after_the_next_run(
    delta: SparkSession, tmp_path: Path, by: str
) -> None:
    """A storm over logs with other columns; ties, null and NaN; some deletes."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    narrow = pa.schema([*SCHEMA, ("at", pa.float64()), ("gone", pa.bool_())])
    schemas = {
        "a": pa.schema([*narrow, ("w", pa.int64())]),
        "b": pa.schema([*narrow, ("s", pa.struct([("x", pa.int64())]))]),
        "c": narrow,
    }
    path = Path20(delta, tmp_path, keys=["id"], sequence_by=by, delete_when="gone")
    model = Model("id", by)
    times = [None, 0.0, -0.0, 1.0, 2.0, 3.0, float("nan")]
    number = 0
    for step in range(8):
        for name in chosen.choices("abc", k=chosen.randrange(1, 6)):
            rows = []
            for _ in range(chosen.randrange(1, 5)):
                number += 1
                values = {"w": number, "s": {"x": number}}
                row = {"id": chosen.randrange(4), "v": str(number), "at": chosen.choice(times)}
                row["gone"] = chosen.random() < 0.3
                row |= {column: values[column] for column in schemas[name].names[4:]}
                rows.append(row)
                model.apply(row)
            path.append(name, *rows, schema=schemas[name])
        wanted = counted(model.rows.values())
        assert not step or readers(path) == wanted, (seed, step)
        path.run()
        table = delta.read.format("delta").load(path.table).collect()
        assert counted(row.asDict(recursive=True) for row in table) == wanted, (seed, step)
        assert readers(path) == wanted, (seed, step)


def test_a_bad_log_is_left_out_of_table_and_logs_as_one(
    delta: SparkSession, tmp_path: Path
) -> None:
    """One has another type, and of one a record in the middle of its newer rows is damaged."""
    path = Path20(delta, tmp_path, keys=["id"])
    for number, name in enumerate("abc"):
        path.append(name, {"id": number, "v": name})
    path.run()
    path.append("a", {"id": 10, "v": "new"}, {"id": 0, "v": "newer"})
    for number in range(3):
        path.append("c", {"id": 20 + number, "v": f"victim{number}"})
    path.append(
        "d", {"id": "x", "v": "y"}, schema=pa.schema([("id", pa.string()), SCHEMA.field("v")])
    )
    folder = Path(path.path) / "sequencers" / "c" / "batches"
    (file,) = (each for each in folder.iterdir() if b"victim1" in each.read_bytes())
    file.write_bytes(file.read_bytes().replace(b"victim1", b"wictim1"))
    with pytest.raises(OptionError, match="sequencer d: column 'id' .*on_log_error"):
        sparkwal.read_current(delta, path.path, sequencers="*")
    rows, plan = sparkwal.read_current(
        delta, path.path, sequencers="*", on_log_error="leave out", include_position=True
    )
    expected = [(0, "newer"), (1, "b"), (2, "c"), (10, "new")]
    assert sorted((row["id"], row["v"]) for row in rows.collect()) == expected
    assert {name: type(error) for name, error in plan.left_out.items()} == {
        "c": InvalidLogError,
        "d": OptionError,
    }
    others = sparkwal.read_current(delta, path.path, sequencers="a,b")
    assert sorted((row["id"], row["v"]) for row in others.collect()) == expected
    results = path.life().run_all()
    assert {name for name, run in results.items() if not isinstance(run, Run)} == {*plan.left_out}
    assert [(row["id"], row["v"]) for row in path.rows()] == expected


@contextmanager
def killed(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool
) -> Iterator[None]:
    """The process ends before or after its first call of a function."""
    called = getattr(owner, name)

    def dies(*args: Any, **kwargs: Any) -> Any:
        if after:
            called(*args, **kwargs)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, dies)
        with pytest.raises(Killed):
            yield


# What a compaction calls, and whether the process ends after it.
STEPS = [
    (SparkDeltaTable, "prepare", False),
    (SparkDeltaTable, "prepare", True),
    (SparkDeltaTable, "write", False),
    (SparkDeltaTable, "write", True),
    (cycle, "confirm", True),
    (Chain, "put", False),
    (Chain, "put", True),
    (cycle, "with_logs", False),
]


# tests/lifecycle/test_many_logs.py has a kill at every call of the store and of a table.
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([STEPS[1], STEPS[3]], id="after Spark's"),
        pytest.param(STEPS, id="all", marks=pytest.mark.slow),
    ],
)
def test_a_kill_between_two_steps_leaves_each_row_once(
    delta: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: list[tuple[Any, str, bool]],
) -> None:
    path = Path20(delta, tmp_path)
    wanted = []

    def append(step: int) -> None:
        for name in LOGS[step : step + 4]:
            row = {"id": step, "v": name}
            path.append(name, row)
            wanted.append(row)

    for step, (owner, name, after) in enumerate(steps):
        append(step)
        with killed(monkeypatch, owner, name, after=after):
            path.life().run_all()
    # One log that runs by itself finishes what another process promised of all.
    append(len(steps))
    sparkwal.Lifecycle(
        path.path,
        spark=delta,
        table=path.table,
        lateArriveWindowSeconds=0,
        sequencer=LOGS[len(steps)],
    ).run_once()
    path.run()
    assert path.rows() == sorted(wanted, key=lambda row: (row["id"], row["v"]))
    ranges = path.ranges()
    assert ranges == [*range(1, len(ranges) + 1)]


@pytest.mark.slow
@pytest.mark.proves("burn-in-table")
@pytest.mark.parametrize("keyed", [{}, {"keys": ["id"]}], ids=str)
@pytest.mark.parametrize("first", ["burn", "write"])
def test_the_table_decides_between_a_burn_and_a_writer_of_the_range(
    delta: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
    keyed: dict[str, Any],
) -> None:
    path = Path20(delta, tmp_path, **keyed)
    for number, name in enumerate("ab"):
        path.append(name, {"id": number, "v": name})
    with killed(monkeypatch, SparkDeltaTable, "write", after=False):
        path.life().run_all()
    chain = newest_record(path.root)
    assert chain is not None
    intent = Seen(chain, "a").promise
    assert intent.is_open
    target = intent.target
    table = SparkDeltaTable(delta, target, {"path": path.path})
    steps = [table.burn, table.write]
    assert table.snapshot(intent.table.app_id, -1) is not None
    for step in steps if first == "burn" else reversed(steps):
        step(intent)
    wanted = [{"id": 0, "v": "a"}, {"id": 1, "v": "b"}]
    assert path.rows() == ([] if first == "burn" else wanted)
    state = table.snapshot(intent.table.app_id, -1)
    assert state is not None and state.k == 1
    assert [change.is_burned for change in state.changes if change.k] == [first == "burn"]
    path.run()
    assert path.rows() == wanted
    assert path.ranges() == ([1, 2] if first == "burn" else [1])
