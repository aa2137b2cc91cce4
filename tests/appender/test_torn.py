"""Appenders continue after a record of which the store kept a part."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import sparkwal
from sparkwal.errors import OutcomeUnknownError
from sparkwal.format import keys
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.recovery import find_head
from sparkwal.reading.verification import verify_store
from sparkwal.store.base import LogStore, Transient
from tests.appender.away import OutageStore
from tests.appender.faulty_store import PREFIX, commits, stored
from tests.journal.disk import MemoryFolder
from tests.logs import rows


class Tearing(OutageStore):
    """Keeps `kept` bytes of the next PUTs at some positions, without an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.tears: dict[int, int] = {}

    def put_if_absent(self, key: str, body: bytes) -> bool:
        number = keys.decode(key.rpartition("/")[2])
        position = -1 if number is None else keys.position(number, 1000)
        if "/batches/" in key and position in self.tears:
            self.inner.put_if_absent(key, body[: self.tears.pop(position)])
            raise Transient("the connection broke off")
        return super().put_if_absent(key, body)


@pytest.mark.parametrize("kept", [0, 500])
def test_an_append_that_was_torn_is_sent_again_once(kept: int) -> None:
    faulty = Tearing()
    with faulty.appender() as wal:
        first = wal.append(rows(1)).result()
    with faulty.appender() as wal:
        begin = wal.last_sequence + 1
        faulty.tears[find_head(LogStore(faulty.inner, PREFIX)).gap] = kept
        ticket = wal.append(rows(2))
        with pytest.raises(OutcomeUnknownError, match="has a part of them"):
            ticket.result()
    with faulty.appender() as wal:
        assert wal.last_sequence + 1 == begin
        wal.append(rows(2)).result()
        wal.append(rows(3)).result()
    assert stored(faulty.inner) == [1, 2, 3]
    assert [sequence for _, _, sequence, _ in commits(faulty.inner)] == [0, 1, 2]
    assert first == 1
    report = verify_store(LogStore(faulty.inner, PREFIX), "")
    assert report.ok and len(report.torn) == 1, str(report)


@pytest.mark.parametrize("kept", [0, 500])
def test_a_seal_that_was_torn_makes_the_leader_lead_again(kept: int) -> None:
    faulty = Tearing()
    with faulty.appender() as wal:
        last = wal.append(rows(1)).result()
    # The second of three seals.
    faulty.tears[last + 3] = kept
    with faulty.appender("q") as wal:
        wal.append(rows(2)).result()
    assert stored(faulty.inner) == [1, 2]
    head = find_head(LogStore(faulty.inner, PREFIX))
    # One term for each of the two appenders, and one more.
    assert head.live is not None and head.live.header.term == 3
    assert verify_store(LogStore(faulty.inner, PREFIX), "").ok


def test_a_journal_continues_after_torn_records_by_itself() -> None:
    faulty = Tearing()
    wal = faulty.journaled(MemoryFolder())
    wal.append(rows(1)).result()
    for position in range(6, 40, 7):
        faulty.tears[position] = position % 3 * 200
    tickets = [wal.append(rows(value)) for value in range(2, 30)]
    for ticket in tickets:
        ticket.result(60)
    wal.close()
    assert stored(faulty.inner) == [*range(1, 30)]
    assert verify_store(LogStore(faulty.inner, PREFIX), "").ok


@pytest.mark.parametrize("kept", [0, 600])
def test_on_s3_a_torn_object_is_reported_and_passed_over(
    s3_path: tuple[str, dict[str, str]], kept: int
) -> None:
    path, options = s3_path
    schema = pa.schema([("v", pa.int64())])
    given: dict[str, Any] = {"producer_id": "p", "maxInFlightRequests": 2, **options}
    with sparkwal.Appender(path, schema, **given) as wal:
        last = wal.append(rows(1)).result()
    log = open_log(from_keywords(SourceOptions, path, options))
    body = log.store.get(log.key(keys.slot(last, 1000)))
    torn = log.key(keys.slot(last + 1, 1000))
    assert log.store.put_if_absent(torn, body[:kept])
    reader = sparkwal.Log(path, **options)
    assert reader.scan().read_all().column("v").to_pylist() == [1]
    report = sparkwal.verify(path, **options)
    assert report.ok and f"torn, {kept} bytes" in str(report)
    with sparkwal.Appender(path, schema, **given) as wal:
        assert wal.append(rows(2)).result() > last + 2
    assert reader.scan().read_all().column("v").to_pylist() == [1, 2]
    assert sparkwal.verify(path, **options).ok


def test_a_large_torn_object_on_s3_is_found_by_its_size(
    s3_path: tuple[str, dict[str, str]],
) -> None:
    """A look reads the first 64 KiB of it only."""
    path, options = s3_path
    schema = pa.schema([("v", pa.binary())])
    given: dict[str, Any] = {"producer_id": "p", "maxInFlightRequests": 1, **options}
    given["compression"] = "none"
    large = [{"v": b"x" * 300_000}]
    with sparkwal.Appender(path, schema, **given) as wal:
        last = wal.append(large).result()
    log = open_log(from_keywords(SourceOptions, path, options))
    with sparkwal.Appender(str(path) + "-other", schema, **given) as wal:
        for _ in range(last):
            wal.append(large).result()
        end = wal.append(large).result()
    assert end == last + 1
    other = open_log(from_keywords(SourceOptions, str(path) + "-other", options))
    body = other.store.get(other.key(keys.slot(end, 1000)))
    assert len(body) > 300_000
    assert log.store.put_if_absent(log.key(keys.slot(end, 1000)), body[:200_000])
    assert sparkwal.Log(path, **options).scan().read_all().num_rows == 1
    head = find_head(log)
    assert [(each.position, each.size) for each in head.torn] == [(end, 200_000)]
    records = [header.position for header in sparkwal.Log(path, **options).records()]
    assert max(records) == last
