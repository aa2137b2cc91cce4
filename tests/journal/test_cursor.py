"""The cursor shows how far the log has a journal's entries; a wrong cursor loses nothing."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.journal.files import Cursor, note_of, read_cursor, write_cursor
from tests.journal.disk import Crash, MemoryFolder
from tests.journal.stand import OWNER, SMALL, Run, everything, fill, open_journal, segments

LENGTHS = [200] * 10
NEWEST = len(LENGTHS) - 1


def drained(upto: int = 5) -> tuple[MemoryFolder, dict[int, bytes]]:
    """Some segments are removed; closed."""
    folder = MemoryFolder()
    run = open_journal(folder)
    written = fill(run, LENGTHS)
    run.journal.acknowledge(upto)
    run.journal.drain()
    run.journal.close()
    assert int(segments(folder)[0][:20]) > 0
    return folder, written


def rejected(run: Run) -> str:
    assert [event.name for event in run.warnings()] == ["cursor_rejected"]
    return run.only("cursor_rejected").reason


def after(written: dict[int, bytes], durable: int) -> dict[int, bytes]:
    return {sequence: body for sequence, body in written.items() if sequence > durable}


def test_without_a_cursor_all_entries_after_the_logs_last_are_read() -> None:
    folder, written = drained()
    folder.remove("cursor")
    run = open_journal(folder, 5)
    assert run.warnings() == []
    assert run.entries(5) == after(written, 5)


def test_a_torn_cursor_is_rejected() -> None:
    folder, written = drained()
    intact = folder.bytes_of("cursor")
    for size in range(len(intact)):
        left = folder.after_kill()
        left.put("cursor", intact[:size])
        run = open_journal(left, 5)
        assert rejected(run) == "it is torn"
        assert run.entries(5) == after(written, 5)


@pytest.mark.parametrize(
    "body", [b"[]", b"1", b'{"cursor": 1, "crc32": 1}', b"\xff\xfe\0", b"[" * 9999]
)
def test_a_cursor_of_garbage_is_rejected(body: bytes) -> None:
    folder, written = drained()
    folder.put("cursor", body)
    run = open_journal(folder, 5)
    assert rejected(run)
    assert run.entries(5) == after(written, 5)


@pytest.mark.parametrize(("first", "next_"), [(20, 4), (2**63 - 1, 4), (-1, 4), (1, 10**18)])
def test_a_cursor_that_contradicts_itself_is_rejected(first: int, next_: int) -> None:
    """Its CRC is right: a program wrote it so."""
    folder, written = drained()
    cursor = Cursor("log-1", "orders", 5, 0, 0)
    plain = {**vars(cursor), "first_segment": first, "next_segment": next_}
    folder.put("cursor", note_of("cursor", plain))
    run = open_journal(folder, 5)
    assert rejected(run)
    assert run.entries(5) == after(written, 5)


def test_a_cursor_behind_the_log_loses_nothing() -> None:
    folder, written = drained(5)
    run = open_journal(folder, 8)
    assert run.warnings() == []
    assert run.entries(8) == after(written, 8)
    assert run.journal.remaining_capacity() == run.segments.slots - 1


def test_a_cursor_older_than_a_removal_of_segments_loses_nothing() -> None:
    folder = MemoryFolder()
    run = open_journal(folder)
    written = fill(run, LENGTHS[:3])
    run.journal.close()
    old = folder.bytes_of("cursor")
    run = open_journal(folder)
    written |= fill(run, LENGTHS[3:])
    run.journal.acknowledge(6)
    run.journal.drain()
    folder = folder.after_kill()
    folder.put("cursor", old)
    run = open_journal(folder, 6)
    assert run.warnings() == []
    assert run.entries(6) == after(written, 6)


def test_a_cursor_ahead_of_the_log_is_rejected_and_all_entries_are_resent() -> None:
    folder, written = drained(4)
    first = min(open_journal(folder.after_kill(), 4).entries(-1))
    run = open_journal(folder, first - 1)
    assert "ahead of the log's" in rejected(run)
    assert run.entries(first - 1) == after(written, first - 1)


def test_a_log_that_lacks_what_was_removed_is_refused() -> None:
    folder, _ = drained(5)
    before = everything(folder)
    with pytest.raises(InvalidLogError, match="restored from an older copy"):
        open_journal(folder, 0)
    assert everything(folder) == before


@pytest.mark.parametrize(
    "other", [{"log_id": "log-2"}, {"producer": "other"}], ids=["log", "producer"]
)
def test_a_cursor_of_another_is_rejected_and_removes_nothing(other: dict[str, str]) -> None:
    folder = MemoryFolder()
    run = open_journal(folder)
    written = fill(run, LENGTHS)
    run.journal.close()
    whose = {"log_id": OWNER.log_id, "producer": OWNER.producer} | other
    # It calls all that is here removed, and every byte of it synced.
    write_cursor(folder, Cursor(**whose, sequence=900, first_segment=70, next_segment=71))
    run = open_journal(folder, 2)
    assert "of another log or another producer" in rejected(run)
    assert run.entries(2) == after(written, 2)
    fill(run, LENGTHS[:4])
    assert int(segments(folder)[-1][:20]) >= 71, "its ids may have been used"
    run.journal.close()
    assert open_journal(folder, 2).warnings() == []


def test_a_damaged_journal_with_the_cursor_of_another_has_an_unknown_owner() -> None:
    folder = MemoryFolder()
    run = open_journal(folder)
    fill(run, [10])
    run.journal.close()
    folder.put(segments(folder)[0], b"damaged")
    before = everything(folder)
    with pytest.raises(OptionError, match="owner of its entries is unknown"):
        open_journal(folder, owner=replace(OWNER, producer="other"))
    assert everything(folder) == before


@pytest.mark.parametrize(
    "other", [{"log_id": "log-2"}, {"producer": "other"}], ids=["log", "producer"]
)
def test_entries_of_another_that_its_log_may_not_have_are_refused(other: dict[str, str]) -> None:
    folder, _ = drained(5)
    before = everything(folder)
    with pytest.raises(OptionError, match="holds 4 entries of") as wrong:
        open_journal(folder, 0, owner=replace(OWNER, **other))
    assert "no entry is lost" in str(wrong.value)
    assert everything(folder) == before


def finished() -> MemoryFolder:
    """A journal whose entries are all in the log by its cursor."""
    folder = MemoryFolder()
    run = open_journal(folder)
    fill(run, LENGTHS)
    run.journal.acknowledge(NEWEST)
    run.journal.close()
    return folder


def test_a_finished_journal_of_another_producer_is_replaced() -> None:
    folder = finished()
    owner = replace(OWNER, producer="other", log_id="log-2")
    run = open_journal(folder, 100, owner=owner)
    assert rejected(run)
    assert run.journal.last == 100
    written = fill(run, [50, 60])
    run.journal.close()
    run = open_journal(folder, 100, owner=owner)
    assert run.warnings() == []
    assert run.entries(100) == written


def test_a_crash_during_a_change_of_owner_leaves_the_folder_to_either() -> None:
    owner = replace(OWNER, producer="other", log_id="log-2")
    call, points = 0, 0
    while True:
        origin = finished()
        origin.calls, origin.crash_at = 0, call
        try:
            open_journal(origin, 100, owner=owner)
            break
        except Crash:
            pass
        for seed in range(50):
            left = origin.after_crash(random.Random(seed))
            # Either may have it then.
            for whose, durable in ((owner, 100), (OWNER, NEWEST)):
                folder = left.after_kill()
                run = open_journal(folder, durable, owner=whose)
                assert (run.journal.last, run.lost) == (durable, range(0))
                fill(run, [10])
                run.journal.close()
                assert open_journal(folder, durable, owner=whose).warnings() == []
            points += 1
        call += 1
    print(f"{points} crashes")


# The number of slots.


def test_a_journal_keeps_its_number_of_slots() -> None:
    folder = MemoryFolder()
    open_journal(folder, settings=replace(SMALL, slots=7)).journal.close()
    run = open_journal(folder)
    assert run.journal.remaining_capacity() == 7
    fill(run, [10] * 3)
    run.journal.close()
    assert open_journal(folder, 0).journal.remaining_capacity() == 5


def test_slots_may_not_be_fewer_than_entries_wait() -> None:
    folder = MemoryFolder()
    run = open_journal(folder)
    written = fill(run, [10] * 6)
    run.journal.close()
    before = everything(folder)
    with pytest.raises(OptionError, match="5 entries wait .* journalSlots is 4"):
        open_journal(folder, 0, replace(SMALL, slots=4))
    assert everything(folder) == before
    run = open_journal(folder, 1, replace(SMALL, slots=4))
    assert run.entries(1) == after(written, 1)
    assert run.journal.remaining_capacity() == 0
    run.journal.close()
    # From then on these are its own.
    assert open_journal(folder, 1).journal.remaining_capacity() == 0


def test_slots_may_be_more_than_before() -> None:
    folder = MemoryFolder()
    run = open_journal(folder, settings=replace(SMALL, slots=3))
    written = fill(run, [10] * 3)
    run.journal.close()
    run = open_journal(folder, settings=replace(SMALL, slots=9))
    written |= fill(run, [10] * 6)
    assert run.journal.remaining_capacity() == 0
    assert run.entries() == written
    run.journal.close()
    run = open_journal(folder)
    assert run.entries() == written


def test_the_cursor_records_the_logs_last_entry_and_the_end_of_the_journal() -> None:
    folder, _ = drained(5)
    cursor, wrong = read_cursor(folder)
    assert wrong == "" and cursor is not None
    assert (cursor.log_id, cursor.producer, cursor.sequence) == ("log-1", "orders", 5)
    name = segments(folder)[-1]
    assert cursor.ends == [int(name[:20]), len(folder.bytes_of(name)), NEWEST]
    assert cursor.next_segment == int(name[:20]) + 1
