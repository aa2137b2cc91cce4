"""Answers of SQL about a log, their requests to the store, and the limits of a query."""

from __future__ import annotations

import gc
import random
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest
from reading.collected import collect, move_floor

import sparkwal
from sparkwal.errors import CollectedError, InvalidLogError, OptionError
from sparkwal.format import keys
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.options.store import StoreOptions
from sparkwal.protocol.clock import Clock
from sparkwal.protocol.recovery import find_head
from sparkwal.sql.database import connect
from sparkwal.testing.proxy import S3Proxy
from sparkwal.testing.servers import log_options
from tests.cli.logs import COMMAND, lines, ran, write_takeovers
from tests.protocol.query import Query, hints_in
from tests.sql.logs import SCHEMA, ask, write


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Position 0 is a leader's; 1 … 9 hold the rows 1 … 9."""
    write(str(tmp_path / "wal"), *range(1, 10))
    return str(tmp_path / "wal")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("SELECT count(*), sum(id)::BIGINT FROM log", [(9, 45)]),
        ("SELECT id FROM log WHERE _wal_position BETWEEN 3 AND 5 ORDER BY 1", [(3,), (4,), (5,)]),
        ("SELECT count(*) FROM log WHERE _wal_timestamp > now() - INTERVAL 1 HOUR", [(9,)]),
        ("SELECT count(*) FROM log WHERE _wal_timestamp < '2020-01-01'", [(0,)]),
        ("SELECT count(*) FROM log WHERE _wal_position > 5 AND _wal_position < 3", [(0,)]),
        ("SHOW TABLES", [("consumers",), ("current",), ("log",), ("records",)]),
        # Read twice.
        ("SELECT count(*) FROM log a JOIN log b ON a.id = b.id + 1 WHERE b.id > 3", [(5,)]),
        ("WITH x AS (FROM log) SELECT count(*) FROM x a, x b", [(81,)]),
        ("SELECT count(*) FROM log WHERE id = (SELECT max(id) FROM log)", [(1,)]),
        (
            "SELECT DISTINCT _wal_query_id, _wal_sequencer, _wal_row FROM LOG",
            [("gateway", "default", 0)],
        ),
        (
            "SELECT kind, count(*), sum(rows)::INT FROM records GROUP BY 1 ORDER BY 1",
            [("commit", 9, 9), ("leader", 1, None)],
        ),
        (
            "SELECT query, batch, rows, objects FROM records WHERE position = 4",
            [("gateway", 3, 1, 1)],
        ),
        ("SELECT count(*) FROM records WHERE time < '2020-01-01'", [(0,)]),
        (
            "SELECT log.id, records.kind FROM log JOIN records ON position = _wal_position "
            "WHERE id = 7",
            [(7, "commit")],
        ),
        ("SELECT count(*) FROM consumers", [(0,)]),
        ("SELECT count(*), max(id) FROM current", [(9, 9)]),
        ("SELECT 1 + 1", [(2,)]),
    ],
)
def test_a_query_gives_its_answer(path: str, query: str, found: list[tuple[Any, ...]]) -> None:
    assert ask(path, query) == found


