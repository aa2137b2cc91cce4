"""`sparkwal status`, `show`, `at`, `consumers` and `verify`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from reading.collected import move_floor

import sparkwal
from sparkwal.cli.main import main
from sparkwal.cli.open_logs import logs_at
from sparkwal.cli.output import moment
from sparkwal.format import keys
from sparkwal.reading.estimates import pace_of, size_of
from sparkwal.testing.proxy import Fault, S3Proxy
from sparkwal.testing.servers import log_options
from tests.cli.logs import BEGAN_MS, as_flags, document, lines, opened, ran, write_long
from tests.cli.logs import write_takeovers as takeovers
from tests.consumers import consumer, publish
from tests.logs import append


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A leader record and five commits of one row."""
    where = str(tmp_path / "log")
    append(where, *range(5))
    return where


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> str:
    """2,500 commits after a leader record; position n is of n ms after BEGAN_MS."""
    return write_long(tmp_path_factory.mktemp("long") / "log", 2500)


def test_status_shows_head_leader_rates_and_size(path: str) -> None:
    head = sparkwal.Log(path).head()
    assert head is not None
    reported = document("status", path)
    stored = [file.stat().st_size for file in (Path(path) / "batches").iterdir()]
    assert (reported["position"], reported["log_id"], reported["term"]) == (5, head.log_id, 1)
    assert (
        reported["leader_id"] == head.leader_id and reported["host"] == head.leader_id.split(":")[0]
    )
    assert (reported["objects"], reported["bytes"], reported["exact"]) == (6, sum(stored), True)
    # The log is younger than five minutes.
    seconds = reported["rates_over_seconds"]
    assert reported["commits_per_second"] * seconds == pytest.approx(5, rel=0.01)
    assert reported["rows_per_second"] * seconds == pytest.approx(5, rel=0.01)
    assert (reported["floor"], reported["lifecycle"], reported["consumers"]) == (0, None, [])
    shown = ran("status", path)
    assert "5, " in shown and "none: the log has no table" in shown
    assert "in 6 objects" in shown and "commits/s" in shown


def test_status_shows_the_floor_and_the_consumers(path: str) -> None:
    log = opened(path)
    move_floor(log, 3)
    log_id = document("status", path)["log_id"]
    publish(log, consumer("reports", 4, log_id))
    reported = document("status", path)
    assert (reported["floor"], reported["lifecycle"]["floor"], reported["lifecycle"]["table"]) == (
        3,
        3,
        None,
    )
    [reader] = reported["consumers"]
    assert (reader["name"], reader["lag"], reader["live"]) == ("reports", 2, True)
    shown = ran("status", path)
    assert "3: objects below it may be deleted 1.0 d after it passed" in shown
    assert "reports" in shown


def test_status_with_all_shows_every_log_under_a_path(path: str) -> None:
    append(path, *range(2), sequencer="one")
    reported = lines("status", path, "--all")
    assert [(each["sequencer"], each["position"]) for each in reported] == [
        ("default", 5),
        ("one", 2),
    ]
    assert document("status", path, "--sequencer", "one")["position"] == 2
    assert ran("status", path, "--all").count("leader") == 2


def test_sizes_and_rates_of_a_long_log_are_close(
    long: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log,) = logs_at(long, {})
    stored = [file.stat().st_size for file in (Path(long) / "batches").iterdir()]
    size = size_of(log)
    assert not size.exact
    assert size.objects == pytest.approx(len(stored), rel=0.01)
    assert size.bytes == pytest.approx(sum(stored), rel=0.01)
    now = BEGAN_MS + 2500
    for window_ms in (100, 1000, 2000):
        pace = pace_of(log, now, window_ms)
        assert pace.commits * pace.seconds == pytest.approx(window_ms, rel=0.1)
        assert pace.rows == pytest.approx(10 * pace.commits)
    assert pace_of(log, now + 10_000, 1000).commits == 0
    # Younger than the window, or its floor is: 1,000 records below that stay.
    assert pace_of(log, now, 60_000).commits * 2.5 == pytest.approx(2500, rel=0.1)
    for floor in (2400, 2501):
        monkeypatch.setattr(log.floor, "current", lambda floor=floor: floor)
        pace = pace_of(log, now, 60_000)
        assert pace.commits == pytest.approx(1000, rel=0.1)
        assert pace.seconds == pytest.approx((now - BEGAN_MS - floor + 1000) / 1000, rel=0.1)
    assert (size_of(log).bytes, size_of(log).objects) == (0, 0)


