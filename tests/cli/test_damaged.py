"""Commands that look at a log of which something is damaged or missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from sparkwal.cli import tailing
from sparkwal.cli.main import main
from sparkwal.format import keys
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.slots import read_slot
from sparkwal.protocol.task import TaskAttempt, TaskLimits, write_partition
from sparkwal.protocol.view import LENIENT
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.pieces import Piece
from sparkwal.sql import relations
from tests.cli.logs import document, opened
from tests.consumers import consumer, publish
from tests.logs import append, record
from tests.protocol.query import Query, hints_in, rows

# The leader record and twelve commits of one row each: position n holds the row n − 1.
END = 12
DamageFunction = Callable[[Path], None]


def flip(path: Path, position: int) -> None:
    """One bit of a record's header."""
    data = bytearray(record(path, position).read_bytes())
    data[data.index(b'"leader_id"') + 15] ^= 1
    record(path, position).write_bytes(bytes(data))


def remove(path: Path, position: int) -> None:
    record(path, position).unlink()


# Damage to positions of a log, its writer's batches in flight, and the lost positions.
CASES = {
    "a flipped record": (1, {5: flip}),
    "the newest record": (1, {12: flip}),
    "the two newest records": (1, {11: flip, 12: flip}),
    "the first record": (1, {0: flip}),
    "a missing record": (1, {5: remove}),
    "a missing and a flipped record": (1, {3: flip, 8: remove}),
    "one among those in flight": (8, {10: flip}),
}
# Each command runs these cases always; tests/reading tests a read of each case.
OFTEN = ("the newest record", "the first record", "a missing and a flipped record")


@pytest.fixture(
    params=[pytest.param(name, marks=[] if name in OFTEN else pytest.mark.slow) for name in CASES]
)
def harmed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[int]]:
    limit, harms = CASES[request.param]
    path = tmp_path / "log"
    append(str(path), *range(END), maxInFlightRequests=limit)
    for position, harm in harms.items():
        harm(path, position)
    return path, list(harms)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def reports(result: Result, path: Path, positions: list[int]) -> None:
    """Each damaged position is named once, with its object; the advice comes last."""
    assert result.exit_code == 1, result.output
    *lines, advice = result.stderr.splitlines()
    assert len(lines) == 1 + len(positions), result.stderr
    for position in positions:
        (line,) = (each for each in lines if f"position {position}" in each)
        assert record(path, position).name in line
    assert "backup" in advice and "sparkwal verify" in advice


@pytest.mark.parametrize("command", ["cat", "head", "tail"])
def test_one_damaged_record_does_not_hide_the_rows_of_the_others(
    harmed: tuple[Path, list[int]], command: str
) -> None:
    path, lost = harmed
    count = () if command == "cat" else ("-n", 99)
    result = run(command, path, "--json", *count)
    shown = [json.loads(line)["v"] for line in result.stdout.splitlines()]
    assert shown == [row for row in range(END) if row + 1 not in lost]
    reports(result, path, lost)


def test_one_damaged_record_does_not_hide_the_others(harmed: tuple[Path, list[int]]) -> None:
    path, lost = harmed
    for order in ((), ("--reverse",), ("--since", "1h")):
        result = run("log", path, "--json", *order)
        kinds = {
            each["position"]: each["kind"] for each in map(json.loads, result.stdout.splitlines())
        }
        assert list(kinds) == sorted(kinds, reverse=order != ("--reverse",))
        assert sorted(kinds) == list(range(END + 1))
        assert [place for place in sorted(kinds) if kinds[place] == "damaged"] == lost
        reports(result, path, lost)


