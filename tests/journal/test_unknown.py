"""A journal without its mark: the number of accepted entries is unknown, and it reports that."""

from __future__ import annotations

import errno
import random
from dataclasses import replace
from functools import partial

import pytest

from sparkwal.errors import JournalWriteError, OptionError
from sparkwal.journal.files import ACCEPTED, CURSOR, Cursor, write_cursor
from sparkwal.journal.journal import DEFAULT_SLOTS
from tests.journal.disk import Crash, MemoryFolder
from tests.journal.stand import OWNER, SMALL, content, fill, open_journal, segments

LENGTHS = [300, 300, 300, 300, 300]


def killed(lengths: list[int] = LENGTHS, sync: str = "always") -> MemoryFolder:
    """Five accepted entries in three segments, as a dead process left them."""
    folder = MemoryFolder()
    run = open_journal(folder, settings=replace(SMALL, sync=sync))
    fill(run, lengths)
    left = folder.after_kill()
    # Its thread must end: a later test replaces the locks of `threading` by simulated ones.
    run.journal.close()
    return left


def without_mark(folder: MemoryFolder, how: str) -> MemoryFolder:
    left = folder.after_kill()
    if how == "gone":
        left.remove(ACCEPTED)
    else:
        damaged = {"empty": b"", "garbage": random.Random(4).randbytes(40), "zeros": bytes(40)}
        left.put(ACCEPTED, damaged[how])
    left.sync()
    return left


def without_newest(folder: MemoryFolder) -> MemoryFolder:
    folder.remove(segments(folder)[-1])
    folder.sync()
    return folder


def zeros_from(folder: MemoryFolder, sequence: int) -> MemoryFolder:
    """The folder with nothing but zeros from this entry's content on, in its segment."""
    body = content(sequence, LENGTHS[sequence])
    (name,) = [each for each in segments(folder) if body in folder.bytes_of(each)]
    data = folder.bytes_of(name)
    begin = data.index(body)
    folder.put(name, data[:begin] + bytes(len(data) - begin))
    return folder


LOSSES = ["gone", "empty", "garbage", "zeros"]
MOST = DEFAULT_SLOTS - 1


@pytest.mark.parametrize("how", LOSSES)
def test_a_damaged_end_is_no_torn_tail_without_the_mark(how: str) -> None:
    folder = zeros_from(without_mark(killed(), how), 4)
    hurt = folder.bytes_of(segments(folder)[-1])
    run = open_journal(folder)
    assert run.lost == range(4, MOST + 1)
    assert "tail_truncated" not in run.names()
    assert run.only("quarantined").unknown == MOST - 4
    assert folder.bytes_of(f"quarantine/{segments(killed())[-1]}") == hurt
    assert list(run.entries()) == [0, 1, 2, 3]


@pytest.mark.parametrize("how", LOSSES)
def test_a_missing_newest_segment_is_reported_without_the_mark(
    how: str,
) -> None:
    run = open_journal(without_newest(without_mark(killed(), how)))
    assert run.lost == range(4, MOST + 1)
    assert run.only("quarantined").files == ""
    assert list(run.entries()) == [0, 1, 2, 3]


def test_missing_segments_are_all_reported_without_the_mark() -> None:
    folder = MemoryFolder()
    fill(open_journal(folder), LENGTHS)
    # A cursor shows that the journal was in use.
    write_cursor(folder, Cursor("log-1", "orders", 1, 0, 2))
    left = without_mark(folder, "gone")
    for name in segments(left):
        left.remove(name)
    run = open_journal(left, durable=1)
    assert run.lost == range(2, 2 + DEFAULT_SLOTS)
    assert run.journal.last == 1


def test_a_new_folder_lost_nothing() -> None:
    run = open_journal(MemoryFolder())
    assert not run.lost and run.warnings() == []


@pytest.mark.parametrize("how", LOSSES)
def test_the_cursor_of_a_closed_journal_names_its_last_entry(how: str) -> None:
    folder = MemoryFolder()
    run = open_journal(folder)
    written = fill(run, LENGTHS)
    run.journal.close()
    again = open_journal(without_mark(folder, how))
    assert again.warnings() == [] and not again.lost
    assert again.entries() == written
    assert open_journal(without_newest(without_mark(folder, how))).lost == range(4, 5)


