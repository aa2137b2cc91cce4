"""A disk that fails or is full, while a journal is open."""

from __future__ import annotations

import errno
import threading
from dataclasses import replace

import pytest

from sparkwal.errors import (
    BackPressureError,
    JournalError,
    JournalFolderSyncError,
    JournalReadError,
    JournalRenameError,
    JournalSyncError,
    JournalWriteError,
    OptionError,
)
from tests.journal.disk import MemoryFolder
from tests.journal.stand import OWNER, SMALL, Run, content, fill, open_journal, segments


def opened() -> tuple[MemoryFolder, Run, dict[int, bytes]]:
    folder = MemoryFolder()
    run = open_journal(folder)
    return folder, run, fill(run, [100, 100, 100])


def only_before(folder: MemoryFolder, written: dict[int, bytes], more: int) -> None:
    """A new opening has every acknowledged entry, and perhaps some unacknowledged ones."""
    folder.faults.clear()
    run = open_journal(folder.after_kill())
    entries = run.entries()
    assert {k: entries[k] for k in written} == written
    assert set(entries) - set(written) <= set(range(len(written), len(written) + more))
    assert fill(run, [20])


def test_a_sync_that_fails_stops_the_journal_and_a_later_one_that_would_not_is_not_asked() -> None:
    folder, run, written = opened()
    folder.faults["sync"] = [errno.EIO]
    sequence = run.journal.write(content(3, 50))
    with pytest.raises(JournalSyncError) as wrong:
        run.journal.wait(sequence)
    assert (wrong.value.stage, wrong.value.retryable) == ("sync", False)
    calls = folder.calls
    for call in (
        lambda: run.journal.wait(sequence),
        lambda: run.journal.write(b"x"),
        run.journal.sync,
        run.journal.drain,
    ):
        with pytest.raises(JournalSyncError):
            call()
    assert folder.calls == calls
    # Entries acknowledged before can be read and sent.
    assert bytes(run.journal.read(2)[0]) == written[2]
    assert run.journal.accepted == 2
    assert isinstance(run.journal.failure, JournalSyncError)
    run.journal.close()
    only_before(folder, written, 1)


def test_a_failing_sync_is_raised_in_every_waiter() -> None:
    folder, run, _ = opened()
    sequences = [run.journal.write(content(n, 50)) for n in (3, 4, 5)]
    folder.faults["sync"] = [errno.EIO]
    reported = []

    def waits(sequence: int) -> None:
        try:
            run.journal.wait(sequence)
        except JournalError as error:
            reported.append(type(error))

    threads = [threading.Thread(target=waits, args=(each,)) for each in sequences]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reported == [JournalSyncError] * 3


def test_a_write_that_fails_stops_the_journal() -> None:
    folder, run, written = opened()
    folder.faults["write"] = [errno.EIO]
    with pytest.raises(JournalWriteError) as wrong:
        run.journal.write(content(3, 50))
    assert (wrong.value.stage, wrong.value.retryable) == ("write", False)
    with pytest.raises(JournalWriteError):
        run.journal.write(b"x")
    run.journal.close()
    only_before(folder, written, 0)


def test_a_segment_that_does_not_get_its_name_may_be_tried_again() -> None:
    folder, run, written = opened()
    folder.faults["rename"] = [errno.EIO]
    with pytest.raises(JournalRenameError) as wrong:
        run.journal.write(content(3, 800))
    assert (wrong.value.stage, wrong.value.retryable) == ("rename", True)
    assert run.journal.failure is None
    written |= fill(run, [800])
    assert run.entries() == written
    run.journal.close()
    again = open_journal(folder)
    assert again.warnings() == [] and again.entries() == written
    assert not [name for name in folder.names() if name.endswith(".tmp")]


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("create", JournalWriteError),
        ("write", JournalWriteError),
        ("sync", JournalSyncError),
        ("sync_folder", JournalFolderSyncError),
    ],
)
def test_a_segment_that_cannot_be_made_stops_the_journal(
    call: str, kind: type[JournalError]
) -> None:
    folder, run, written = opened()
    folder.faults[call] = [errno.EIO]
    with pytest.raises(kind) as wrong:
        run.journal.write(content(3, 800))
    assert not wrong.value.retryable
    with pytest.raises(kind):
        run.journal.write(b"x")
    run.journal.close()
    only_before(folder, written, 0)


