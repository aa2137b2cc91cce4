"""cat and head: which rows, in which form, to where."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest
from click.testing import CliRunner
from reading.collected import collect, move_floor
from rich.cells import cell_len

import sparkwal
from sparkwal.cli.main import main
from sparkwal.store.base import LogStore
from sparkwal.store.local import LocalStore
from sparkwal.testing.proxy import S3Proxy
from sparkwal.testing.servers import log_options
from support.json_rows import JsonRows
from tests.cli.shown import SCHEMA, SOURCE, append, ids, lines, run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Positions 1 … 5 hold the rows 1 … 5."""
    append(tmp_path / "wal", 1, 2, 3, 4, 5)
    return tmp_path / "wal"


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ([], [1, 2, 3, 4, 5]),
        (["2..3"], [2, 3]),
        (["4.."], [4, 5]),
        (["..2"], [1, 2]),
        (["3"], [3]),
        (["--start", "2", "--end", "4"], [2, 3, 4]),
        (["--since", "1h"], [1, 2, 3, 4, 5]),
        (["--until", "2020-01-01"], []),
        # As a number the one would look like seconds, the other like no time at all.
        (["--until", "1972-01-01"], []),
        (["--since", "1969-07-20"], [1, 2, 3, 4, 5]),
        (["--where", "id % 2 = 1 AND name <> 'n3'"], [1, 5]),
        (["2..", "--where", "_wal_position < 4", "--columns", "id"], [2, 3]),
        (["--where", "ID IN (1, 4) AND name LIKE 'n%' OR _wal_row = 7"], [1, 4]),
        (["--where", "id BETWEEN 2 AND 3 -- and no more"], [2, 3]),
        (["--where", "NULL"], []),
    ],
)
def test_cat_prints_the_rows_of_the_range(
    path: Path, arguments: list[str], found: list[int]
) -> None:
    assert ids("cat", path, *arguments) == found


@pytest.mark.parametrize(("count", "found"), [(0, []), (2, [1, 2]), (99, [1, 2, 3, 4, 5])])
def test_head_prints_the_first_rows(path: Path, count: int, found: list[int]) -> None:
    assert ids("head", path, "-n", count) == found
    assert ids("head", path, "-n", count, "--where", "id > 0") == found


def test_head_and_cat_begin_at_the_floor(path: Path) -> None:
    log = LogStore(LocalStore(path), "")
    move_floor(log, 4)
    collect(log, 4)
    assert ids("cat", path) == ids("head", path) == [4, 5]
    assert "below the log's floor" in run("cat", path, "--start", 2, code=1)


def test_rows_of_several_sequencers_are_printed_in_the_order_of_their_commits(path: Path) -> None:
    append(path, 10, sequencer="b")
    append(path, 6)
    append(path, 11, 12, sequencer="b")
    wider = pa.schema([*SCHEMA, ("more", pa.int64())])
    append(path, 20, sequencer="c", schema=wider)
    assert ids("cat", path, "--all") == [1, 2, 3, 4, 5, 10, 6, 11, 12, 20]
    assert ids("cat", path, "--sequencer", "b") == [10, 11, 12]
    rows = lines("cat", path, "--sequencers", "c,b", "--metadata", "--where", "id > 11")
    assert [(row["id"], row["more"], row["_wal_sequencer"]) for row in rows] == [
        (12, None, "b"),
        (20, None, "c"),
    ]
    assert ids("tail", path, "-n", 4, "--all") == [6, 11, 12, 20]
    assert ids("head", path, "-n", 6, "--all") == [1, 2, 3, 4, 5, 10]
    assert "no log of sequencer d" in run("cat", path, "--sequencers", "b,d", code=2)
    append(path, 1, sequencer="odd", schema=pa.schema([("id", pa.float64())]))
    assert "in another sequencer" in run("cat", path, "--all", code=2)


def test_the_table_of_a_pipe_is_whole_and_no_value_commands_a_terminal(tmp_path: Path) -> None:
    append(tmp_path / "wal", 1)
    with sparkwal.Appender(str(tmp_path / "wal"), SCHEMA, producer_id="q") as wal:
        wal.append([{"id": None, "name": "x" * 500}, {"id": 2**62, "name": "\u001b[31m\n日本"}])
    table = run("cat", tmp_path / "wal")
    assert "x" * 500 in table and "\x1b" not in table and r"\u001b[31m\n日本" in table
    assert table.splitlines()[0].split() == ["id", "name"]
    assert "null" in table and str(2**62) in table


