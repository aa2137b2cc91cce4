"""`sparkwal log`."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import chain, count
from pathlib import Path

import pytest
from click.testing import CliRunner
from reading.collected import move_floor

import sparkwal
from sparkwal.cli.main import main
from sparkwal.cli.output import moment
from sparkwal.format import keys
from sparkwal.format.header import REMOTE, Checkpoint
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.slots import SlotRecord
from sparkwal.reading.history import Collected, Follower
from sparkwal.reading.log_range import LogRange
from sparkwal.testing.proxy import S3Proxy
from sparkwal.testing.servers import log_options
from tests.cli.logs import BEGAN_MS, COMMAND, as_flags, lines, opened, ran, write_long
from tests.cli.logs import write_takeovers as takeovers
from tests.headers import COMMIT, LEADER, plain
from tests.logs import append
from tests.protocol.query import StoppedClock


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> str:
    """600 commits after a leader record; position n is of n ms after BEGAN_MS."""
    return write_long(tmp_path_factory.mktemp("long") / "log", 600)


def positions(*arguments: str) -> list[int]:
    return [line["position"] for line in lines("log", *arguments)]


def test_records_are_listed_newest_first_or_reversed(long: str) -> None:
    everything = list(range(600, -1, -1))
    assert positions(long) == everything
    assert positions(long, "--reverse") == everything[::-1]
    assert positions(long, "-n", "3") == [600, 599, 598]
    assert positions(long, "--reverse", "-n", "3") == [598, 599, 600]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["7"], [7]),
        (["5..8"], [8, 7, 6, 5]),
        (["598.."], [600, 599, 598]),
        (["..2"], [2, 1, 0]),
        (["--start", "5", "--end", "7"], [7, 6, 5]),
        (["5..8", "-n", "2", "--reverse"], [7, 8]),
        (["--since", moment(BEGAN_MS + 599)], [600, 599]),
        (["--since", str(BEGAN_MS + 595), "--until", str(BEGAN_MS + 597)], [597, 596, 595]),
        (["--until", moment(BEGAN_MS + 1), "590.."], []),
        (["--since", "1h"], []),
        (["601.."], []),
    ],
)
def test_a_range_bounds_the_listed_records(
    long: str, arguments: list[str], expected: list[int]
) -> None:
    assert positions(long, *arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["a..b"], "no range of positions"),
        ([".."], "no range of positions"),
        (["1..2", "--start", "1"], "give one of them"),
        (["602.."], "after the end of the log"),
        (["8..5"], "lies before"),
        (["--since", "yesterday"], "a time before now"),
        (["--follow", "--end", "5"], "--follow has no end"),
        (["--follow", "--interval", "5"], "a time with a unit, at most 36500d"),
    ],
)
def test_an_invalid_range_is_wrong_usage(long: str, arguments: list[str], why: str) -> None:
    assert why in " ".join(ran("log", long, *arguments, code=2).split())


def test_the_table_for_people_has_a_heading_and_a_line_for_each_record(long: str) -> None:
    heading, newest, *_, oldest = ran("log", long).splitlines()
    assert heading.split() == [
        "position",
        "time",
        "(UTC)",
        "kind",
        "rows",
        "bytes",
        "term",
        "query/batch",
    ]
    place, time, kind, rows, count, unit, term, query = newest.split()
    assert (place, kind, rows, unit, term) == ("600", "commit", "10", "B", "1")
    assert time == moment(BEGAN_MS + 600) and int(count) > 0
    assert query == "1b4e28ba-2fa1-4a4c-9d7e-1f0c5a7c7f55/599"
    assert oldest.split()[2:] == ["leader", "1", "host:", "cold", "start"]


def test_a_query_is_shown_by_its_name_where_the_log_knows_it(tmp_path: Path) -> None:
    (tmp_path / "log" / "batches").mkdir(parents=True)
    entry = Checkpoint(1, 10, 0, 0, REMOTE, {}, {}, name="orders")
    named = replace(COMMIT, checkpoints={COMMIT.query_id: entry}, rows=0, bytes=0, batches=())
    leader = replace(LEADER, prev_position=-1)
    for position, record in enumerate([leader, named, replace(named, checkpoints={})]):
        number = keys.slot(position, 1000)
        record = replace(record, number=number, position=position, in_flight_limit=1, term=1)
        file = tmp_path / "log" / "batches" / keys.encode(number)
        file.write_bytes(plain(record))
    path = str(tmp_path / "log")
    newest, before, _ = lines("log", path)
    assert (before["query"], newest["query"]) == ("orders", COMMIT.query_id)
    assert before["query_id"] == COMMIT.query_id
    _, newest, before, _ = ran("log", path).splitlines()
    assert before.endswith(f" orders/{COMMIT.batch_id}")
    assert newest.endswith(f"{COMMIT.query_id}/{COMMIT.batch_id}")
    assert "orders" in ran("show", path, "1").rpartition("checkpoints")[2]
    queries = "SELECT query, query_id FROM records WHERE kind = 'commit' ORDER BY position"
    assert lines("sql", path, queries) == [
        {"query": name, "query_id": COMMIT.query_id} for name in ("orders", COMMIT.query_id)
    ]


def test_dead_records_and_seals_are_left_out_in_both_directions(tmp_path: Path) -> None:
    path, live, _ = takeovers(tmp_path / "log")
    assert positions(path) == live[::-1]
    assert positions(path, "--reverse") == live
    for start in range(15):
        expected = [each for each in live if each >= start]
        assert positions(path, f"{start}..", "--reverse") == expected
        assert positions(path, f"..{start}") == [each for each in live if each <= start][::-1]
    known = sparkwal.Log(path).records()
    assert [each.position for each in known if each.position not in (7, 11)] == live


def test_a_damaged_record_is_reported_and_skipped(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    append(path, *range(5))
    slots = {p: tmp_path / "log" / "batches" / keys.encode(keys.slot(p, 1000)) for p in range(6)}
    slots[3].write_bytes(b"not arrow")
    kinds = {0: "leader", 1: "commit", 2: "commit", 3: "damaged", 4: "commit", 5: "commit"}
    for order in ([], ["--reverse"]):
        reported = {each["position"]: each["kind"] for each in lines("log", path, *order, code=1)}
        assert reported == kinds
    assert "3                          damaged" in ran("log", path, code=1)
    slots[2].unlink()
    assert "position 2 is missing" in ran("log", path, code=1)
    shown = ran("log", path, "--log-option", "failOnDataLoss=false", code=1)
    assert shown.count(" damaged  ") == 2 and "deleted from outside" in shown


@pytest.mark.slow
def test_a_log_with_a_floor_begins_there(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    append(path, *range(5))
    move_floor(opened(path), 3)
    assert positions(path) == [5, 4, 3]
    assert "below the log's floor, 3" in ran("log", path, "1..", code=1)


def test_names_that_a_terminal_would_obey_are_made_plain(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    append(path, *range(1), producer="größe\u001b[31m日本")
    shown = ran("log", path)
    assert r"größe\u001b[31m日本/0" in shown and "\u001b" not in shown
    assert lines("log", path)[0]["query_id"] == "größe\u001b[31m日本"


def test_the_newest_records_cost_one_request_each(
    s3_proxy: S3Proxy, s3_path: tuple[str, dict[str, str]]
) -> None:
    path, options = s3_path
    append(path, *range(40), maxInFlightRequests=50, **options)
    there = as_flags(log_options(s3_proxy.url))
    s3_proxy.reset()
    newest = lines("log", path, "-n", "10", *there)
    assert len(newest) == 10 and s3_proxy.counts() == {"LIST": 3, "GET": 10}
    s3_proxy.reset()
    since = lines("log", path, "--since", newest[-1]["timestamp"], *there)
    assert since == newest and s3_proxy.counts()["GET"] <= 41 + 6 + 10


def start(path: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "log", path, "--follow", "--interval", "50ms", "--json", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def following(process: subprocess.Popen[str], count: int) -> list[tuple[int, str]]:
    assert process.stdout is not None
    reported = [json.loads(process.stdout.readline()) for _ in range(count)]
    return [(each.get("position", each.get("start")), each["kind"]) for each in reported]


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """How it ended, and what it said then."""
    _, error = process.communicate(timeout=60)
    return process.returncode, error


@pytest.mark.process
def test_it_follows_over_takeovers_until_ctrl_c(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    append(path, *range(3))
    process = start(path, "-n", "2")
    assert following(process, 2) == [(2, "commit"), (3, "commit")]
    append(path, *range(3, 5), producer="other")
    assert following(process, 3) == [(4, "leader"), (5, "commit"), (6, "commit")]
    process.send_signal(signal.SIGINT)
    assert ended(process) == (130, "")


@pytest.mark.slow
def test_a_follower_continues_at_a_floor_that_passed_it(tmp_path: Path) -> None:
    path, clock = str(tmp_path / "log"), StoppedClock()
    append(path, *range(6))
    options = SourceOptions(path=path)
    log = LogRange(options, options.sequencer, opened(path), clock)
    log.refresh()
    follower = Follower(log, 1)
    found = chain.from_iterable(follower.new() for _ in count())
    assert isinstance(first := next(found), SlotRecord) and first.header.position == 1
    move_floor(opened(path), 5)
    clock.since_boot_ms += 3_600_000
    clock.wall_ms += 3_600_000
    assert next(found) == Collected(2, 5)
    assert isinstance(then := next(found), SlotRecord) and then.header.position == 5


@pytest.mark.process
def test_a_recreated_log_ends_its_follower(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    append(path, *range(5))
    process = start(path, "5..")
    assert following(process, 1) == [(5, "commit")]
    shutil.rmtree(path)
    append(path, *range(2))
    code, error = ended(process)
    assert code == 1 and "recreated" in error


@pytest.mark.process
def test_a_follower_whose_reader_goes_away_ends_although_nothing_comes(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    append(path, *range(2))
    process = start(path)
    assert following(process, 3)[-1] == (2, "commit")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == ""
    process.stderr.close()


_MEMORY = """
import resource, sys
from sparkwal.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, file=sys.stderr)
"""


@pytest.mark.slow
def test_a_log_of_100_000_records_takes_no_more_memory_than_a_short_one(tmp_path: Path) -> None:
    path = write_long(tmp_path / "log", 100_000)

    def megabytes(*arguments: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", _MEMORY, "log", path, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=True,
        )
        return int(done.stderr)

    few = megabytes("-n", "10")
    assert megabytes() < few + 60
    assert megabytes("--reverse") < few + 60


def test_a_log_whose_positions_are_all_below_the_floor_says_so(tmp_path: Path) -> None:
    path = str(tmp_path / "wal")
    append(path, *range(3))
    move_floor(opened(path), 4)
    result = CliRunner().invoke(main, ["log", path])
    assert result.exit_code == 0
    assert "no record: all positions are below the floor, 4" in result.stderr
    assert CliRunner().invoke(main, ["log", path, "--json"]).output == ""
    append(path, 4)
    assert "no record" not in CliRunner().invoke(main, ["log", path]).stderr