def test_status_makes_the_requests_of_its_help(
    s3_proxy: S3Proxy, s3_path: tuple[str, dict[str, str]]
) -> None:
    path, options = s3_path
    append(path, *range(40), maxInFlightRequests=50, **options)
    there = as_flags(log_options(s3_proxy.url))
    s3_proxy.reset()
    reported = document("status", path, *there)
    assert reported["commits_per_second"] > 0
    counts = s3_proxy.counts()
    # Head, lifecycle, size, consumers, other logs; the head and the rates.
    assert counts.pop("LIST") == 5 and counts.pop("GET") <= 41 + 6 + 16 and not counts


def test_status_and_doctor_work_without_permission_to_see_consumers(
    s3_proxy: S3Proxy, s3_path: tuple[str, dict[str, str]]
) -> None:
    path, options = s3_path
    append(path, 1, **options)
    s3_proxy.faults = [Fault("error", kind="LIST", key_contains="/consumers/", status=403)]
    there = as_flags(log_options(s3_proxy.url))
    assert document("status", path, *there)["consumers"] is None
    assert "no permission to list them" in ran("status", path, *there)
    told = document("doctor", path, *there)
    consumers = [each["outcome"] for each in told["lines"] if each["about"] == "consumer"]
    assert told["ok"] and consumers == ["unknown"]


def test_show_prints_and_checks_a_whole_commit(path: str) -> None:
    reported = document("show", path, "3")
    assert (reported["state"], reported["sound"], reported["problems"]) == ("live", True, [])
    assert reported["header"]["kind"] == "commit" and reported["header"]["rows"] == 1
    assert reported["header"]["inline"][0]["rows"] == 1 and reported["header"]["txns"]["p"][0] == 2
    shown = ran("show", path, "3")
    assert "every byte is intact" in shown and "in the record" in shown
    assert document("show", path)["position"] == 5
    leader = ran("show", path, "0")
    assert "leader, live" in leader and "prev_position" in leader


def test_show_prints_the_objects_with_rows(tmp_path: Path) -> None:
    from sparkwal.store.local import LocalStore
    from tests.protocol.query import Query, hints_in

    store = LocalStore(tmp_path / "store")
    query = Query(store, hints_in(tmp_path))
    query.microbatch(1, (1, 2), (3,))
    path = str(tmp_path / "store" / "wal")
    reported = document("show", path, "1")
    assert [each["rows"] for each in reported["header"]["batches"]] == [2, 1] and reported["sound"]
    batch = reported["header"]["batches"][1]["number"]
    assert f"batches/{batch}" in ran("show", path, "1")
    (Path(path) / "batches" / batch).unlink()
    assert "missing, though its commit record names it" in ran("show", path, "1", code=1)
    assert document("show", path, "1", code=1)["sound"] is False


def test_show_has_an_answer_for_each_position(tmp_path: Path, path: str) -> None:
    late, _, dead = takeovers(tmp_path / "late")
    for position in range(15):
        state = "dead" if position in dead else "live"
        assert document("show", late, str(position))["state"] == state
    assert "It was never acknowledged" in " ".join(ran("show", late, "6").split())
    assert "not written yet: the log ends at 5" in ran("show", path, "6", code=1)
    assert document("show", path, "6", code=1)["state"] == "beyond the head"
    slots = {p: Path(path) / "batches" / keys.encode(keys.slot(p, 1000)) for p in range(6)}
    slots[4].write_bytes(b"not arrow")
    assert document("show", path, "4", code=1)["state"] == "damaged"
    slots[3].unlink()
    assert document("show", path, "3", code=1)["state"] == "missing"
    assert "deleted from outside" in ran("show", path, "3", code=1)
    assert document("show", path, "5")["state"] == "live"
    ran("show", late, str(2**64), code=2)