def test_a_range_of_the_log_and_its_floor(path: str) -> None:
    count = "SELECT min(id), max(id) FROM log"
    assert ask(path, count, startingPosition=3, endingPosition=5) == [(3, 5)]
    (found,) = lines("sql", path, count, "--start", "3", "--end", "5")
    assert list(found.values()) == [3, 5]
    log = open_log(StoreOptions(path=path))
    move_floor(log, 6)
    collect(log, 6)
    assert ask(path, count) == [(6, 9)]
    assert ask(path, "SELECT count(*) FROM log WHERE _wal_position < 7") == [(1,)]
    assert ask(path, "SELECT min(position) FROM records") == [(6,)]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) FROM log WHERE _wal_position < 6",
        "SELECT count(*) FROM records WHERE position BETWEEN 2 AND 4",
        "SELECT sum(id) FROM log WHERE _wal_timestamp <= (SELECT max(time) FROM before)",
    ],
)
def test_a_query_below_the_floor_is_no_empty_answer(path: str, query: str) -> None:
    before = sparkwal.Log(path).sql("SELECT max(time) FROM records WHERE position < 6")
    moment = before.read_all().column(0)[0].as_py()
    query = query.replace("(SELECT max(time) FROM before)", f"TIMESTAMPTZ '{moment}'")
    log = open_log(StoreOptions(path=path))
    move_floor(log, 6)
    collect(log, 6)
    with pytest.raises(CollectedError, match="the query: position .* below the log's floor, 6"):
        ask(path, query)
    assert ask(path, query, failOnDataLoss=False) in ([(0,)], [(None,)])
    # Nor is it one on the command line.
    assert "below the log's floor, 6" in ran("sql", path, query, code=1)
    assert ask(path, "SELECT count(*) FROM log WHERE _wal_position BETWEEN 4 AND 3") == [(0,)]
    assert ask(path, "SELECT count(*) FROM log WHERE _wal_position < 6", startingPosition=7) == [
        (0,)
    ]


def test_all_columns_keep_their_types_and_the_logs_come_first(path: str) -> None:
    found = sparkwal.Log(path).sql("FROM log").read_all()
    assert found.column_names[:2] == ["id", "name"] and len(found.column_names) == 10
    whole = sparkwal.Log(path).scan(include_metadata=True).read_all()
    assert found.select(whole.column_names).to_pylist() == whole.to_pylist()


def test_a_column_without_a_name_is_left_out(tmp_path: Path) -> None:
    rows = pa.table({"": [1, 2], "v": ["a", "b"]})
    with sparkwal.Appender(str(tmp_path), rows.schema, producer_id="p") as wal:
        wal.append(rows).result()
    assert ask(str(tmp_path), "SELECT v FROM log WHERE v > 'a'") == [("b",)]
    found = sparkwal.Log(str(tmp_path)).sql("SELECT * FROM log").schema.names
    assert "v" in found and "" not in found
    assert sparkwal.Log(str(tmp_path)).scan().read_all().column("").to_pylist() == [1, 2]


def test_a_query_reads_several_logs(path: str) -> None:
    write(path, 20, 21, sequencer="b")
    query = "SELECT _wal_sequencer s, count(*) n FROM log GROUP BY 1 ORDER BY 1"
    for given in (["--all"], ["--sequencers", "b,default"]):
        assert lines("sql", path, query, *given) == [{"s": "b", "n": 2}, {"s": "default", "n": 9}]
    found = sparkwal.Log(path).sql(query, sequencers="*").read_all().to_pylist()
    assert found == [{"s": "b", "n": 2}, {"s": "default", "n": 9}]
    assert ask(path, "SELECT count(DISTINCT sequencer) FROM records", sequencer="b") == [(1,)]


def test_the_requests_of_a_takeover_do_not_depend_on_the_first_position(tmp_path: Path) -> None:
    path, live, _ = write_takeovers(tmp_path / "log")
    query = "SELECT position, kind, reason, puts, gets, lists FROM records"
    whole = ask(path, f"{query} ORDER BY 1")
    for position in [*live, 7, 11]:
        part = ask(path, f"{query} WHERE position >= {position} ORDER BY 1")
        assert part == [row for row in whole if row[0] >= position]