@pytest.mark.parametrize(
    ("call", "kind", "stops"),
    [
        ("create", JournalWriteError, True),
        ("write", JournalWriteError, True),
        ("sync", JournalSyncError, True),
        ("rename", JournalRenameError, False),
        ("sync_folder", JournalFolderSyncError, True),
        ("remove", JournalWriteError, True),
    ],
)
def test_letting_go_fails_at_each_stage(call: str, kind: type[JournalError], stops: bool) -> None:
    folder, run, _ = opened()
    fill(run, [800, 800])
    run.journal.acknowledge(3)
    folder.faults[call] = [errno.EIO]
    with pytest.raises(kind) as wrong:
        run.journal.drain()
    assert wrong.value.retryable is not stops
    assert (run.journal.failure is not None) is stops
    if not stops:
        run.journal.drain()
        assert len(segments(folder)) == 1
    folder.faults.clear()
    again = open_journal(folder.after_kill(), 3)
    assert list(again.entries(3)) == [4]


def test_an_entry_that_is_damaged_while_the_journal_is_open() -> None:
    folder, run, written = opened()
    (name,) = segments(folder)
    at = folder.bytes_of(name).index(written[1])
    folder.files[name].now[at] ^= 1
    with pytest.raises(JournalReadError, match="Open the journal again") as wrong:
        run.journal.read(1)
    assert (wrong.value.stage, wrong.value.retryable) == ("read", False)
    with pytest.raises(JournalReadError):
        run.journal.write(b"x")
    run.journal.close()
    again = open_journal(folder)
    assert again.lost == range(1, 3)
    assert again.entries() == {0: written[0]}


@pytest.mark.parametrize("call", ["create", "write", "sync", "rename", "sync_folder"])
def test_the_disk_fails_while_a_damaged_journal_is_opened(call: str) -> None:
    folder, run, written = opened()
    fill(run, [800])
    run.journal.close()
    name = segments(folder)[0]
    hurt = bytearray(folder.bytes_of(name))
    hurt[hurt.index(written[1])] ^= 1
    folder.put(name, bytes(hurt))
    for passing in range(30):
        left = folder.after_kill()
        left.faults[call] = [0] * passing + [errno.EIO]
        try:
            open_journal(left)
        except JournalError:
            left.faults.clear()
            run = open_journal(left)
            assert run.entries() == {0: written[0]}
            assert left.bytes_of(f"quarantine/{name}") == hurt
        else:
            if left.faults[call]:
                return
            # The file is only a hint.
            assert run.entries() == {0: written[0]}
    pytest.fail("it never ended")


# No room.


def test_a_full_disk_refuses_an_append_and_takes_it_later_once() -> None:
    folder, run, written = opened()
    (name,) = segments(folder)
    size = len(folder.bytes_of(name))
    folder.room = folder.used() + 30
    for _ in range(3):
        with pytest.raises(BackPressureError, match="this append was not accepted"):
            run.journal.write(content(3, 60))
        assert len(folder.bytes_of(name)) == size, "nothing of it is left"
    assert run.names().count("journal_full") == 1
    assert run.journal.last == 2
    folder.room = None
    written |= fill(run, [60])
    folder.room = folder.used()
    with pytest.raises(BackPressureError):
        run.journal.write(content(4, 60))
    assert run.names().count("journal_full") == 2, "it is another time"
    assert run.entries() == written
    run = open_journal(folder.after_kill())
    assert run.warnings() == [] and run.entries() == written


def test_a_journal_at_its_limit_is_full_once_while_one_goes_as_the_next_comes() -> None:
    run = open_journal(MemoryFolder(), settings=replace(SMALL, slots=4))
    for time in (1, 2):
        fill(run, [20] * 4)
        for _ in range(3):
            with pytest.raises(BackPressureError, match="journalSlots"):
                run.journal.write(content(9, 20))
            run.journal.acknowledge(run.journal.last - 3)
            run.journal.drain()
            fill(run, [20])
        assert run.names().count("journal_full") == time
        run.journal.acknowledge(run.journal.last)
        run.journal.drain()


def test_a_full_disk_takes_appends_again_when_it_has_room() -> None:
    folder, run, _ = opened()
    folder.room = folder.used() + 30
    for _ in range(2):
        with pytest.raises(BackPressureError):
            run.journal.write(content(3, 60))
        run.journal.wait_for_room(60)  # it looks by itself before that
    folder.room = None
    assert run.journal.write(content(3, 60)) == 3
    assert run.names().count("journal_full") == 1


