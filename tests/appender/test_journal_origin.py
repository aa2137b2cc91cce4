"""Whether a producer's rows in the log came from this journal, from another, or are unknown."""

from __future__ import annotations

import pytest

from sparkwal.appender import journal_backend
from sparkwal.errors import OptionError
from sparkwal.format.lifecycle_record import FLOOR
from sparkwal.journal.files import SENDER
from tests.appender.away import OutageStore
from tests.appender.faulty_store import stored
from tests.appender.test_limits import Limited
from tests.journal.disk import MemoryFolder
from tests.logs import rows


@pytest.fixture
def faulty() -> Limited:
    return Limited()


def killed(faulty: Limited, appends: int = 5) -> MemoryFolder:
    """The folder of an appender that died when the log had all and no cursor said so."""
    folder = MemoryFolder()
    with faulty.open(folder=folder, journal="x", journalSlots=100) as wal:
        for value in range(appends):
            wal.append(rows(value))
        wal.flush(timeout=30)
        return folder.after_kill()


def check_continues(faulty: Limited, left: MemoryFolder, **options: object) -> None:
    """It opens, and what it takes next is in the log once."""
    with faulty.open(folder=left, journal="x", journalSlots=100, **options) as wal:
        value = wal.last_sequence + 1
        assert wal.append(rows(value)).sequence == value
    assert [each for each in stored(faulty.inner) if each >= 0] == list(range(value + 1))


def others(faulty: Limited, appends: int) -> None:
    with faulty.appender("another") as other:
        for value in range(appends):
            other.append(rows(-value - 1)).result()


def test_a_journal_continues_after_the_floor_passed_its_last_commit(
    faulty: Limited,
) -> None:
    left = killed(faulty)
    faulty.compacted()
    faulty.move(FLOOR, floor=faulty.gap())
    check_continues(faulty, left)


def test_a_journal_continues_after_the_floor_passed_its_last_commit_and_others_wrote(
    faulty: Limited,
) -> None:
    """A collection leaves the newest records below the floor, and these were never free."""
    left = killed(faulty)
    others(faulty, 30)
    faulty.compacted()
    faulty.move(FLOOR, floor=faulty.gap() - 10)
    check_continues(faulty, left)


def test_the_last_sender_is_found_without_a_look_back_at_each_step(faulty: Limited) -> None:
    left = killed(faulty)
    for writer in range(10):
        with faulty.appender(f"another {writer}", maxInFlightRequests=12) as other:
            for value in range(20):
                other.append(rows(-value - 1)).result()
    faulty.inner.counts.clear()
    faulty.open(folder=left, journal="x", journalSlots=100, maxInFlightRequests=12).close()
    # 300 records: 12 reads for the head, 9 for the search, 12 before the record that it finds.
    assert faulty.inner.counts["GET"] <= 12 + 9 + 12


def test_the_sender_of_collected_records_is_unknown(
    faulty: Limited, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = killed(faulty)
    others(faulty, 30)
    faulty.compacted()
    faulty.move(FLOOR, floor=faulty.gap() - 5)
    monkeypatch.setattr(journal_backend, "KEPT_SLOTS", 10)
    copy = left.after_kill()
    match = "collected.*journalSentUpTo=4: then entries 0 to 4"
    with pytest.raises(OptionError, match=match) as error:
        faulty.open(folder=left, journal="x", journalSlots=100)
    assert "wrote the last" not in str(error.value)
    with pytest.raises(OptionError, match="journalSentUpTo=4"):
        faulty.open(folder=left.after_kill(), journal="x", journalSlots=100, journalSentUpTo=3)
    check_continues(faulty, copy, journalSentUpTo=4)
    # Only once: it remembers the entries that it sent.
    check_continues(faulty, copy.after_kill())


@pytest.mark.parametrize("power", [0, 5])
def test_one_flipped_bit_hides_no_sender(faulty: Limited, power: int) -> None:
    left = killed(faulty)
    size = len(left.bytes_of(SENDER))
    for at in (*range(0, 240, 7), *range(size // 2, size // 2 + 240, 7)):
        hurt = left.after_kill()
        data = bytearray(hurt.bytes_of(SENDER))
        data[at] ^= 1 << power
        hurt.put(SENDER, bytes(data))
        faulty.open(folder=hurt, journal="x", journalSlots=100).close()
    check_continues(faulty, left)


@pytest.mark.parametrize("damage", ["gone", "empty", "damaged"])
def test_an_unreadable_note_blames_no_other_sender(faulty: Limited, damage: str) -> None:
    left = killed(faulty)
    if damage == "gone":
        left.remove(SENDER)
    else:
        left.put(SENDER, bytes(10) if damage == "empty" else b"\x07" * 8192)
    before = left.after_kill()
    why = "is missing" if damage == "gone" else "cannot be read"
    with pytest.raises(OptionError, match=f"{why}.*journalSentUpTo=4") as error:
        faulty.open(folder=left, journal="x", journalSlots=100)
    assert "another appender" not in str(error.value)
    # All of its rows are still in the journal.
    names = [name for name in before.names() if name.endswith(".wal")]
    assert [left.bytes_of(name) for name in names] == [before.bytes_of(name) for name in names]
    check_continues(faulty, left.after_kill(), journalSentUpTo=4)


def test_another_sender_that_wrote_is_refused_for_every_confirmed_position() -> None:
    faulty, folder = OutageStore(), MemoryFolder()
    wal = faulty.journaled(folder)
    wal.append(rows(0)).result(timeout=30)
    faulty.is_away = True
    wal.append(rows(1))
    left = folder.after_kill()
    wal.close(timeout=30)
    faulty.is_away = False
    with faulty.appender() as other:
        other.append(rows(-1)).result()
    for options in ({}, {"journalSentUpTo": 1}):
        with pytest.raises(OptionError, match="another appender.*wrote the last"):
            faulty.journaled(left.after_kill(), **options)
    assert stored(faulty.inner) == [0, -1]
