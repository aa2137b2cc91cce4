"""An appender with a journal: tickets, rows of another schema, a full journal, and damage."""

from __future__ import annotations

import gc
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparkwal import Appender, events
from sparkwal.appender import journal_intake
from sparkwal.errors import (
    BackPressureError,
    FencedError,
    OptionError,
    OutcomeUnknownError,
    SparkWalError,
)
from sparkwal.store.base import LogStore
from tests.appender import inside
from tests.appender.away import OutageStore, abandon, sound
from tests.appender.faulty_store import PREFIX, FaultyStore, commits, stored
from tests.journal.disk import MemoryFolder
from tests.logs import SCHEMA, rows, until

pytestmark = pytest.mark.usefixtures("soon")


@pytest.fixture
def faulty() -> OutageStore:
    return OutageStore()


# Tickets.


def test_tickets_are_called_back_in_order_and_may_do_what_they_like(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    done: list[int] = []
    wal = faulty.journaled(folder, maxInFlightRequests=2)
    later: list[Any] = []

    # By value: the append in a callback takes some sequence in between.
    def called(value: int) -> None:
        done.append(value)
        if value == 3:
            later.append(wal.append(rows(100)))
        if value == 5:
            wal.flush(timeout=30)
        if value == 19:
            wal.close(timeout=30)

    for value in range(20):
        wal.append(rows(value)).when_done(partial(called, value))
    until(lambda: len(done) == 20)
    wal.close(timeout=30)
    assert done == list(range(20))
    assert later[0].result(timeout=30) >= 0
    assert sorted(stored(faulty.inner)) == [*range(20), 100]


def test_a_ticket_that_was_decided_before_it_was_asked_is_called_back_in_its_turn(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    called: list[int] = []
    goes_on = threading.Event()
    with faulty.journaled(folder) as wal:
        tickets = [wal.append(rows(value)) for value in range(4)]
        tickets[0].when_done(lambda: (called.append(0), goes_on.wait(30)))  # type: ignore[func-returns-value, arg-type, return-value]
        until(lambda: called == [0])
        tickets[3].result(timeout=30)
        for number in (2, 3, 1):
            tickets[number].when_done(partial(called.append, number))
        goes_on.set()
    assert called == [0, 1, 2, 3]


def test_a_callback_that_fails_keeps_no_other_from_being_called(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    done = []
    with faulty.journaled(folder) as wal:
        for value in range(5):

            def called(value: int = value) -> None:
                done.append(value)
                raise SystemExit

            wal.append(rows(value)).when_done(called)
    assert done == list(range(5))


def test_a_callback_is_called_after_the_append_was_decided_too(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    with faulty.journaled(folder) as wal:
        ticket = wal.append(rows(0))
        ticket.result(timeout=30)
        called = threading.Event()
        ticket.when_done(called.set)
        assert called.wait(30)


def test_tickets_without_a_reference_use_no_memory(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    with faulty.journaled(folder) as wal:
        faulty.is_away = True
        for value in range(500):
            wal.append(rows(value))
        gc.collect()
        assert inside.tickets_in_memory(wal) == 0
        faulty.is_away = False


def test_a_late_ticket_gets_no_wrong_position(faulty: OutageStore, folder: MemoryFolder) -> None:
    """The thread that appended slept while the log took this append and thousands after it."""
    with faulty.journaled(folder) as wal:
        positions = [wal.append(rows(value)).result(timeout=30) for value in range(1010)]
        for sequence in (0, 5, 20, 1009):
            ticket = inside.late_ticket(wal, sequence, rows(0))
            assert ticket.result(timeout=0) in (-1, positions[sequence])
        assert inside.late_ticket(wal, 1009, rows(0)).result(timeout=0) == positions[1009]


def test_after_a_close_in_an_outage_tickets_report_rows_in_the_journal(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    wal = faulty.journaled(folder)
    wal.append(rows(0)).result(timeout=30)
    faulty.is_away = True
    ticket = wal.append(rows(1))
    called = threading.Event()
    ticket.when_done(called.set)
    wal.close(timeout=30)
    assert called.wait(30) and ticket.done()
    with pytest.raises(OutcomeUnknownError, match="journal"):
        ticket.result(timeout=30)
    with pytest.raises(OptionError, match="is closed"):
        wal.append(rows(2))
    wal.close()
    faulty.is_away = False
    with faulty.journaled(folder.after_kill()):
        pass
    assert stored(faulty.inner) == [0, 1]


def test_closing_waits_for_its_timeout_and_the_rows_stay(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    wal = faulty.journaled(folder)
    first = faulty.gap()
    faulty.hold(first)
    wal.append(rows(0))
    with pytest.raises(TimeoutError):
        wal.close(timeout=0.05)
    with pytest.raises(OptionError, match="is closed"):
        wal.append(rows(1))
    left = folder.after_kill()
    faulty.release(first)
    wal.close(timeout=30)
    assert stored(faulty.inner) == [0]
    with faulty.journaled(left) as again:
        assert again.last_sequence == 0
    assert stored(faulty.inner) == [0]


# Rows.


def test_rows_that_do_not_fit_are_refused_before_they_are_accepted(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    with faulty.journaled(folder, journalSegmentBytes="64kb", journalMaxBytes="1mb") as wal:
        for bad in ([{"v": "x"}], [{"w": 1}], [{"v": 2**70}], "text"):
            with pytest.raises(OptionError):
                wal.append(bad)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="journalSegmentBytes"):
            wal.append(rows(*range(100_000)))
        assert wal.last_sequence == -1
        assert wal.append(rows(1)).sequence == 0
    assert stored(faulty.inner) == [1]


def test_an_append_without_rows_has_its_sequence(faulty: OutageStore, folder: MemoryFolder) -> None:
    with faulty.journaled(folder) as wal:
        empty = pa.RecordBatch.from_pylist([], schema=SCHEMA)
        for each in ([], empty, rows(1), [], empty):
            wal.append(each)
        wal.flush(timeout=30)
    with faulty.journaled(folder.after_kill()) as again:
        assert again.last_sequence == 4
        again.append([]).result(timeout=30)
    assert stored(faulty.inner) == [1]


def unsent(
    faulty: OutageStore, folder: MemoryFolder, schema: pa.Schema, rows: list[Any]
) -> MemoryFolder:
    """A folder with rows of this schema that were not sent."""
    wal = over(faulty, folder, schema)
    faulty.is_away = True
    for each in rows:
        wal.append([each])
    left = folder.after_kill()
    abandon(faulty, wal)
    faulty.is_away = False
    return left


def over(faulty: OutageStore, folder: MemoryFolder, schema: pa.Schema, **options: Any) -> Appender:
    log = LogStore(faulty.retrying(1), PREFIX)
    given = {"journal": "x", "journalSlots": 4096, "mergeSchema": True, **options}
    return Appender(log, schema, producer_id="p", folder=folder, **given)


V = pa.field("v", pa.int64())


def test_a_column_that_was_added_is_null_in_what_waited(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    left = unsent(faulty, folder, SCHEMA, rows(1, 2))
    wider = pa.schema([pa.field("first", pa.string()), V])
    with over(faulty, left, wider) as wal:
        wal.append([{"v": 3, "first": "x"}])
    assert stored(faulty.inner) == [1, 2, 3]
    assert [sequence for _, _, sequence, _ in commits(faulty.inner)][-1] == 2


@pytest.mark.parametrize(
    "other",
    [
        pa.schema([pa.field("w", pa.int64())]),
        pa.schema([pa.field("v", pa.string())]),
        pa.schema([V, pa.field("w", pa.int64(), nullable=False)]),
    ],
    ids=["removed", "retyped", "added and not nullable"],
)
def test_a_schema_that_what_waits_does_not_fit_is_refused_and_nothing_is_lost(
    faulty: OutageStore, folder: MemoryFolder, other: pa.Schema
) -> None:
    left = unsent(faulty, folder, SCHEMA, rows(1, 2))
    with pytest.raises(OptionError):
        over(faulty, left, other)
    left = left.after_kill()
    with over(faulty, left, SCHEMA) as wal:
        wal.append(rows(3))
    assert stored(faulty.inner) == [1, 2, 3]


def test_a_column_that_takes_no_nulls_any_more_has_those_that_were_accepted(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    left = unsent(faulty, folder, SCHEMA, [{"v": None}, {"v": 2}])
    strict = pa.schema([pa.field("v", pa.int64(), nullable=False)])
    with over(faulty, left, strict) as wal:
        wal.flush(timeout=30)
        with pytest.raises(OptionError, match="not nullable"):
            wal.append([{"v": None}])
    assert stored(faulty.inner) == [None, 2]


def test_once_everything_is_sent_the_schema_is_free(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    two = pa.schema([V, pa.field("w", pa.int64())])
    for kill in (False, True):
        wal = over(faulty, folder, two)
        wal.append([{"v": 1, "w": 2}])
        wal.flush(timeout=30)
        left = folder.after_kill()
        wal.close()
        folder = left if kill else folder.after_kill()
        with over(faulty, folder, SCHEMA) as wal:
            wal.append(rows(3))
        folder = folder.after_kill()
    assert [sequence for _, _, sequence, _ in commits(faulty.inner)] == [0, 1, 2, 3]


# No room.


SMALL = {"journalSegmentBytes": "64kb", "journalMaxBytes": "256kb"}


@pytest.mark.parametrize("options", [{"journalSlots": 20}, SMALL], ids=["slots", "bytes"])
def test_a_full_journal_blocks_until_the_outage_ends(
    faulty: OutageStore, folder: MemoryFolder, options: dict[str, Any]
) -> None:
    values = range(100)
    wide = 1000 if options is SMALL else 1
    with faulty.journaled(folder, **options) as wal:
        faulty.is_away = True
        accepted: list[int] = []

        def append() -> None:
            for value in values:
                wal.append(rows(*[value] * wide))
                accepted.append(value)

        thread = threading.Thread(target=append)
        thread.start()
        until(lambda: inside.wants_room(wal))
        with pytest.raises(BackPressureError):
            wal.append(rows(*[-1] * wide), block=False)
        assert 0 < len(accepted) < len(values)
        faulty.is_away = False
        thread.join(60)
        assert accepted == list(values)
    assert stored(faulty.inner) == [value for value in values for _ in range(wide)]
    sound(faulty)


def appending(wal: Appender) -> tuple[threading.Thread, list[SparkWalError]]:
    """A thread that appends more than there is room for, and what ended it."""
    raised: list[SparkWalError] = []

    def append() -> None:
        try:
            for value in range(100):
                wal.append(rows(value))
        except SparkWalError as error:
            raised.append(error)

    thread = threading.Thread(target=append)
    thread.start()
    return thread, raised


def test_an_append_that_waits_for_room_raises_when_the_appender_stops(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    wal = faulty.journaled(folder, journalSlots=5)
    faulty.is_away = True
    thread, raised = appending(wal)
    until(lambda: inside.wants_room(wal) and wal.is_store_away)
    with FaultyStore(faulty.inner).appender("another"):
        faulty.is_away = False
        thread.join(30)
        assert not thread.is_alive() and isinstance(raised[0], FencedError)
        wal.close(timeout=30)


def test_closing_wakes_an_append_that_waits_for_room(
    faulty: OutageStore, folder: MemoryFolder
) -> None:
    wal = faulty.journaled(folder, journalSlots=5)
    faulty.is_away = True
    thread, raised = appending(wal)
    until(lambda: inside.wants_room(wal))
    wal.close(timeout=30)
    thread.join(30)
    assert not thread.is_alive() and "is closed" in str(raised[0])


@pytest.mark.parametrize("sync", ["interval", "none"])
def test_without_a_sync_for_each_append_the_end_of_the_process_loses_nothing(
    faulty: OutageStore, folder: MemoryFolder, sync: str
) -> None:
    wal = faulty.journaled(folder, journalSync=sync, journalSyncInterval="1ms")
    faulty.is_away = True
    for value in range(100):
        wal.append(rows(value))
    assert wal.last_sequence == 99
    left = folder.after_kill()
    abandon(faulty, wal)
    faulty.is_away = False
    with faulty.journaled(left) as again:
        again.flush(timeout=30)
    assert stored(faulty.inner) == list(range(100))


# Damage.


def damaged(folder: MemoryFolder, at: float) -> None:
    """Turn a byte of the newest segment, so far into it."""
    name = [name for name in folder.names() if name.endswith(".wal")][-1]
    body = bytearray(folder.bytes_of(name))
    body[int(len(body) * at)] ^= 0xFF
    folder.put(name, bytes(body))


@pytest.fixture
def left(faulty: OutageStore, folder: MemoryFolder) -> MemoryFolder:
    """A hundred rows that were not sent, with a damage in the middle."""
    found = unsent(faulty, folder, SCHEMA, rows(*range(100)))
    damaged(found, 0.5)
    return found


def test_rows_lost_to_damage_are_resent_once_and_in_order(
    faulty: OutageStore, left: MemoryFolder
) -> None:
    with faulty.journaled(left) as wal:
        lost = wal.lost
        assert 0 < lost.start < 60 and lost.stop == 100
        assert wal.last_sequence == lost.start - 1
        for value in lost:
            assert wal.append(rows(value)).sequence == value
        wal.append(rows(100))
    with faulty.journaled(left.after_kill()) as again:
        assert again.lost == range(0) and again.last_sequence == 100
    assert stored(faulty.inner) == list(range(101))
    sound(faulty)


def test_resending_after_another_append_took_a_lost_sequence_is_refused(
    faulty: OutageStore, left: MemoryFolder
) -> None:
    with faulty.journaled(left) as wal:
        first = wal.lost.start
        wal.append(rows(1000))
        said = f"append {first} was lost .*, and {first} was appended meanwhile"
        with pytest.raises(OptionError, match=said):
            wal.resend_lost(rows)


def test_resent_rows_are_no_longer_reported_as_lost(
    faulty: OutageStore, left: MemoryFolder
) -> None:
    with faulty.journaled(left) as wal:
        assert wal.lost and wal.resend_lost(rows)
        assert not wal.lost and wal.resend_lost(rows) == []
        wal.append(rows(100))
        assert wal.resend_lost(rows) == []
    assert stored(faulty.inner) == list(range(101))


def test_one_bad_entry_does_not_return_at_each_start(
    faulty: OutageStore, left: MemoryFolder
) -> None:
    """As a bad chunk of fluent-bit's that is tried, and given up, at each start."""
    reported: list[events.Event] = []
    for run in range(3):
        with faulty.journaled(left, on_event=reported.append) as wal:
            # Reported again until it is resent.
            assert bool(wal.lost) == (run < 2)
            for value in wal.lost if run == 1 else ():
                wal.append(rows(value))
        left = left.after_kill()
    assert stored(faulty.inner) == list(range(100))
    assert sum(isinstance(event, events.ReplayStopped) for event in reported) == 1
    assert sum(name.startswith("quarantine/") for name in left.names()) == 1


def test_damage_that_is_found_while_it_runs_stops_it_and_it_can_be_closed(
    faulty: OutageStore, folder: MemoryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Vector's loop over a corrupt record, which no signal ended: this one stops by itself."""
    monkeypatch.setattr(journal_intake, "_WINDOW_BYTES", 0)  # all is read from the disk
    wal = faulty.journaled(folder)
    faulty.is_away = True
    for value in range(100):
        wal.append(rows(value))
    until(lambda: wal.is_store_away)
    name = next(name for name in folder.names() if name.endswith(".wal"))
    body = folder.files[name].now
    body[len(body) // 2] ^= 0xFF
    faulty.is_away = False
    until(lambda: wal.error is not None)
    with pytest.raises(SparkWalError, match="cannot|CRC|not where"):
        wal.append(rows(100))
    wal.close(timeout=30)
    have = stored(faulty.inner)
    assert have == list(range(len(have))) and len(have) < 60
    with faulty.journaled(folder.after_kill()) as again:
        assert again.lost and again.last_sequence == again.lost.start - 1
        for value in again.lost:
            again.append(rows(value))
    assert stored(faulty.inner) == list(range(100))


# Folders.


def test_a_folder_is_for_one_appender_at_a_time_and_free_after_a_failed_opening(
    faulty: OutageStore, tmp_path: Path
) -> None:
    path = str(tmp_path / "journal")
    with faulty.journaled(None, journal=path) as wal:
        with pytest.raises(OptionError, match="is held by this process"):
            faulty.journaled(None, journal=path)
        wal.append(rows(0)).result(timeout=30)
        assert wal.error is None
    faulty.is_away = True
    for _ in range(3):
        with pytest.raises(SparkWalError):
            faulty.journaled(None, journal=path)
    faulty.is_away = False
    with faulty.journaled(None, journal=path) as wal:
        assert wal.last_sequence == 0
