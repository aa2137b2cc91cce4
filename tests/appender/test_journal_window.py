"""Entries are sent from memory or read from the disk again; some openings are refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sparkwal import Appender
from sparkwal.appender import journal_intake
from sparkwal.errors import OptionError
from sparkwal.journal.journal import Journal
from sparkwal.store.base import LogStore
from tests.appender import inside
from tests.appender.away import OutageStore
from tests.appender.faulty_store import PREFIX, stored
from tests.journal.disk import MemoryFolder
from tests.logs import rows, until


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sequences that were read from the disk."""
    asked: list[int] = []
    real = Journal.read

    def watched(self: Journal, sequence: int) -> Any:
        asked.append(sequence)
        return real(self, sequence)

    monkeypatch.setattr(Journal, "read", watched)
    return asked


def test_entries_in_memory_are_not_read_from_the_disk(read: list[int]) -> None:
    faulty = OutageStore()
    with faulty.journaled(MemoryFolder()) as wal:
        tickets = [wal.append(rows(value)) for value in range(100)]
        assert tickets[-1].result(timeout=30) > 0
        assert (read, wal.buffered_bytes) == ([], 0)
    assert stored(faulty.inner) == list(range(100))


def test_beyond_the_window_it_is_read_from_the_disk_and_all_is_sent_in_order(
    read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_intake, "_WINDOW_BYTES", 20_000)
    faulty = OutageStore()
    with faulty.journaled(MemoryFolder(), maxInFlightRequests=1) as wal:
        faulty.is_away = True
        for value in range(200):
            wal.append(rows(value))
        until(lambda: wal.is_store_away)
        assert wal.append(rows(200)).sequence == 200
        assert 0 < inside.window_bytes(wal) <= 20_000
        faulty.is_away = False
        wal.flush(timeout=30)
        assert read and wal.buffered_bytes == 0
    assert stored(faulty.inner) == list(range(201))


def waiting(faulty: OutageStore) -> MemoryFolder:
    """A journal with two entries that a dead process has not sent."""
    folder = MemoryFolder()
    # One at a time: a second record may still be tried once the store is back.
    wal = faulty.journaled(folder, maxInFlightRequests=1)
    wal.flush()
    faulty.is_away = True
    for value in range(2):
        wal.append(rows(value))
    left = folder.after_kill()
    wal.close(timeout=30)
    faulty.is_away = False
    return left


@pytest.mark.parametrize("what", ["producer", "slots", "schema", "log"])
def test_a_journal_that_is_refused_leads_no_log(what: str) -> None:
    faulty = OutageStore()
    left = waiting(faulty)
    other = OutageStore() if what == "log" else faulty
    schema = pa.schema([("v", pa.string() if what == "schema" else pa.int64())])

    def open_it() -> Appender:
        return Appender(
            LogStore(other.retrying(), PREFIX),
            schema,
            producer_id="q" if what == "producer" else "p",
            folder=left,
            journal="memory",
            journalSlots=1 if what == "slots" else 4096,
        )

    before = set(other.inner.objects)
    with pytest.raises(OptionError):
        open_it()
    assert set(other.inner.objects) == before
    with faulty.journaled(left.after_kill()) as again:
        again.flush(timeout=30)
    assert stored(faulty.inner) == [0, 1]
