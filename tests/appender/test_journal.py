"""An appender with a journal: accepted rows are in the log once and in order, after any
failure of the process, the store and the log."""

from __future__ import annotations

import threading

import pytest

from sparkwal import events
from sparkwal.appender import journal_sender
from sparkwal.errors import (
    FencedError,
    OptionError,
    SparkWalError,
)
from sparkwal.format.header import LeaderHeader
from sparkwal.protocol.records import live_records
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.view import LogView
from sparkwal.store.base import LogStore, Transient
from sparkwal.testing.memory import MemoryStore
from tests.appender import inside
from tests.appender.away import OutageStore, abandon, sound
from tests.appender.faulty_store import PREFIX, FaultyStore, commits, stored
from tests.journal.disk import MemoryFolder
from tests.logs import rows, until

pytestmark = pytest.mark.usefixtures("soon")


@pytest.fixture
def faulty() -> OutageStore:
    return OutageStore()


# A process after another.


def test_the_next_process_sends_the_accepted_rows(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    wal = faulty.journaled(folder)
    wal.append(rows(0)).result(timeout=30)
    faulty.is_away = True
    for value in range(1, 50):
        wal.append(rows(value))
    left = folder.after_kill()
    abandon(faulty, wal)
    faulty.is_away = False
    assert stored(faulty.inner) == [0]
    with faulty.journaled(left) as again:
        assert again.last_sequence == 49
        assert again.append(rows(50)).sequence == 50
        again.flush(timeout=30)
        assert stored(faulty.inner) == list(range(51))
    sound(faulty)


def test_a_copy_of_the_folder_from_before_everything_was_sent_sends_nothing_twice(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    wal = faulty.journaled(folder)
    faulty.is_away = True
    for value in range(30):
        wal.append(rows(value))
    copy = folder.after_kill()
    faulty.is_away = False
    wal.flush(timeout=30)
    wal.close()
    with faulty.journaled(copy) as again:
        assert again.append(rows(30)).sequence == 30
        again.flush(timeout=30)
    assert stored(faulty.inner) == list(range(31))


def test_a_journal_continues_over_many_openings(faulty: OutageStore, folder: MemoryFolder) -> None:
    for run in range(5):
        with faulty.journaled(folder) as wal:
            assert wal.last_sequence == 10 * run - 1
            for value in range(10):
                assert wal.append(rows(10 * run + value)).sequence == 10 * run + value
        folder = folder.after_kill()
    assert stored(faulty.inner) == list(range(50))
    sound(faulty)


def test_appenders_with_and_without_a_journal_take_turns_and_store_each_row_once(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    """Closed in peace, none has anything that another could take for its own."""
    for value in range(0, 20, 2):
        with faulty.appender() as wal:
            wal.append(rows(value))
        with faulty.journaled(folder) as wal:
            assert wal.last_sequence == value
            wal.append(rows(value + 1))
        folder = folder.after_kill()
    assert stored(faulty.inner) == list(range(20))


# The store is unreachable.


def test_appends_of_outages_are_stored_once_at_the_positions_of_their_tickets(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    reported: list[events.Event] = []
    with faulty.journaled(folder, on_event=reported.append) as wal:
        for outage in range(5):
            faulty.is_away = True
            tickets = [wal.append(rows(100 * outage + value)) for value in range(100)]
            if outage % 2:
                until(lambda: wal.is_store_away)
            faulty.is_away = False
            assert tickets[-1].result(timeout=30) > 0
            # At its position: batches that were sent before an outage are found after it.
            at = dict((sequence, position) for position, _, sequence, _ in commits(faulty.inner))
            for ticket in tickets:
                assert ticket.result(timeout=30) == at[ticket.sequence]
        assert wal.error is None
    assert stored(faulty.inner) == list(range(500))
    kinds = [type(event) for event in reported]
    assert kinds.count(events.StoreAway) == kinds.count(events.StoreBack) >= 2
    assert events.Stopped not in kinds
    sound(faulty)


@pytest.mark.parametrize("fault", ["lost", "dropped", "refused"])
def test_an_unanswered_put_is_found_in_the_log_or_sent_again(
    faulty: OutageStore, folder: MemoryFolder, fault: str
) -> None:
    with faulty.journaled(folder, retries=0) as wal:
        first = faulty.gap()
        faulty.faults[first + 1] = [fault]
        tickets = [wal.append(rows(value)) for value in range(8)]
        positions = [ticket.result(timeout=30) for ticket in tickets]
        at = dict((sequence, position) for position, _, sequence, _ in commits(faulty.inner))
        assert positions == [at[sequence] for sequence in range(8)]
    assert stored(faulty.inner) == list(range(8))
    sound(faulty)


def test_in_an_outage_an_append_returns_and_its_ticket_waits(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    with faulty.journaled(folder) as wal:
        faulty.is_away = True
        ticket = wal.append(rows(0))
        assert wal.last_sequence == 0 and not ticket.done()
        with pytest.raises(TimeoutError, match="is in the journal"):
            ticket.result(timeout=0.05)
        with pytest.raises(TimeoutError):
            wal.flush(timeout=0.05)
        faulty.is_away = False
        assert ticket.result(timeout=30) >= 0
        wal.flush(timeout=30)


def test_to_find_where_rows_are_after_an_outage_costs_no_look_at_the_whole_session(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    with faulty.journaled(folder, retries=0, maxInFlightRequests=2) as wal:
        for value in range(200):
            wal.append(rows(value)).result(timeout=30)
        faulty.faults[faulty.gap()] = ["lost"]
        faulty.inner.counts.clear()
        assert wal.append(rows(200)).result(timeout=30) > 200
        assert faulty.inner.counts["GET"] < 20, faulty.inner.counts


def test_a_store_that_takes_no_rows_is_not_led_again_and_again(
    faulty: OutageStore, folder: MemoryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that refuses only commits: each attempt costs a leader record and seals."""
    monkeypatch.setattr(journal_sender, "_LAST_SECONDS", 3600.0)
    monkeypatch.setattr(journal_sender, "_FIRST_SECONDS", 0.05)
    with faulty.journaled(folder, retries=0, maxInFlightRequests=1) as wal:
        real = faulty.put_if_absent

        def put(key: str, body: bytes) -> bool:
            if b'"kind":"commit"' in body:
                raise Transient("413", unreachable=True)
            return real(key, body)

        monkeypatch.setattr(faulty, "put_if_absent", put)
        pauses = ScriptedPauses()
        inside.set_pauses(wal, pauses)
        wal.append(rows(0))
        until(lambda: len(pauses.asked) == pauses.most)
        assert pauses.asked == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]
        # The first, the one that led again at once, and one after each pause.
        assert leaders(faulty.inner) == 2 + len(pauses.asked) - 1
        monkeypatch.setattr(faulty, "put_if_absent", real)
        pauses.set()
    assert stored(faulty.inner) in ([], [0])


class ScriptedPauses:
    """How long each pause would be; the last one of so many lasts until it is set."""

    most = 6

    def __init__(self) -> None:
        self.asked: list[float] = []
        self._over = threading.Event()

    def wait(self, seconds: float) -> bool:
        if seconds:
            self.asked.append(seconds)
        return self._over.wait(60) if len(self.asked) >= self.most else self._over.is_set()

    def set(self) -> None:
        self._over.set()

    def is_set(self) -> bool:
        return self._over.is_set()


def leaders(store: MemoryStore) -> int:
    log = LogStore(store, PREFIX)
    head = find_head(log)
    found = live_records(LogView(log, head.window), 0, head.gap)
    return sum(isinstance(each.header, LeaderHeader) for each in found)


# Other writers.


@pytest.mark.parametrize("producer", ["p", "another"])
def test_fenced_by_another_it_stops_and_a_new_one_sends_the_rest(
    faulty: OutageStore, folder: MemoryFolder, producer: str
) -> None:
    wal = faulty.journaled(folder)
    wal.append(rows(0)).result(timeout=30)
    with FaultyStore(faulty.inner).appender(producer) as other:
        ticket = wal.append(rows(1))
        with pytest.raises(FencedError, match="another writer leads"):
            ticket.result(timeout=30)
        with pytest.raises(FencedError):
            wal.append(rows(2))
        assert isinstance(wal.error, FencedError)
        wal.close(timeout=30)
        assert other.error is None
    with faulty.journaled(folder.after_kill()) as again:
        assert again.last_sequence == 1
        again.append(rows(2)).result(timeout=30)
    assert stored(faulty.inner) == [0, 1, 2]
    sound(faulty)


@pytest.mark.parametrize("producer", ["p", "another"])
def test_a_leader_that_took_the_log_in_an_outage_keeps_it(
    faulty: OutageStore, folder: MemoryFolder, producer: str
) -> None:
    """It opened later and on purpose, so an appender that only reconnects does not take over."""
    wal = faulty.journaled(folder)
    wal.append(rows(0)).result(timeout=30)
    faulty.is_away = True
    tickets = [wal.append(rows(value)) for value in range(1, 10)]
    until(lambda: wal.is_store_away)
    with FaultyStore(faulty.inner).appender(producer) as other:
        other.append(rows(-1)).result(timeout=30)
        faulty.is_away = False
        for ticket in tickets:
            with pytest.raises(FencedError, match="another writer leads"):
                ticket.result(timeout=30)
        other.append(rows(-2)).result(timeout=30)
        assert other.error is None
    with pytest.raises(FencedError):
        wal.append(rows(10))
    wal.close(timeout=30)
    assert stored(faulty.inner) == [0, -1, -2]


def test_rows_of_another_appender_never_count_as_the_journals(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    """Killed with rows that were not sent; then one without the journal used the producer_id."""
    wal = faulty.journaled(folder)
    wal.append(rows(0)).result(timeout=30)
    faulty.is_away = True
    for value in range(1, 5):
        wal.append(rows(value))
    left = folder.after_kill()
    abandon(faulty, wal)
    faulty.is_away = False
    for last in (1, 2, 9):
        with faulty.appender() as other:
            while other.last_sequence < last:
                other.append(rows(-1)).result(timeout=30)
        before = left.after_kill()
        with pytest.raises(OptionError, match="'p'.*another"):
            faulty.journaled(left)
        # All of its rows are still in the journal.
        names = [name for name in before.names() if name.endswith(".wal")]
        assert [left.bytes_of(name) for name in names] == [before.bytes_of(x) for x in names]
        left = left.after_kill()
        assert 1 not in stored(faulty.inner)


def test_the_sender_of_a_batch_is_found_behind_the_records_of_many_others(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    """Killed before the last acknowledgment; then others wrote, some only a leader record."""
    wal = faulty.journaled(folder)
    for value in range(10):
        wal.append(rows(value))
    wal.flush(timeout=30)
    left = folder.after_kill()
    wal.close()
    for producer in ("other", "third"):
        for _ in range(3):
            faulty.appender(producer, maxInFlightRequests=2).close()
        with faulty.appender(producer, maxInFlightRequests=2) as other:
            for value in range(100):
                other.append(rows(-value - 1))
    faulty.inner.counts.clear()
    with faulty.journaled(left) as again:
        assert faulty.inner.counts["GET"] < 100, faulty.inner.counts
        again.append(rows(10)).result(timeout=30)
    assert [value for value in stored(faulty.inner) if value >= 0] == list(range(11))


def test_a_second_journal_of_the_same_producer_is_another(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    first = faulty.journaled(folder)
    faulty.is_away = True
    first.append(rows(0))
    left = folder.after_kill()
    abandon(faulty, first)
    faulty.is_away = False
    with faulty.journaled(MemoryFolder()) as second:
        second.append(rows(-1))
    with pytest.raises(OptionError, match="another"):
        faulty.journaled(left)
    assert stored(faulty.inner) == [-1]


def test_a_session_that_died_before_it_sent_anything_is_forgotten(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    wal = faulty.journaled(folder)
    faulty.hold(faulty.gap() + 2)
    for value in range(6):
        wal.append(rows(value))
    until(lambda: len(commits(faulty.inner)) >= 2)
    copies = [folder.after_kill()]
    faulty.release(*range(20))
    wal.flush(timeout=30)
    abandon(faulty, wal)
    # Openings that are killed before, and after, they may send.
    for crash_at in range(30):
        folder = copies[-1].after_kill()
        folder.faults = {}
        try:
            abandon(faulty, faulty.journaled(folder))
        finally:
            copies.append(folder.after_kill())
        if crash_at == 3:
            break
    with faulty.journaled(copies[-1]) as again:
        again.append(rows(6)).result(timeout=30)
    assert stored(faulty.inner) == list(range(7))


# The log is another.


def test_a_log_recreated_in_an_outage_gets_no_rows_and_the_tickets_fail(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    wal = faulty.journaled(folder)
    wal.append(rows(0)).result(timeout=30)
    faulty.is_away = True
    tickets = [wal.append(rows(value)) for value in range(1, 5)]
    until(lambda: wal.is_store_away)
    clear(faulty)
    with FaultyStore(faulty.inner).appender("another") as other:
        other.append(rows(-1)).result(timeout=30)
    faulty.is_away = False
    with pytest.raises((OptionError, FencedError)):
        tickets[0].result(timeout=30)
    assert stored(faulty.inner) == [-1]
    with pytest.raises(SparkWalError):
        wal.close(timeout=30)
        wal.append(rows(5))
    with pytest.raises(OptionError, match="of log"):
        faulty.journaled(folder.after_kill())


def test_a_log_that_was_deleted_in_an_outage_is_not_recreated(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    wal = faulty.journaled(folder)
    wal.append(rows(0)).result(timeout=30)
    faulty.is_away = True
    ticket = wal.append(rows(1))
    until(lambda: wal.is_store_away)
    kept = clear(faulty)
    faulty.is_away = False
    with pytest.raises(OptionError, match="recreated|deleted"):
        ticket.result(timeout=30)
    assert [key for key in faulty.inner.objects if "/batches/" in key] == []
    wal.close(timeout=30)
    for key, body in kept.items():
        faulty.inner.put(key, body)
    with faulty.journaled(folder.after_kill()):
        pass
    assert stored(faulty.inner) == [0, 1]


def clear(faulty: FaultyStore) -> dict[str, bytes]:
    kept = dict(faulty.inner.objects)
    for key in kept:
        faulty.inner.delete(key)
    return kept


def test_a_log_that_comes_back_older_stops_it(faulty: OutageStore, folder: MemoryFolder) -> None:
    wal = faulty.journaled(folder)
    wal.append(rows(0)).result(timeout=30)
    older = dict(faulty.inner.objects)
    for value in range(1, 5):
        wal.append(rows(value)).result(timeout=30)
    faulty.is_away = True
    ticket = wal.append(rows(5))
    until(lambda: wal.is_store_away)
    clear(faulty)
    for key, body in older.items():
        faulty.inner.put(key, body)
    faulty.is_away = False
    with pytest.raises(OptionError, match="restored from an older copy"):
        ticket.result(timeout=30)
    wal.close(timeout=30)
    # The entries that are left in the journal are sent again, in order.
    with faulty.journaled(folder.after_kill()) as again:
        again.flush(timeout=30)
    assert stored(faulty.inner) == list(range(6))