def test_show_reports_a_position_below_the_floor_as_collected(path: str) -> None:
    move_floor(opened(path), 3)
    reported = document("show", path, "2")
    assert (reported["state"], reported["sound"]) == ("collected", None)
    assert "commit, collected" in ran("show", path, "2")
    # A collection keeps the newest thousand records: this one is older.
    (Path(path) / "batches" / keys.encode(keys.slot(0, 1000))).unlink()
    assert document("show", path, "0", code=1)["state"] == "collected"
    assert "below the floor, 3" in ran("show", path, "0", code=1)


@pytest.mark.parametrize("position", [0, 1, 1249, 2499, 2500])
def test_at_finds_the_position_of_a_moment(long: str, position: int) -> None:
    reported = document("at", long, str(BEGAN_MS + position))
    at = moment(BEGAN_MS + position)
    expected = (0, moment(BEGAN_MS)) if position == 0 else (position, at)
    assert (reported["position"], reported["timestamp"]) == expected and reported["asked"] == at


def test_at_accepts_a_time_before_and_after_the_log(long: str, path: str) -> None:
    reported = document("at", long, "1s")
    assert (reported["position"], reported["timestamp"]) == (2501, None)
    assert "not written yet" in ran("at", long, "1s")
    assert '.option("startingPosition", 2501)' in ran("at", long, "1s")
    move_floor(opened(path), 3)
    reported = document("at", path, "1d")
    assert (reported["position"], reported["before_the_floor"]) == (3, True)
    assert "older positions may be collected" in ran("at", path, "1d")
    head = sparkwal.Log(path).head()
    assert head is not None
    move_floor(opened(path), head.position + 1)
    assert "older positions may be collected" in ran("at", path, "1d")
    assert "older positions may be collected" not in ran("at", path, "2100-01-01")
    assert "a time before now" in " ".join(ran("at", path, "soon", code=2).split())


def test_at_costs_the_logarithm(s3_proxy: S3Proxy, s3_path: tuple[str, dict[str, str]]) -> None:
    path, options = s3_path
    append(path, *range(60), maxInFlightRequests=50, **options)
    there = as_flags(log_options(s3_proxy.url))
    time_of = lines("log", path, "30", *there)[0]["timestamp"]
    s3_proxy.reset()
    assert document("at", path, time_of, *there)["position"] <= 30
    counts = s3_proxy.counts()
    assert counts.pop("LIST") == 2 + 1 and counts.pop("GET") <= 1 + 6 + 1 and not counts


def test_each_command_makes_its_documented_requests_on_s3(
    s3_proxy: S3Proxy, s3_path: tuple[str, dict[str, str]]
) -> None:
    path, options = s3_path
    append(path, *range(4), **options)
    there = as_flags(log_options(s3_proxy.url))

    def asked(*arguments: str) -> dict[str, int]:
        s3_proxy.reset()
        lines(*arguments, *there)
        return dict(s3_proxy.counts())

    # One LIST more looks for other logs, unless --sequencer names one.
    assert asked("show", path, "2") == {"LIST": 2 + 1, "GET": 2}
    assert asked("show", path, "0") == {"LIST": 2 + 1, "GET": 2}
    assert asked("consumers", path) == {"LIST": 2 + 1, "GET": 1}
    assert asked("consumers", path, "--sequencer", "default") == {"LIST": 2, "GET": 1}
    assert asked("verify", path) == {"LIST": 3 + 1, "GET": 1 + 5}
    assert asked("collect", path) == {"LIST": 2}


