"""A record that somebody put far after a log's end: no look counts up to it.

Each of these looked at every position up to it, and so had no end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparkwal import InvalidLogError, Log, verify
from sparkwal.format import keys
from sparkwal.protocol.records import first_at_or_after, live_records
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.slots import first_listed, last_listed, read_slot
from sparkwal.protocol.view import LENIENT, DamagePolicy, LogView
from tests.cli.logs import BEGAN_MS, document, lines, opened, ran, write_long
from tests.headers import LEADER, plain

LAST = 20
FAR = 10**9
# Positions in windows of 1,000.
THE_LAST = keys.last_position(1000)


def put(folder: Path, position: int, text: bytes | None = None) -> None:
    first = read_slot(opened(folder), 0, 1000)
    assert first is not None
    header = replace(
        LEADER,
        number=keys.slot(position, 1000),
        position=position,
        term=10,
        timestamp_ms=BEGAN_MS + 10**6,
        log_id=first.header.log_id,
    )
    (folder / keys.key("", header.number)).write_bytes(text or plain(header))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_long(tmp_path, LAST)
    put(tmp_path, FAR)
    return tmp_path


def test_verify_names_the_positions_that_no_record_has(folder: Path) -> None:
    found = verify(str(folder)).problems
    tried = LAST + 1 + 16
    (hole,) = (x for x in found if f"the records of positions {tried} … {FAR - 1} are missing" in x)
    assert "yet the log continues after it" in hole
    assert len(found) < 25


def test_a_far_record_in_front_of_a_damaged_one_is_no_endless_search(folder: Path) -> None:
    put(folder, FAR + 7, b"no record")
    head = find_head(opened(folder), damage=LENIENT)
    assert head.position == FAR
    put(folder, FAR, b"no record")
    assert find_head(opened(folder), damage=LENIENT).position == LAST


def test_a_tolerant_read_continues_after_missing_records(folder: Path) -> None:
    log = Log(str(folder), failOnDataLoss=False)
    assert [header.position for header in log.records()] == [*range(LAST + 1), FAR]
    with pytest.raises(InvalidLogError, match=f"the record of position {LAST + 1} is missing"):
        list(Log(str(folder)).records())


def test_a_skipped_record_is_named_once(folder: Path) -> None:
    passed: list[InvalidLogError] = []
    view = LogView(opened(folder), 1000, damage=DamagePolicy(report=passed.append))
    found = live_records(view, 0, FAR + 1)
    assert [record.header.position for record in found] == [*range(LAST + 1), FAR]
    assert [error.position for error in passed][:2] == [LAST + 1, LAST + 2]
    (hole,) = [error for error in passed if "the records of positions" in str(error)]
    assert f"… {FAR - 1} are missing" in str(hole) and len(passed) < 100


def test_a_moment_after_the_hole_is_found(folder: Path) -> None:
    log = opened(folder)
    head = find_head(log, damage=LENIENT)
    view = head.view(log, LENIENT)
    assert first_at_or_after(view, BEGAN_MS + 500, start=0, end=head.gap) in range(
        LAST + 1, FAR + 1
    )
    assert first_at_or_after(view, BEGAN_MS + 5, start=0, end=head.gap) == 5


@pytest.mark.parametrize("reverse", [False, True])
def test_log_shows_the_hole_as_one_line_after_the_first_ones(folder: Path, reverse: bool) -> None:
    found = lines("log", str(folder), *["--reverse"] * reverse, code=1)
    assert {x["position"] for x in found if x["kind"] != "damaged"} == {*range(LAST + 1), FAR}
    holes = [
        x for x in found if x["kind"] == "damaged" and "the records of positions" in x["error"]
    ]
    assert len(holes) == 1 and len(found) < 1000


@pytest.mark.parametrize("command", ["tail", "status", "verify"])
def test_commands_come_to_an_end(folder: Path, command: str) -> None:
    assert "missing" in ran(command, str(folder), code=1)


def test_a_report_counts_no_requests_for_positions_that_never_were(folder: Path) -> None:
    output = folder / "report.html"
    found = document("cost", str(folder), code=1)
    assert found["total"]["requests"]["PUT"] < 2000
    ran("report", str(folder), "-o", str(output), code=1)
    assert output.stat().st_size > 0


@pytest.fixture
def beyond(tmp_path: Path) -> Iterator[Path]:
    """Objects whose numbers are the last that there are."""
    write_long(tmp_path, LAST)
    for number in (0, 1, keys.slot(THE_LAST, 1000), keys.LEAST_NUMBER - 1):
        (tmp_path / keys.key("", number)).write_bytes(b"?")
    yield tmp_path


def test_objects_after_the_last_position_are_none_of_the_log(beyond: Path) -> None:
    assert [header.position for header in Log(str(beyond)).records()] == [*range(LAST + 1)]
    head = Log(str(beyond)).head()
    assert head is not None and head.position == LAST
    for command in ("status", "log", "tail", "report", "cost"):
        more = ["-o", str(beyond / "report.html")] if command == "report" else []
        ran(command, str(beyond), *more)
    problems = verify(str(beyond)).problems
    assert len(problems) == 4 and all("no object of a log has such a name" in x for x in problems)


def test_a_record_at_the_last_number_that_counts_is_found(tmp_path: Path) -> None:
    write_long(tmp_path, LAST)
    last = keys.position(keys.LEAST_NUMBER, 1000) - 1
    put(tmp_path, last)
    assert find_head(opened(tmp_path), damage=LENIENT).position == last
    for command in ("status", "log", "tail", "verify"):
        ran(command, str(tmp_path), code=1)


def test_the_next_object_is_found_by_few_lists(folder: Path) -> None:
    log = opened(folder)
    assert first_listed(log, 1000, 3, 9) == 3
    assert first_listed(log, 1000, LAST + 1, FAR + 1) == FAR
    assert first_listed(log, 1000, LAST + 1, FAR) == FAR
    assert last_listed(log, 1000, FAR + 1) == FAR
    assert last_listed(log, 1000, FAR) == LAST
    assert last_listed(log, 1000, 0) == -1