@pytest.mark.parametrize("sync", ["interval", "none"])
def test_a_damaged_end_is_reported_where_appends_return_before_a_sync(sync: str) -> None:
    """The process died, the machine kept running: each append that returned was accepted."""
    folder = zeros_from(killed(sync=sync), 4)
    run = open_journal(folder)
    assert run.lost == range(4, 5)
    assert "tail_truncated" not in run.names()


def test_a_mark_that_cannot_be_written_stops_the_journal() -> None:
    folder = MemoryFolder()
    run = open_journal(folder)
    fill(run, [10])
    sequence = run.journal.write(b"x")
    folder.faults["write"] = [errno.EIO]
    with pytest.raises(JournalWriteError, match="accepted was not written"):
        run.journal.wait(sequence)
    assert isinstance(run.journal.failure, JournalWriteError)


def test_possible_losses_are_reported_until_they_are_settled() -> None:
    folder = zeros_from(without_mark(killed(), "gone"), 4)
    assert open_journal(folder).lost == range(4, MOST + 1)
    folder = folder.after_kill()
    run = open_journal(folder)
    assert run.warnings() == [] and run.lost == range(4, MOST + 1)
    # Entry 4 is known to be lost; only whether there were more is not.
    assert dict(run.quarantine.entries(3)) == {4: None}
    run.append(b"again")
    run.journal.settle()
    assert run.journal.lost == range(5, 5)
    run = open_journal(folder.after_kill())
    assert not run.lost and run.warnings() == []
    assert [(each.first, each.last, each.unknown) for each in run.quarantine.incidents] == [
        (4, 4, 0)
    ]


def test_settling_keeps_entries_that_are_known_to_be_lost() -> None:
    folder = zeros_from(without_mark(killed(), "gone"), 4)
    run = open_journal(folder)
    run.journal.settle()
    assert run.journal.lost == range(4, 5)
    assert open_journal(folder.after_kill()).lost == range(4, 5)


def test_an_older_incident_is_read_though_a_newer_one_may_have_taken_as_many() -> None:
    """The first damage took 1 to 4; then the mark was lost, and with it what came after 1."""
    folder = MemoryFolder()
    fill(open_journal(folder), [40] * 5)
    folder = folder.after_kill()
    (name,) = segments(folder)
    folder.put(name, folder.bytes_of(name).replace(content(1, 40), bytes(40)))
    assert open_journal(folder).lost == range(1, 5)
    folder = without_mark(folder, "gone")
    run = open_journal(folder)
    assert run.lost.start == 1 and len(run.lost) > 4
    kept = {sequence: found for sequence, found in run.quarantine.entries(0)}
    assert kept.pop(1) is None
    assert {key: found and bytes(found[0]) for key, found in kept.items()} == {
        key: content(key, 40) for key in (2, 3, 4)
    }


def test_an_opening_that_dies_anywhere_reports_the_same_loss_once() -> None:
    for hurt in (partial(zeros_from, sequence=4), without_newest):
        call, ended = 0, False
        while not ended:
            folder = hurt(without_mark(killed(), "gone"))
            expected = open_journal(folder.after_kill()).lost
            folder.calls, folder.crash_at = 0, call
            call, ended = call + 1, True
            try:
                open_journal(folder)
            except Crash:
                ended = False
            for seed in range(9):
                left = folder.after_crash(random.Random(seed)) if seed else folder.after_kill()
                run = open_journal(left)
                assert run.lost == expected, (call, seed)
                assert len(run.quarantine.incidents) == 1, (call, seed)


def test_a_folder_without_segments_refuses_a_producer_that_does_not_own_its_cursor() -> None:
    folder = MemoryFolder()
    run = open_journal(folder)
    fill(run, [10])
    run.journal.acknowledge(0)
    write_cursor(folder, Cursor("log-1", "orders", 0, 0, 1))
    left = without_mark(folder, "gone")
    for name in segments(left):
        left.remove(name)
    with pytest.raises(OptionError, match="owner of its entries is unknown"):
        open_journal(left, owner=replace(OWNER, producer="another"))
    assert CURSOR in left.names()