def test_only_what_a_query_needs_is_fetched(
    s3_bucket: str, s3_proxy: S3Proxy, tmp_path: Path
) -> None:
    path, options = f"s3://{s3_bucket}/wal", log_options(s3_proxy.url)
    log = open_log(from_keywords(SourceOptions, path, options))
    clock: Any = Clock()
    sink = Query(log.store, hints_in(tmp_path), prefix=log.prefix, clock=clock)
    for batch in range(16):
        sink.microbatch(batch, tuple(random.sample(range(2**40), 20_000)))  # a record, an object
    window = find_head(log).window
    slots = {log.key(keys.slot(position, window)) for position in range(17)}
    listed = log.store.list(log.prefix + "/batches/").entries
    large = min(entry.size for entry in listed if entry.key not in slots)

    def asked(query: str) -> tuple[Any, dict[str, int], int]:
        """The answer, the requests, and how many such objects as many bytes could be."""
        s3_proxy.reset()
        (row,) = ask(path, query, **options)
        came = sum(request.bytes_out for request in s3_proxy.requests)
        return row, dict(s3_proxy.counts()), came // large

    # The begin and the end of the log.
    looked = {"LIST": 2, "GET": 1}
    query = "SELECT count(*), count(DISTINCT _wal_position) FROM log"
    assert asked(query) == ((320_000, 16), {"LIST": 2, "GET": 1 + 16}, 0)
    query = "SELECT count(*), sum(rows)::INT FROM records"
    assert asked(query) == ((17, 320_000), {"LIST": 2, "GET": 17}, 0)
    query = "SELECT count(v) FROM log WHERE _wal_position >= 15"
    row, requests, objects = asked(query)
    assert (row, objects) == ((40_000,), 2) and requests["GET"] <= 1 + 2 + 2
    query = "SELECT sum(rows)::INT FROM records WHERE position IN (3, 5)"
    assert asked(query) == ((40_000,), {"LIST": 2, "GET": 1 + 3}, 0)
    # A range of times is looked for by halving.
    row, requests, objects = asked("SELECT count(v) FROM log WHERE _wal_timestamp < '2000-01-01'")
    assert (row, objects) == ((0,), 0) and requests["GET"] <= 1 + 5
    times = [record.timestamp_ms for record in sparkwal.Log(path, **options).records()]
    since = f"_wal_timestamp >= make_timestamptz({times[15]}000)"
    row, requests, objects = asked(f"SELECT count(v) FROM log WHERE {since}")
    assert objects == row[0] // 20_000 <= 3 and requests["GET"] <= 1 + 5 + 2 * objects
    assert asked("SELECT count(*) FROM consumers") == ((0,), {"LIST": 3, "GET": 1}, 0)
    assert asked("SELECT 1") == ((1,), looked, 0)
    assert asked("SELECT count(v) FROM log")[2] == 16
    assert {request.method for request in s3_proxy.requests} == {"GET"}


@pytest.mark.process
def test_an_aggregate_holds_some_batches_and_not_the_log(tmp_path: Path) -> None:
    path = str(tmp_path / "wal")
    commits = 40
    each = 100_000
    with sparkwal.Appender(path, SCHEMA, producer_id="p", maxBufferedBytes="1gb") as wal:
        for n in range(commits):
            names = pa.repeat(str(n) * 100, each)
            rows = pa.table({"id": range(n * each, (n + 1) * each), "name": names}, SCHEMA)
            wal.append(rows).result()
    size = commits * rows.nbytes
    del rows, names
    query = "SELECT count(*), max(id), count(DISTINCT name) FROM log"
    code = (
        f"import pyarrow, sparkwal; print(sparkwal.Log({path!r}).sql({query!r}).read_all()[0][0])"
    )
    code += "; print(pyarrow.default_memory_pool().max_memory())"
    reported = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    count, most = map(int, reported.stdout.split())
    assert count == commits * each and most < size // 3
    # An answer is streamed too.
    reader = sparkwal.Log(path).sql("SELECT id FROM log")
    assert sum(batch.num_rows for batch in reader) == commits * each


@pytest.mark.process
def test_a_query_that_takes_long_prints_no_progress() -> None:
    code = (
        "from sparkwal.sql.database import connect; "
        "print(connect().execute(\"SELECT current_setting('enable_progress_bar')\").fetchone())"
    )
    reported = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert reported.stdout == "(False,)\n"