def terminal(*arguments: object, columns: int = 40) -> str:
    """The output of a command on a terminal of this width."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "sparkwal", *map(str, arguments)],
        stdout=theirs,
        stderr=theirs,
        stdin=subprocess.DEVNULL,
        env={
            **os.environ,
            "COLUMNS": str(columns),
            "TERM": "xterm",
            "PYTHONPATH": SOURCE,
            "NO_COLOR": "1",
        },
    )
    os.close(theirs)
    shown = b""
    try:
        while more := os.read(ours, 65536):
            shown += more
    except OSError:
        pass  # on Linux: the other side closed
    os.close(ours)
    assert process.wait() in (0, 2)
    return shown.decode()


@pytest.mark.process
def test_on_a_terminal_a_row_is_a_line_that_fits(tmp_path: Path) -> None:
    wide = pa.schema([("id", pa.int64()), *((f"c{n}", pa.string()) for n in range(9))])
    with sparkwal.Appender(str(tmp_path / "wal"), wide, producer_id="p") as wal:
        wal.append([{"id": 7, **{f"c{n}": "日本" * 30 for n in range(9)}}])
    shown = terminal("cat", tmp_path / "wal").splitlines()
    assert all(cell_len(line) <= 40 for line in shown)
    assert "…" in shown[-1] and shown[-1].strip().startswith("7")
    assert "no text for a terminal" in terminal("cat", tmp_path / "wal", "--format", "arrow")


def test_printed_json_can_be_appended_again(path: Path) -> None:
    printed = run("cat", path, "--json").encode()
    back = pa.Table.from_batches(list(JsonRows(SCHEMA).batches(printed)))
    assert back == sparkwal.Log(str(path)).scan().read_all()


def test_csv_and_arrow_output_hold_the_same_rows(path: Path, tmp_path: Path) -> None:
    rows = sparkwal.Log(str(path)).scan().read_all()
    assert pa.csv.read_csv(io.BytesIO(run("cat", path, "--format", "csv").encode())) == rows
    for name, opened in (("a.arrow", pa.ipc.open_file), ("a.arrows", pa.ipc.open_stream)):
        run("cat", path, "--format", "arrow", "-o", tmp_path / name)
        assert opened((tmp_path / name).read_bytes()).read_all() == rows
    stream = CliRunner().invoke(main, ["cat", str(path), "--format", "arrow"]).stdout_bytes
    assert pa.ipc.open_stream(stream).read_all() == rows
    # Without rows the columns are still printed.
    none = ["--where", "id < 0"]
    assert run("cat", path, *none, "--format", "csv") == '"id","name"\n'
    assert run("cat", path, *none).split()[:2] == ["id", "name"]
    assert run("cat", path, *none, "--json") == ""
    empty = CliRunner().invoke(main, ["head", str(path), "-n", "0", "--format", "arrow"])
    assert pa.ipc.open_stream(empty.stdout_bytes).read_all() == rows.slice(0, 0)


def test_a_file_appears_when_it_is_whole(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "rows.json"
    out.parent.mkdir()
    out.write_text("before")
    # The last but one: numbers count down.
    damaged = sorted(path.glob("batches/*"))[1]
    data = damaged.read_bytes()
    damaged.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    run("cat", path, "--json", "-o", out, code=1)
    assert out.read_text() == "before" and list(out.parent.iterdir()) == [out]
    damaged.write_bytes(data)
    run("cat", path, "--json", "-o", out)
    assert len(out.read_text().splitlines()) == 5 and list(out.parent.iterdir()) == [out]
    assert "No such file" in run("cat", path, "-o", tmp_path / "none" / "x", code=2)


@pytest.mark.process
def test_a_pipe_with_a_name_is_written_to_and_not_replaced(path: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        run("cat", path, "--json", "-o", pipe)
        assert reader.stdout is not None
        assert len(reader.stdout.read().splitlines()) == 5
    assert pipe.is_fifo()


def test_the_number_of_a_row_does_not_depend_on_where_the_reading_begins(path: Path) -> None:
    with sparkwal.Appender(str(path), SCHEMA, producer_id="q") as wal:
        wal.append([{"id": n, "name": None} for n in (7, 8)]).result()
    columns = ["--columns", "id,_wal_row,_wal_query_id", "--json"]
    found = [json.loads(line) for line in run("cat", path, "--where", "id > 4", *columns).split()]
    assert [tuple(row.values()) for row in found] == [(5, 0, "p"), (7, 0, "q"), (8, 1, "q")]
    (last,) = run("tail", path, "-n", 1, *columns).split()
    assert json.loads(last) == found[-1]
    (last,) = run("tail", path, "-n", 1, "--where", "id = 8", *columns).split()
    assert json.loads(last) == found[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "csv", "--json"], "give one of them"),
        (["--columns", "id,none"], "'none' is not in the log"),
        (["--columns", "id,id"], "names a column twice"),
        (["--where", "none > 1"], 'column "none" not found'),
        (["--where", ""], "is empty"),
        (["--where", "id = "], "syntax error"),
        (["--where", "id = (SELECT max(id) FROM log)"], "cannot contain a query"),
        (["--where", "true); DROP TABLE log; SELECT (1"], "one SELECT"),
        (["--where", "id = 1) OR (true"], "syntax error"),
        (["--where", "name > 5"], "cast is required"),
        (["--where", "name::INT > 5"], "Could not convert"),
        (["x..y"], "no range of positions"),
        (["1..2", "--start", "1"], "give one of them"),
        (["--end", "99"], "after the end of the log"),
        (["--since", "yesterday"], "2026-01-31"),
        (["--log-option", "lease=1h"], "lease does not go with a command"),
        (["--all", "--sequencer", "x"], "give one of them"),
        (["--all", "--sequencers", "x"], "give one of them"),
        (["--sequencers", "*"], "give --all"),
        (["--sequencers", ""], "names no log"),
        (["--sequencers", " , "], "names no log"),
    ],
)
def test_wrong_usage_prints_an_error_and_exits_with_2(
    path: Path, arguments: list[str], said: str
) -> None:
    assert said in run("cat", path, *arguments, code=2).replace("\n", " ")


def test_no_log_is_exit_code_1(tmp_path: Path) -> None:
    for command in ("cat", "head", "tail"):
        assert "there is no log" in run(command, tmp_path / "none", code=2)
        assert "there is no log" in run(command, tmp_path / "none", "--all", code=2)
    with sparkwal.Appender(str(tmp_path / "empty"), SCHEMA, producer_id="p"):
        pass
    for command in ("cat", "head", "tail"):
        assert run(command, tmp_path / "empty").split()[:2] == ["id", "name"]


def test_the_commands_write_no_object(path: Path) -> None:
    before = {str(each) for each in path.rglob("*")}
    for command in ("cat", "head", "tail"):
        run(command, path, "--all")
    assert {str(each) for each in path.rglob("*")} == before


def test_head_and_tail_read_only_the_records_that_they_show(
    s3_bucket: str, ministack_url: str
) -> None:
    where = f"s3://{s3_bucket}/wal"
    append(where, *range(1, 41), **log_options(ministack_url))

    def asked(*arguments: object) -> tuple[list[int], dict[str, int]]:
        # One proxy for each command: an abandoned request may arrive after its command has ended.
        with S3Proxy(ministack_url) as proxy:
            options = log_options(proxy.url).items()
            given = [
                part for name, value in options for part in ("--log-option", f"{name}={value}")
            ]
            found = ids(*arguments, *given)
            assert {x.method for x in proxy.requests} == {"GET"}
            return found, dict(proxy.counts())

    # The head, whether the log has a floor, and other logs.
    looked = {"LIST": 2 + 1, "GET": 1}
    assert asked("tail", where, "-n", 1) == ([40], looked)
    # Back in steps of 1, 2 and 4.
    found, requests = asked("tail", where, "-n", 3)
    assert (found, requests) == ([38, 39, 40], {"LIST": 3, "GET": 1 + 2})
    found, requests = asked("tail", where, "-n", 5)
    assert (found, requests["LIST"]) == ([36, 37, 38, 39, 40], 3) and requests["GET"] <= 1 + 2 + 4
    found, requests = asked("tail", where, "-n", 2, "--where", "id <= 39")
    assert (found, requests["LIST"]) == ([38, 39], 3) and requests["GET"] <= 1 + 2 + 4
    # From the floor on, beginning with the leader's record; for each record that is taken one more
    # is asked for: those after the last that is shown may have begun.
    found, requests = asked("head", where, "-n", 2)
    assert found == [1, 2] and requests["LIST"] == 3 and requests["GET"] <= 1 + 3 + 2


def test_a_draft_of_a_killed_process_disturbs_no_later_run(tmp_path: Path) -> None:
    append(tmp_path / "wal", 1)
    file, link = tmp_path / "rows.csv", tmp_path / "link.csv"
    # In a container every process may have the same number.
    (tmp_path / f".rows.csv.{os.getpid()}.tmp").write_text("half")
    run("cat", tmp_path / "wal", "--format", "csv", "-o", file)
    whole = file.read_text()
    file.write_text("before")
    link.symlink_to(file)
    run("cat", tmp_path / "wal", "--format", "csv", "-o", link)
    assert link.is_symlink() and file.read_text() == whole


def test_a_condition_that_is_no_boolean_is_read_as_one_or_refused(path: Path) -> None:
    assert len(run("cat", path, "--where", "_wal_position + 1", "--json").splitlines()) == 5
    refused = CliRunner().invoke(main, ["cat", str(path), "--where", "'some text'"])
    assert refused.exit_code in (1, 2) and isinstance(refused.exception, SystemExit), refused.output