def test_the_figures_are_those_of_the_intact_records(
    harmed: tuple[Path, list[int]], tmp_path: Path
) -> None:
    path, lost = harmed
    commits = END - len([position for position in lost if position])
    result = run("cost", path, "--json")
    reports(result, path, lost)
    reported = json.loads(result.stdout)
    assert reported["total"]["commits"] == commits and len(reported["logs"][0]["damage"]) == len(
        lost
    )
    # Each position was written, also the unreadable ones; only positions before the first
    # intact record has no time to be counted in.
    assert reported["total"]["requests"]["PUT"] == END + 1 - (0 in lost)
    page = tmp_path / "page.html"
    reports(run("report", path, "-o", page), path, lost)
    totals = document("report", str(path), code=1)["totals"]
    assert (totals["commits"], totals["rows"], totals["dead"]) == (commits, commits, 0)
    text = page.read_text()
    assert "Damaged objects" in text and all(record(path, each).name in text for each in lost)


def test_commands_on_a_damaged_log_print_what_to_do(
    harmed: tuple[Path, list[int]],
) -> None:
    path, lost = harmed
    for command in (("verify",), ("show", lost[0]), ("sql", "SELECT count(v) FROM log")):
        result = run(command[0], path, *command[1:])
        assert result.exit_code == 1, result.output
        lines = result.output.splitlines()
        assert "estore it" in lines[-1], result.output
        assert any(record(path, each).name in line for line in lines for each in lost), (
            result.output
        )
        assert command[0] != "verify" or len(lines) == len(set(lines))


def test_status_shows_the_newest_intact_record(harmed: tuple[Path, list[int]]) -> None:
    path, lost = harmed
    result = run("status", path, "--json")
    reported = json.loads(result.stdout)
    assert reported["position"] == max(set(range(END + 1)) - set(lost))
    # It reads samples, so it does not report damage in other records.
    damage = "\n".join(reported["damage"])
    met = [place for place in lost if record(path, place).name in damage]
    assert len(met) == len(reported["damage"])
    if met:
        reports(result, path, met)
    else:
        assert result.exit_code == 0
    # It always reads the records at the end.
    if END in lost or not record(path, lost[-1]).exists():
        assert met
    assert "head" in run("status", path).stdout


def test_show_has_intact_records_of_a_log_whose_newest_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(str(path), *range(END))
    flip(path, END)
    assert document("show", str(path), "3")["state"] == "live"
    newest = document("show", str(path), code=1)
    assert (newest["position"], newest["state"]) == (END, "damaged")
    assert f"position {END}" in newest["problems"][0]