frame = pa.table({"secret": ["a variable of Python"]})


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT * FROM frame", "frame does not exist; there are log, records"),
        ("SELECT * FROM read_csv('/etc/passwd')", "disabled by configuration"),
        ("SELECT * FROM '/etc/passwd'", "does not exist"),
        ("SELECT * FROM read_text('/etc/passwd')", "disabled by configuration"),
        ("SELECT * FROM glob('/*')", "disabled by configuration"),
        ("SELECT * FROM 's3://bucket/x.parquet'", "disabled by configuration"),
        ("SELECT getenv('HOME')", "does not exist"),
        ("COPY log TO '{folder}/x.csv'", "one SELECT"),
        ("ATTACH '{folder}/x.db'", "one SELECT"),
        ("INSTALL httpfs", "one SELECT"),
        ("LOAD httpfs", "one SELECT"),
        ("SET threads = 1", "one SELECT"),
        ("PRAGMA version", "one SELECT"),
        ("CREATE TABLE x AS FROM log", "one SELECT"),
        ("EXPORT DATABASE '{folder}/x'", "one SELECT"),
        ("SELECT 1; COPY log TO '{folder}/x.csv'", "one SELECT"),
        ("SELECT 'a", "unterminated"),
        ("SELECT none FROM log", "not found"),
        ("SELECT name::INT FROM log", "Could not convert"),
        ("", "one SELECT"),
    ],
)
def test_a_query_reads_its_relations_and_nothing_else(
    path: str, tmp_path: Path, query: str, said: str
) -> None:
    before = {*tmp_path.rglob("*")}
    with pytest.raises(OptionError, match=said):
        ask(path, query.format(folder=tmp_path))
    assert said in ran("sql", path, query.format(folder=tmp_path), code=2)
    assert {*tmp_path.rglob("*")} == before


def test_the_database_itself_is_closed_and_stays_so(tmp_path: Path) -> None:
    database = connect()
    for statement in (
        f"COPY (SELECT 1) TO '{tmp_path}/x.csv'",
        f"ATTACH '{tmp_path}/x.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "RESET lock_configuration",
        "SELECT * FROM frame",
    ):
        with pytest.raises(duckdb.Error):
            database.execute(statement).fetchall()
    assert [*tmp_path.iterdir()] == []
    assert database.execute("SELECT current_setting('TimeZone')").fetchall() == [("UTC",)]
    database.close()


def test_damage_is_named_by_position_and_object(path: str) -> None:
    damaged = Path(path, "batches", keys.encode(keys.slot(4, 1000)))
    damaged.write_bytes(damaged.read_bytes()[:100])
    for query in ("SELECT sum(id) FROM log", "SELECT sum(rows) FROM records"):
        for tolerant in (False, True):
            with pytest.raises(InvalidLogError, match=damaged.name):
                ask(path, query, failOnDataLoss=not tolerant)
        shown = ran("sql", path, query, code=1)
        assert damaged.name in shown and "position 4" in shown
    # Records that a query does not need are not read.
    assert ask(path, "SELECT sum(id)::INT FROM log WHERE _wal_position > 6") == [(24,)]
    assert ask(path, "SELECT max(position) FROM records", onCorruption="stop") == [(3,)]
    damaged.unlink()
    with pytest.raises(InvalidLogError, match="position 4"):
        ask(path, "SELECT sum(rows) FROM records")
    assert ask(path, "SELECT count(*) FROM records", failOnDataLoss=False) == [(9,)]


def test_every_output_format_holds_the_answer(path: str, tmp_path: Path) -> None:
    query = "SELECT id, name, 0.5::DECIMAL(3, 1) d FROM log ORDER BY id"
    assert lines("sql", path, f"{query} LIMIT 1") == [{"id": 1, "name": "n1", "d": "0.5"}]
    assert ran("sql", path, query).split()[:3] == ["id", "name", "d"]
    assert ran("sql", path, query, "--format", "csv").splitlines()[1] == '1,"n1","0.5"'
    out = {form: tmp_path / f"x.{form}" for form in ("arrow", "arrows", "parquet")}
    for form, file in out.items():
        ran("sql", path, query, "--format", form.removesuffix("s"), "-o", str(file))
    found = pa.ipc.open_file(out["arrow"].read_bytes()).read_all()
    assert found.num_rows == 9
    assert found == pa.ipc.open_stream(out["arrows"].read_bytes()).read_all()
    assert pa.parquet.read_table(out["parquet"]).to_pylist() == found.to_pylist()
    assert "-o FILE" in ran("sql", path, query, "--format", "parquet", code=2)
    empty = query.replace("ORDER", "WHERE false ORDER")
    assert ran("sql", path, empty, "--format", "csv") == '"id","name","d"\n'
    ran("sql", path, empty, "--format", "parquet", "-o", str(out["parquet"]))
    assert pa.parquet.read_table(out["parquet"]).schema.names == ["id", "name", "d"]
    # Sums of whole numbers are whole numbers.
    assert lines("sql", path, "SELECT sum(id) s FROM log") == [{"s": 45}]


