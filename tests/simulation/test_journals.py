"""Journal, appender and store together, through what may happen to each of them; a failure names
its seed."""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from zlib import crc32

import pytest

from sparkwal.errors import JournalEncodeError, JournalReadError, JournalSyncError
from sparkwal.journal import files
from sparkwal.journal.files import SENDER, Cursor, Sender, read_sender, write_sender
from sparkwal.journal.journal import Journal, Settings
from sparkwal.journal.opening import Opening, Owner
from sparkwal.journal.scanning import scan_folder
from sparkwal.journal.segment import ENTRY_BYTES, LARGEST_HEADER, VERSION, Header
from sparkwal.journal.storage import Handle
from tests.journal.disk import Crash, MemoryFolder
from tests.journal.stand import open_journal, segments
from tests.simulation.journal_runs import Run
from tests.simulation.journal_shapes import SCRIPT, SHAPES, Chance, Script, scripted

pytestmark = pytest.mark.long

FIRST_SEED = int(os.environ.get("SPARKWAL_SEED", "0"))
SETTINGS = Settings(segment_bytes=900, max_bytes=2**20, slots=100)


def _check_runs(name: str, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    steps = 0
    tickets = 0
    outcomes = Counter[str]()
    for seed in range(FIRST_SEED, FIRST_SEED + count):
        run = Run(seed, SHAPES[name], Chance())
        run.run()
        steps, tickets = steps + run.steps, tickets + run.ledger.tickets
        outcomes.update(run.outcomes)
    with capsys.disabled():
        reported = ", ".join(f"{kind} {number}" for kind, number in outcomes.most_common())
        print(f"\n  {name}: {count} seeds from {FIRST_SEED}, {steps:,} steps; {reported}")
    assert outcomes["done"] > count / 4
    assert tickets > count / 2


@pytest.mark.parametrize("name", SHAPES)
def test_accepted_rows_are_in_the_log_once_and_in_order(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _check_runs(name, 15, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_a_thousand_runs_keep_accepted_rows_once_and_in_order(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _check_runs(name, 1000, capsys)


def test_a_seed_repeats_its_run() -> None:
    first, second = (Run(7, SHAPES["journal: all of it"], Chance()) for _ in range(2))
    first.run()
    second.run()
    assert first.trace == second.trace


def opened(folder: MemoryFolder, schema: bytes = b"schema") -> Journal:
    owner = Owner("log", "id", "producer", -1, schema)
    contents = scan_folder(folder, SETTINGS)
    return Opening(folder, contents, owner).begin(SETTINGS, lambda event: None)


def test_entries_accepted_before_a_loss_of_power_are_not_cut_off_as_torn() -> None:
    """Power takes the mark, which no append syncs; then the disk damages the last entry."""
    folder, seed = MemoryFolder(), 0
    journal = opened(folder)
    journal.wait(journal.write(b"accepted"))
    while files.read_mark(left := folder.after_crash(random.Random(seed))) != (0, -1):
        seed += 1
    assert opened(left).last == 0
    left = left.after_kill()
    name = files.segment_name(0)
    data = bytearray(left.bytes_of(name))
    data[-1] ^= 1
    left.put(name, bytes(data))
    assert opened(left).lost == range(1)


def test_entries_accepted_after_a_process_died_anywhere_survive_a_loss_of_power() -> None:
    """The process may have died before it synced the name of the file that the next one
    continues."""
    crash_at, ended = 0, False
    while not ended:
        crash_at, folder = crash_at + 1, MemoryFolder()
        folder.crash_at, ended = crash_at, True
        try:
            journal = opened(folder)
            for _ in range(3):
                journal.wait(journal.write(bytes(300)))
        except Crash:
            ended = False
        left = folder.after_kill()
        journal = opened(left)
        last = journal.write(b"accepted")
        journal.wait(last)
        for seed in range(8):
            lost = left.after_crash(random.Random(seed))
            again = opened(lost)
            assert (again.last, again.lost) == (last, range(0)), (crash_at, seed)
            assert again.read(last)[0] == b"accepted"


def test_an_entry_of_another_file_is_none() -> None:
    """A disk gives a file blocks that another had, and the file's length may be synced first."""
    one, two = MemoryFolder(), MemoryFolder()
    name = files.segment_name(0)
    for folder, count in ((one, 1), (two, 2)):
        journal = opened(folder)
        for number in range(count):
            journal.wait(journal.write(b"%d of %d" % (number, count)))
    begins = two.bytes_of(name).index(b"1 of 2") - ENTRY_BYTES
    one.put(name, one.bytes_of(name) + two.bytes_of(name)[begins:])
    assert opened(one.after_kill()).last == 0


def test_a_header_that_readers_refuse_is_not_written() -> None:
    header = Header(0, "id", "producer", 1, 0, 0, bytes(LARGEST_HEADER), VERSION)
    with pytest.raises(JournalEncodeError):
        files.make_segment(MemoryFolder(), header)


def test_a_full_disk_is_made_empty_by_what_the_log_has() -> None:
    """To let a file go the cursor is written first, and for that there must be room."""
    folder = MemoryFolder()
    journal = opened(folder)
    for _ in range(9):
        journal.wait(journal.write(bytes(300)))
    before, folder.room = journal.size, sum(len(folder.bytes_of(name)) for name in folder.names())
    journal.acknowledge(journal.last)
    journal.drain()
    assert journal.size < before / 2


def test_damage_before_complete_entries_is_no_torn_tail() -> None:
    """With an older mark, as a loss of power leaves it."""
    folder = MemoryFolder()
    journal = opened(folder)
    older = folder.bytes_of(files.ACCEPTED)
    for _ in range(2):
        journal.wait(journal.write(b"accepted"))
    folder.put(files.ACCEPTED, older)
    name = files.segment_name(0)
    data = bytearray(folder.bytes_of(name))
    data[data.index(b"accepted")] ^= 1
    folder.put(name, bytes(data))
    assert opened(folder.after_kill()).lost == range(2)


def test_a_file_with_a_name_is_complete() -> None:
    for seed in range(20):
        folder, cursor = MemoryFolder(), Cursor("id", "producer", 7, 0, 1)
        files.write_cursor(folder, cursor)
        assert files.read_cursor(folder.after_crash(random.Random(seed))) == (cursor, "")


def test_a_note_of_what_was_lost_that_cannot_be_read_is_not_empty() -> None:
    folder = MemoryFolder()
    folder.put(files.LOST, b"x")
    with pytest.raises(JournalReadError):
        opened(folder)


def test_damaged_files_are_found_wherever_the_opening_that_noted_them_died() -> None:
    """Of three files the first is damaged from its first entry on, and all three go to
    quarantine."""
    folder = MemoryFolder()
    journal = opened(folder)
    for number in range(6):
        journal.wait(journal.write(b"%d" % number * 300))
    folder = folder.after_kill()
    name = files.segment_name(0)
    folder.put(name, folder.bytes_of(name).replace(b"0" * 300, bytes(300)))
    crash_at, ended = 0, False
    while not ended:
        crash_at, ended = crash_at + 1, True
        dying = folder.after_kill()
        dying.crash_at = crash_at
        try:
            opened(dying)
        except Crash:
            ended = False
        for seed in range(4):
            left = dying.after_crash(random.Random(seed)) if seed else dying.after_kill()
            quarantine = opened(left).quarantine
            found = dict(quarantine.entries(-1))
            assert found.pop(0) is None, crash_at
            assert {each: bytes(entry[0]) for each, entry in found.items() if entry} == {
                each: b"%d" % each * 300 for each in range(1, 6)
            }, (crash_at, seed)
    assert crash_at > 9


def test_bytes_that_only_memory_had_are_synced_before_the_next_file() -> None:
    """A process that continues the same file syncs it with its next append. Here it begins another
    file."""
    folder = MemoryFolder()
    opened(folder).write(b"not synced")
    left = folder.after_kill()
    journal = opened(left, schema=b"another")
    journal.wait(journal.write(b"accepted"))
    for seed in range(20):
        again = opened(left.after_crash(random.Random(seed)), schema=b"another")
        assert (again.last, again.lost) == (1, range(2, 2))


def test_an_append_that_a_signals_handler_ended_leaves_its_sequence_to_the_next() -> None:
    held = open_journal(MemoryFolder()).segments
    end = held.newest.end
    assert held.append(b"ended and longer", crc32(b"ended and longer")) == 0
    held.newest.end, held._appending = end, True  # as where the handler came before
    assert held.append(b"next", crc32(b"next")) == 0
    assert held.read(0)[0] == b"next"


def test_a_file_that_somebody_removed_is_missed() -> None:
    folder = MemoryFolder()
    journal = opened(folder)
    for _ in range(4):
        journal.wait(journal.write(bytes(300)))
    name = segments(folder)[-1]
    folder.remove(name)
    lost = opened(folder.after_kill()).lost
    assert lost.stop == 4
    assert lost


def test_after_a_failed_sync_a_handle_is_of_no_use() -> None:
    folder = MemoryFolder()
    handle = Handle(folder.create("file"), "file")
    handle.writer.append([b"bytes"])
    folder.faults["sync"] = [errno.EIO]
    for _ in range(2):
        with pytest.raises(JournalSyncError):
            handle.sync()
    with pytest.raises(JournalSyncError):
        handle.writer.append([b"more"])


def test_all_that_may_happen_at_each_step_of_a_short_script(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _check_scripts(0, capsys)


@pytest.mark.slow
def test_a_life_ends_and_then_anything_happens_at_each_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _check_scripts(1, capsys)


def _check_scripts(ends: int, capsys: pytest.CaptureFixture[str]) -> None:
    count = 0
    for count, events in enumerate(scripted(ends), 1):
        Run(count, SCRIPT, Script(events)).run()
    with capsys.disabled():
        print(f"\n  {count:,} scripts")
    assert count >= 200


def accepted(count: int) -> MemoryFolder:
    """Entries, each in a separate segment, that a dead process left."""
    folder = MemoryFolder()
    journal = opened(folder)
    for _ in range(count):
        journal.wait(journal.write(bytes(600)))
    return folder.after_kill()


def unmarked(folder: MemoryFolder) -> MemoryFolder:
    """The folder without its mark and its newest segment."""
    left = folder.after_kill()
    left.remove(files.ACCEPTED)
    left.remove([name for name in left.names() if name.endswith(".wal")][-1])
    return left


def test_an_opening_that_died_anywhere_in_a_new_folder_lost_nothing() -> None:
    crash_at, ended = 0, False
    while not ended:
        folder = MemoryFolder()
        folder.crash_at = crash_at
        crash_at = crash_at + 1
        ended = True
        try:
            opened(folder)
        except Crash:
            ended = False
        for seed in range(8):
            left = folder.after_crash(random.Random(seed)) if seed else folder.after_kill()
            assert not opened(left).lost, (crash_at, seed)


def test_a_flipped_bit_leaves_one_mark() -> None:
    folder = accepted(2)
    sound = folder.bytes_of(files.ACCEPTED)
    for place in range(len(sound)):
        folder.put(files.ACCEPTED, sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        assert files.read_mark(folder) == (1, 1)


def test_the_cursor_of_a_closed_journal_names_its_last_entry() -> None:
    folder = accepted(2)
    opened(folder).close()
    assert opened(unmarked(folder)).lost == range(1, 2)


def test_the_cursor_of_a_reopened_journal_proves_nothing() -> None:
    """The later appends have a separate segment, and the segment before it did not grow."""
    folder = accepted(1)
    opened(folder).close()
    journal = opened(folder)
    journal.wait(journal.write(bytes(600)))
    assert 1 in opened(unmarked(folder)).lost


def test_a_flipped_bit_leaves_one_note_of_the_sender() -> None:
    folder = MemoryFolder()
    sender = Sender("whose", "host:1", 7)
    write_sender(folder, sender)
    sound = folder.bytes_of(SENDER)
    for place in range(len(sound)):
        folder.put(SENDER, sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        assert read_sender(folder) == sender
