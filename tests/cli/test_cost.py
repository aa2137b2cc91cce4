"""`sparkwal cost` against what a real store was asked for, and what lies in it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reading.collected import collect, move_floor

import sparkwal
from sparkwal.format import keys
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.clock import Clock
from sparkwal.sql.past import override_prices
from sparkwal.store.base import LogStore
from sparkwal.testing.proxy import S3Proxy
from tests.cli.logs import as_flags, document, opened, ran, write_takeovers
from tests.logs import append
from tests.protocol.query import LIMITS, Query, hints_in
from tests.store import azurite, fake_gcs

# A part of an object and the list of its parts are PUTs too.
PUTS = {"UPLOAD_PART": "PUT", "COMPLETE_MULTIPART": "PUT"}


def cost(path: str, *more: str, **options: str) -> dict[str, Any]:
    return document("cost", path, *as_flags(options), *more)


def query(log: LogStore, folder: Path) -> Query:
    clock: Any = Clock()
    return Query(log.store, hints_in(folder), prefix=log.prefix, clock=clock)


def test_the_requests_of_writers_are_those_that_the_store_was_asked_for(
    s3_path: tuple[str, dict[str, str]], s3_proxy: S3Proxy, tmp_path: Path
) -> None:
    path, options = s3_path
    through = {**options, "endpoint": s3_proxy.url}
    log = open_log(from_keywords(SourceOptions, path, through))
    sink = query(log, tmp_path)
    for batch in range(3):
        sink.microbatch(batch, (1, 2), (3,))
    sink.restarted().microbatch(3, (4,))
    append(path, *range(5), maxInFlightRequests=50, **through)
    append(path, *range(2), maxInFlightRequests=7, **through)  # looks back and seals
    sink.restarted().microbatch(4, (5,))
    made = Counter(request.kind for request in s3_proxy.requests if "/proof/" not in request.key)
    reported = cost(path, **options)
    assert reported["total"]["requests"] == dict(made)
    prices = reported["prices"]
    assert reported["total"]["request_cost"] == pytest.approx(
        sum(prices[kind.lower()] * number / 1000 for kind, number in made.items())
    )
    s3_proxy.reset()
    assert sparkwal.Log(path, **through).scan().read_all().num_rows == 9 + 1 + 7 + 1
    read = Counter(request.kind for request in s3_proxy.requests)
    assert reported["whole_read"]["requests"] == dict(read)


@pytest.mark.process
@pytest.mark.parametrize(("cloud", "of"), [("azure", "Azure Blob"), ("google", "Cloud Storage")])
def test_the_requests_on_a_cloud_are_those_that_it_was_asked_for_at_its_prices(
    cloud: str, of: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server = request.getfixturevalue("azurite_url" if cloud == "azure" else "fake_gcs_url")
    with S3Proxy(server) as proxy:
        if cloud == "azure":
            container = azurite.new_container(proxy.url)
            path = f"abfss://{container}@{azurite.ACCOUNT}.dfs.core.windows.net/log"
            options: dict[str, Any] = azurite.options(proxy.url)
        else:
            path = f"gs://{fake_gcs.new_bucket(proxy.url)}/log"
            options = fake_gcs.options(proxy.url)
        log = open_log(from_keywords(SourceOptions, path, options))
        # One of its objects goes in parts.
        sink = Query(
            log.store,
            hints_in(tmp_path),
            prefix=log.prefix,
            limits=replace(LIMITS, codec=None),
        )
        sink.microbatch(0, (1, 2), tuple(range(2_500_000)))
        append(path, *range(5), maxInFlightRequests=50, **options)
        made = Counter[str]()
        for each in proxy.requests:
            if "/proof/" not in each.key and "/log/" in f"/{each.key}":
                made[PUTS.get(each.kind, each.kind)] += 1
        if cloud == "google":
            # A 404 of fake-gcs-server does not name the object, as Google's does: a GET more.
            made["GET"] -= sum(each.status == 404 for each in proxy.requests) // 2
        reported = cost(path, **options)
    assert reported["total"]["requests"] == dict(made)
    prices = reported["prices"]
    assert prices["of"].startswith(of)
    assert reported["total"]["request_cost"] == pytest.approx(
        sum(prices[kind.lower()] * number / 1000 for kind, number in made.items())
    )
    default = override_prices({}, path)
    assert {name: prices[name] for name in default} == default


def test_the_reported_size_is_the_size_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(str(path), *range(20))
    reported = cost(str(path))
    on_disk = [file.stat().st_size for file in path.glob("batches/*")]
    beside = [file.stat().st_size for file in path.glob("txns/*")]
    assert reported["logs"][0]["stored"] == sum(on_disk) + sum(beside)
    assert reported["total"]["stored"] == sum(on_disk)
    assert reported["month"] is None  # written in less than an hour
    assert sum(line["commits"] for line in reported["periods"]) == reported["total"]["commits"]


def test_periods_without_a_commit_pay_for_storage_alone(tmp_path: Path) -> None:
    day, start = 86_400_000, 1_760_000_000_000
    log = opened(tmp_path / "log")
    sink = query(log, tmp_path)
    times = [start, start + day // 2, start + 9 * day]

    class Stopped(Clock):
        def now_ms(self) -> int:
            return times[0]

    sink.clock = Stopped()  # type: ignore[assignment]
    for batch in range(3):
        sink.microbatch(batch, tuple(range(1000)))
        times.append(times.pop(0))
    path = str(tmp_path / "log")
    reported = cost(path, "--until", str(start + 20 * day))
    busy = [line for line in reported["periods"] if line["commits"]]
    idle = [line for line in reported["periods"] if not line["commits"]]
    # Two on one day, one nine days later.
    assert [line["commits"] for line in busy] == [2, 1]
    assert len(idle) == 2 and all(line["requests"] == {} for line in idle)
    assert all(line["storage_cost"] > 0 for line in idle)
    for before, after in zip(reported["periods"], reported["periods"][1:], strict=False):
        assert before["end_ms"] == after["start_ms"]
    assert reported["periods"][-1]["end_ms"] == start + 20 * day
    # Byte for byte: each object from its record's time on.
    size = reported["total"]["stored"] / reported["total"]["commits"]
    exact = sum(size * (start + 20 * day - time) for time in sorted(times)[:3])
    whole = reported["prices"]["storage"] * exact / 2**30 / (730 * 3_600_000)
    assert reported["total"]["storage_cost"] == pytest.approx(whole, rel=0.05)


def test_since_and_price_change_the_costs(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    append(path, *range(3))
    middle = [r.timestamp_ms for r in sparkwal.Log(path).records()][2]
    whole, later = cost(path), cost(path, "--since", str(middle))
    assert later["logs"][0]["start"] > 0
    assert later["total"]["stored"] == whole["total"]["stored"]
    assert later["total"]["commits"] < whole["total"]["commits"]
    dear = cost(path, "--price", "put=5", "--price", "storage=0")
    puts = whole["total"]["requests"]["PUT"]
    lists = whole["total"]["requests"]["LIST"]
    gets = whole["total"]["requests"]["GET"]
    assert dear["total"]["cost"] == pytest.approx(puts * 0.005 + lists * 5e-6 + gets * 4e-7)
    assert "no price 'PUTS'" in ran("cost", path, "--price", "PUTS=1", code=2)
    assert "before startingTimestamp" in ran("cost", path, "--since", "1h", "--until", "2h", code=2)


def test_the_costs_of_all_sequencers_are_one_sum(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    append(path, *range(3))
    append(path, *range(4), sequencer="backfill")
    one, other = cost(path), cost(path, "--sequencer", "backfill")
    both = cost(path, "--all")
    assert [each["sequencer"] for each in both["logs"]] == ["default", "backfill"]
    sums = Counter(one["total"]["requests"]) + Counter(other["total"]["requests"])
    assert both["total"]["requests"] == dict(sums)
    assert both["total"]["rows"] == 7


@pytest.mark.slow
def test_a_log_with_a_floor_begins_there_and_its_chain_is_counted(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")
    sink = query(log, tmp_path)
    for batch in range(8):
        sink.microbatch(batch, (batch,))
    path = str(tmp_path / "log")
    before = cost(path)
    move_floor(log, 5)
    collect(log, 5)
    reported = cost(path)
    assert reported["logs"][0]["start"] == reported["logs"][0]["floor"] == 5
    assert reported["total"]["commits"] == 4
    # Positions 5 … 8, each a record and an object, and the record of the chain.
    assert reported["total"]["requests"] == {"PUT": 4 * 2 + 1}
    # Two GETs proved that there was no log.
    assert before["total"]["requests"] == {"LIST": 1, "GET": 2, "PUT": 1 + 8 * 2}
    assert "floor" in ran("cost", path)
    # A time before the floor is no time in which nothing was written.
    earlier = cost(path, "--since", "2d")
    assert earlier["total"]["start"] == reported["total"]["start"]
    assert earlier["total"]["commits"] == 4 and len(earlier["periods"]) == len(reported["periods"])


def test_objects_below_the_floor_count_until_they_are_deleted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(str(path), *range(5))
    head = sparkwal.Log(str(path)).head()
    assert head is not None
    move_floor(opened(path), head.position + 1)
    reported = cost(str(path))
    assert reported["total"]["commits"] == 0
    assert reported["total"]["stored"] == sum(x.stat().st_size for x in path.glob("batches/*"))


def test_the_time_before_a_log_began_is_no_part_of_its_rate(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    append(path, *range(3))
    assert cost(path)["month"] is None and cost(path, "--since", "90d")["month"] is None


def test_a_damaged_record_is_not_counted_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log"
    sink = query(opened(path), tmp_path)
    for batch in range(5):
        sink.microbatch(batch, (batch,))
    damaged = path / "batches" / keys.encode(keys.slot(2, 1000))
    damaged.write_bytes(damaged.read_bytes()[:100])
    shown = ran("cost", str(path), code=1)
    assert "total" in shown and damaged.name in shown
    reported = document("cost", str(path), code=1)
    assert reported["total"]["commits"] == 4
    assert "position 2" in reported["logs"][0]["damage"][0]


def test_the_costs_are_a_table_for_people_and_a_missing_log_is_an_error(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    append(path, *range(3))
    for by in ("hour", "day", "month"):
        shown = ran("cost", path, "--by", by)
        assert "one whole read" in shown and "total" in shown and "readers" in shown
    assert "there is no log" in ran("cost", str(tmp_path / "none"), code=2)


def test_the_puts_of_dead_records_are_counted(tmp_path: Path) -> None:
    path, live, dead = write_takeovers(tmp_path / "log")
    reported = cost(path)
    # The first leader proved by two GETs that there was no log. The later two read a head, and
    # looked back over the two slots before it.
    assert reported["total"]["requests"] == {"PUT": 15, "LIST": 3, "GET": 2 + 2 * 3}
    assert reported["whole_read"]["requests"]["GET"] == 15
    found = document("report", path)
    assert [run[0] for run in found["dead"]["first"]] == dead
    assert [(t["position"], t["seals"]) for t in found["terms"]["newest"]] == [
        (10, 1),
        (5, 1),
        (0, 0),
    ]
    assert found["totals"]["commits"] == len(live) - 3