def test_types_that_no_log_has_are_printed(path: str) -> None:
    query = """SELECT INTERVAL 90 MINUTE a, INTERVAL '-1 month 3 days' b, [INTERVAL 1 SECOND] c,
        uuid() IS NULL d, 'a'::ENUM ('a', 'b') e, [1, 2]::INT[2] f, '101'::BIT::VARCHAR g,
        12345678901234567890::HUGEINT h, TIME '12:00:00' i,
        '00000000-0000-0000-0000-000000000001'::UUID j
    """
    (found,) = lines("sql", path, query)
    assert list(found.values())[:9] == [
        "PT5400S",
        "P-1M3DT0S",
        ["PT1S"],
        False,
        "a",
        [1, 2],
        "101",
        12345678901234567890,
        "12:00:00.000000",
    ]
    assert "0001" in found["j"] and "P-1M3DT0S" in ran("sql", path, query)
    ran("sql", path, query, "--format", "csv")
    file = str(Path(path).parent / "x.parquet")
    assert "cast it" in ran("sql", path, query, "--format", "parquet", "-o", file, code=2)
    assert not Path(file).exists()


def test_a_query_of_a_missing_log_is_refused(tmp_path: Path) -> None:
    assert "there is no log" in ran("sql", str(tmp_path / "none"), "SELECT 1", code=2)
    with pytest.raises(OptionError, match="there is no log"):
        ask(str(tmp_path / "none"), "SELECT 1")


@pytest.mark.process
def test_a_signal_ends_a_query_that_runs(tmp_path: Path) -> None:
    path = str(tmp_path / "wal")
    write(path, 1)
    query = "SELECT count(*) FROM range(1000000) a, range(1000000) b, log WHERE hash(a, b) = 1"
    process = subprocess.Popen([*COMMAND, "sql", path, query], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(5)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert process.stderr.read() == ""


@pytest.mark.process
def test_a_fork_in_the_middle_of_an_answer_asks_again(tmp_path: Path) -> None:
    """DuckDB's threads are not in a fork: a wait for one never returns, or crashes."""
    write(str(tmp_path / "wal"), *range(1, 60))
    program = """
        import os, sys
        from sparkwal import Log, OptionError
        log = Log(sys.argv[1])
        query = "SELECT a.id FROM log a, log b, log c, range(30)"
        answer, other, unread = (log.sql(query) for _ in range(3))
        next(other)
        rows = next(iter(answer)).num_rows
        if not (child := os.fork()):
            try:
                next(answer)
            except OptionError as error:
                print(error, flush=True)
            del answer, other, unread
            print(log.sql("SELECT count(*) AS n FROM log").read_all().to_pylist(), flush=True)
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        print(rows + answer.read_all().num_rows)
        """
    program = textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, str(tmp_path / "wal")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = [
        "a forked process cannot read its parent's result: run the query in the fork",
        "[{'n': 59}]",
        "3",
    ]
    assert done.stdout.splitlines() == [*found, str(59**3 * 30)], done.stderr


def test_rows_that_do_not_fit_into_memory_are_readable_by_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    connection = connect()
    (folder,) = tmp_path.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    connection.close()
    del connection
    gc.collect()
    assert [*tmp_path.iterdir()] == []