def test_damaged_rows_do_not_hide_the_others(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = opened(path)
    sink = Query(log.store, hints_in(tmp_path), prefix=log.prefix)
    for batch in range(5):
        sink.microbatch(batch, (10 * batch, 10 * batch + 1), (10 * batch + 2,))
    held = path / "batches" / keys.encode(keys.data(3, 1000, 0))
    data = bytearray(held.read_bytes())
    start = read_slot(log, 3, 1000).header.batches[0].frames[0].offset  # type: ignore[union-attr]
    data[start + 100] ^= 1
    held.write_bytes(bytes(data))
    intact = [10 * batch + row for batch in range(5) for row in range(3)]
    intact.remove(20)
    intact.remove(21)
    shown = run("cat", path, "--json")
    assert [json.loads(line)["v"] for line in shown.stdout.splitlines()] == intact
    assert shown.exit_code == 1 and held.name in shown.stderr and "position 3" in shown.stderr
    numbered = run("cat", path, "--json", "--columns", "v,_wal_row").stdout.splitlines()
    assert {row["v"]: row["_wal_row"] for row in map(json.loads, numbered)} == {
        value: value % 10 % 2 for value in intact
    }
    for count in range(len(intact) + 3):
        newest = run("tail", path, "--json", "-n", count)
        rows = [json.loads(line)["v"] for line in newest.stdout.splitlines()]
        assert rows == intact[max(len(intact) - count, 0) :]
        oldest = run("head", path, "--json", "-n", count)
        assert [json.loads(line)["v"] for line in oldest.stdout.splitlines()] == intact[:count]


def test_head_reads_no_frame_that_it_does_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    log = opened(path)
    query = Query(log.store, hints_in(tmp_path), prefix=log.prefix)
    limits = TaskLimits(1, 1, 0, 16 * 2**20, "zstd")  # a frame for each row
    for batch in range(2):
        plan, frames = query.plan(), [rows(3 * batch + row) for row in range(3)]
        query.commit(
            [
                write_partition(
                    query.open,
                    plan.for_tasks(),
                    TaskAttempt(query.query_id, batch, 0, run_id=query.run_id, attempt=0),
                    iter(frames),
                    limits,
                )
            ]
        )
    asked: list[Piece] = []

    def read(log: LogRange, pieces: list[Piece], *more: Any) -> Iterator[pa.RecordBatch]:
        asked.extend(pieces)
        return relations.read(log, pieces, *more)

    monkeypatch.setattr(tailing, "read", read)
    for count in range(7):
        asked.clear()
        shown = run("head", path, "--json", "-n", count).stdout.splitlines()
        assert [json.loads(line)["v"] for line in shown] == [*range(count)]
        assert sum(piece.rows for piece in asked) == count


def test_a_file_does_not_appear_where_rows_are_damaged(tmp_path: Path) -> None:
    path, out = tmp_path / "log", tmp_path / "rows.json"
    append(str(path), *range(END))
    flip(path, 5)
    reports(run("cat", path, "--json", "-o", out), path, [5])
    assert not out.exists()


def test_with_on_corruption_stop_the_rows_before_the_damage_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(str(path), *range(END))
    flip(path, 5)
    shown = run("cat", path, "--json", "--log-option", "onCorruption=stop")
    assert shown.exit_code == 0 and len(shown.stdout.splitlines()) == 4


def test_with_on_corruption_stop_no_row_after_the_damage_counts(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    append(path, *range(END))
    flip(tmp_path / "log", 5)
    stop = ("--log-option", "onCorruption=stop")
    reported = document("cost", path, *stop)
    assert reported["total"]["requests"]["PUT"] == 5 and reported["total"]["commits"] == 4
    (log,) = reported["logs"]
    assert (log["start"], log["end"]) == (0, 5)
    totals = document("report", path, *stop)["totals"]
    assert (totals["commits"], totals["dead"]) == (4, 0)


def test_a_moment_is_found_beside_damage(harmed: tuple[Path, list[int]]) -> None:
    path, lost = harmed
    records = run("log", path, "--json", "--reverse").stdout.splitlines()
    times = {each["position"]: each.get("timestamp") for each in map(json.loads, records)}
    for position in range(END + 1):
        if position in lost:
            continue
        result = run("at", path, times[position], "--json")
        found = json.loads(result.stdout)
        # Several records may have one time, and a damaged one before them may have it too.
        assert found["position"] <= position
        if found["position"] in lost:
            assert found["timestamp"] is None
            assert record(path, found["position"]).name in result.stderr
        else:
            assert times[found["position"]] == found["timestamp"] == times[position]
        assert result.exit_code == bool(result.stderr)


def test_consumers_are_shown_beside_damage(harmed: tuple[Path, list[int]]) -> None:
    path, lost = harmed
    log = opened(path)
    live = find_head(log, damage=LENIENT).live
    assert live is not None
    publish(log, consumer("slow", 2, live.header.log_id))
    result = run("consumers", path, "--json")
    (found,) = map(json.loads, result.stdout.splitlines())
    newest = max(set(range(END + 1)) - set(lost))
    assert (found["name"], found["position"], found["lag"]) == ("slow", 2, newest - 1)
    # A record in the middle of the log is not read.
    assert result.exit_code == bool(result.stderr)


def test_the_numbers_of_intact_records_are_scraped(harmed: tuple[Path, list[int]]) -> None:
    path, lost = harmed
    result = run("metrics", path)
    commits = END - len([position for position in lost if position])
    (line,) = (x for x in result.stdout.splitlines() if x.startswith("sparkwal_commits_total{"))
    assert float(line.rpartition(" ")[2]) == commits
    # A record that is missing in the middle counts for nothing, and is no damage to a scrape.
    met = [
        each
        for each in lost
        if record(path, each).exists() or record(path, each).name in result.stderr
    ]
    reports(result, path, met)