def test_a_crash_after_a_part_of_an_append_was_written_to_a_full_disk() -> None:
    folder, run, written = opened()
    folder.room = folder.used() + 30
    folder.faults["truncate"] = [errno.EIO]
    with pytest.raises(JournalWriteError):
        run.journal.write(content(3, 60))
    run = open_journal(folder.after_kill())
    assert [event.name for event in run.warnings()] == ["tail_truncated"]
    assert run.entries() == written


def test_a_full_disk_has_no_room_for_another_segment() -> None:
    folder, run, written = opened()
    folder.room = folder.used() + 30
    with pytest.raises(BackPressureError):
        run.journal.write(content(3, 800))
    folder.room = None
    written |= fill(run, [800])
    assert run.entries() == written


@pytest.mark.parametrize("upto", [3, 4], ids=["all but one segment", "all of it"])
def test_a_full_disk_gets_room_by_what_the_log_has(upto: int) -> None:
    folder, run, written = opened()
    written |= fill(run, [800, 100])
    before = len(segments(folder))
    folder.room = folder.used()
    with pytest.raises(BackPressureError):
        run.journal.write(content(5, 60))
    run.journal.acknowledge(upto)
    run.journal.drain()
    assert len(segments(folder)) < before
    written |= fill(run, [60])
    assert run.entries(upto) == {k: v for k, v in written.items() if k > upto}
    # Each time that it is full.
    for _ in range(5):
        folder.room = None
        fill(run, [200, 200])
        folder.room = folder.used()
        while True:
            try:
                fill(run, [40])
            except BackPressureError:
                break
        run.journal.acknowledge(run.journal.last)
        run.journal.drain()
        fill(run, [40])


def test_a_full_disk_with_one_segment_only() -> None:
    folder, run, _ = opened()
    folder.room = folder.used()
    with pytest.raises(BackPressureError):
        run.journal.write(content(3, 60))
    run.journal.acknowledge(2)
    run.journal.drain()
    fill(run, [60])
    assert len(segments(folder)) == 1


def test_a_journal_on_a_full_disk_is_opened_and_drained() -> None:
    folder, run, written = opened()
    fill(run, [800])
    folder = folder.after_kill()
    folder.room = folder.used()
    run = open_journal(folder, 2)
    assert list(run.entries(2)) == [3]
    run.journal.acknowledge(3)
    run.journal.close()
    # The next process finds that the log has all of it.
    run = open_journal(folder, 3)
    fill(run, [60])


def test_a_full_disk_that_gets_no_room_is_not_asked_again_at_once() -> None:
    folder, run, _ = opened()
    fill(run, [800, 100])
    folder.remove("reserve")
    folder.room = folder.used()
    run.journal.acknowledge(3)
    with pytest.raises(BackPressureError):
        run.journal.write(content(5, 60))
    run.journal.drain()
    assert not run.has_room()
    folder.room = None
    run.journal.drain()
    assert run.has_room()
    fill(run, [60])


def test_a_full_disk_at_the_first_opening_is_reported() -> None:
    folder = MemoryFolder()
    folder.room = 10
    with pytest.raises(OptionError, match="is full: the journal cannot be opened. Make room"):
        open_journal(folder)
    folder.room = None
    fill(open_journal(folder), [10])


# The limits of the options.


def test_entries_up_to_the_largest_fit_however_often() -> None:
    settings = replace(SMALL, max_bytes=3 * SMALL.segment_bytes)
    folder = MemoryFolder()
    run = open_journal(folder, settings=settings)
    for _ in range(10):
        try:
            fill(run, [settings.largest])
        except BackPressureError:
            run.journal.acknowledge(run.journal.last)
            run.journal.drain()
            fill(run, [settings.largest])
    with pytest.raises(OptionError, match="split it, or raise journalSegmentBytes"):
        run.journal.write(bytes(settings.largest + 1))


def test_no_more_entries_than_slots_wait() -> None:
    run = open_journal(MemoryFolder(), settings=replace(SMALL, slots=3))
    written = fill(run, [10, 10, 10])
    with pytest.raises(BackPressureError, match="journalSlots"):
        run.journal.write(b"x")
    run.journal.acknowledge(0)
    written |= fill(run, [10])
    assert run.entries(0) == {k: v for k, v in written.items() if k > 0}


def test_a_closed_journal_takes_nothing() -> None:
    _, run, _ = opened()
    run.journal.close()
    run.journal.close()
    with pytest.raises(OptionError, match="closed"):
        run.journal.write(b"x")
    assert open_journal(run.folder, owner=OWNER).warnings() == []