@pytest.mark.parametrize(
    "command", ["status", "verify", "cost", "tail", "log", "sql", "cat", "head", "consumers", "at"]
)
def test_a_command_that_looks_at_one_log_of_several_says_so_in_one_line(
    path: str, command: str
) -> None:
    more = {"sql": ["SELECT count(*) FROM log"], "at": ["1h"]}.get(command, [])

    def noted(*flags: str) -> list[str]:
        result = CliRunner().invoke(main, [command, path, *more, *flags])
        assert result.exit_code == 0, result.output
        return result.stderr.splitlines()

    assert noted() == []
    append(path, *range(2), sequencer="backfill")
    (note,) = noted()
    assert note.startswith("note: ") and "sequencers, such as backfill" in note
    assert ("--all" in note) == (command not in ("log", "at"))
    assert noted("--sequencer", "backfill") == noted("--sequencer", "default") == []
    if "--all" in note:
        assert noted("--all") == []


def test_consumers_shows_which_one_holds_the_floor(path: str) -> None:
    assert lines("consumers", path) == [] and ran("consumers", path) == "no consumers\n"
    log, log_id = opened(path), document("status", path)["log_id"]
    publish(log, consumer("reports", 2, log_id))
    publish(log, consumer("lease-1", 4, log_id, expires_ms=3_600_000))
    publish(log, consumer("old", 4, "another"))
    reported = {each["name"]: each for each in lines("consumers", path)}
    assert [(name, each["lag"], each["live"]) for name, each in reported.items()] == [
        ("lease-1", 2, True),
        ("old", 0, False),
        ("reports", 4, True),
    ]
    shown = [line.split() for line in ran("consumers", path).splitlines() if line.strip()]
    assert [row[0] for row in shown[2:]] == ["lease-1", "old", "reports"]
    time.sleep(0.01)
    expired = {each["name"]: each["live"] for each in lines("consumers", path, "--expiry", "1ms")}
    assert expired == {"lease-1": True, "old": False, "reports": False}
    assert "a time with a unit, at most 36500d" in ran("consumers", path, "--expiry", "7", code=2)
    append(path, *range(1), sequencer="one")
    assert len(lines("consumers", path, "--all")) == 3


def test_verify_proves_each_log_and_fails_for_one_that_is_not_sound(path: str) -> None:
    append(path, *range(2), sequencer="one")
    reported = lines("verify", path, "--all")
    assert [(each["sequencer"], each["sound"], each["commits"]) for each in reported] == [
        ("default", True, 5),
        ("one", True, 2),
    ]
    assert "sound" in ran("verify", path)
    slot = Path(path) / "batches" / keys.encode(keys.slot(2, 1000))
    body = slot.read_bytes()
    slot.write_bytes(body.replace(b'"term":1', b'"term":2'))
    assert "CRC-32" in document("verify", path, code=1)["problems"][0]
    shown = ran("verify", path, "--all", code=1)
    assert "CRC-32" in shown and shown.count(": sound") == 1


@pytest.mark.parametrize(
    "command",
    [
        "status",
        "log",
        "show",
        "consumers",
        "verify",
        "at",
        "collect",
        "cat",
        "head",
        "tail",
        "cost",
        "report",
        "metrics",
    ],
)
def test_a_missing_log_is_no_log_and_nothing_else(tmp_path: Path, command: str) -> None:
    more = {"at": ["1h"], "report": ["--json"]}.get(command, [])
    every = command not in ("log", "show", "at", "report")
    for options in ([], ["--all"] if every else []):
        reported = ran(command, str(tmp_path / "none"), *more, *options, code=2)
        (line,) = reported.splitlines()
        assert line.startswith("Error: there is no log at") and str(tmp_path / "none") in line


def test_no_command_prints_a_secret(path: str) -> None:
    secret = ["--log-option", "accessKeyId=AK", "--log-option", "secretAccessKey=very-secret"]
    for command in ("status", "log", "show", "verify"):
        assert "very-secret" not in ran(command, path, *secret)
    assert "very-secret" not in json.dumps(lines("log", path, *secret))
