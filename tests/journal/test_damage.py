"""A journal that was damaged at rest: no acknowledged entry is cut off, and lost ones are named."""

from __future__ import annotations

import json
import random
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from sparkwal.errors import JournalEncodeError, JournalReadError, NewerFormatError, OptionError
from sparkwal.journal import segment
from sparkwal.journal.disk import DiskFolder
from sparkwal.journal.files import make_segment, segment_name
from sparkwal.journal.segment import Scan, read_header
from sparkwal.journal.storage import blocks
from tests.journal.disk import MemoryFolder
from tests.journal.stand import (
    OWNER,
    SMALL,
    Run,
    content,
    data,
    everything,
    fill,
    open_journal,
    segments,
)

LENGTHS = [40, 0, 77, 5, 120, 8, 60, 33]
TINY = replace(SMALL, segment_bytes=400)


def small_journal(closed: bool) -> tuple[MemoryFolder, dict[int, bytes]]:
    """Several segments; closed, or as a killed process leaves it."""
    folder = MemoryFolder()
    run = open_journal(folder, settings=TINY)
    written = fill(run, LENGTHS)
    assert len(segments(folder)) >= 3
    if closed:
        run.journal.close()
    return folder.after_kill(), written


def places(folder: MemoryFolder, name: str) -> list[tuple[int, int, int]]:
    """(sequence, where it begins, where its content ends) of a segment's entries."""
    reader = folder.read(name)
    header, begin = read_header(reader)
    entries = []
    for sequence, body in Scan(reader, begin, header):
        entries.append((sequence, begin, begin + segment.ENTRY_BYTES + len(body)))
        begin += segment.entry_size(len(body))
    return entries


def settles(folder: MemoryFolder, run: Run, before: int = -1) -> None:
    """Appends continue, and the next opening emits no warning."""
    entries = run.entries(before)
    last = run.journal.last
    assert list(entries) == list(range(before + 1, last + 1))
    # Lost entries are reported until they are resent.
    for sequence in range(last + 1, last + 3 + len(run.lost)):
        entries[sequence] = content(sequence, 50)
        assert run.append(entries[sequence]) == sequence
    for left in (folder.after_kill(), folder):
        if left is folder:
            run.journal.close()
        again = open_journal(left, before, TINY)
        assert again.warnings() == [] and not again.lost
        assert again.entries(before) == entries


def flip(folder: MemoryFolder, name: str, at: int, bit: int) -> MemoryFolder:
    left = folder.after_kill()
    hurt = bytearray(left.bytes_of(name))
    hurt[at] ^= 1 << bit
    left.put(name, bytes(hurt))
    return left


@pytest.mark.proves("content-crc")
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_a_flipped_bit_in_a_segment_quarantines_it_and_reports_its_entries(closed: bool) -> None:
    folder, written = small_journal(closed)
    names = segments(folder)
    newest, flips = max(written), 0
    rng = random.Random(7)
    for index, name in enumerate(names):
        entries = places(folder, name)
        size = len(folder.bytes_of(name))
        reader = folder.read(name)
        header, begin = read_header(reader)
        document = struct.unpack_from("<8sII", folder.bytes_of(name))[1] + 16
        for at in range(size):
            left = flip(folder, name, at, rng.randrange(8))
            hurt = left.bytes_of(name)
            run = open_journal(left, settings=TINY)
            flips += 1
            if at < document:
                first = header.first
            else:
                # Between entries are zeros, which no reader uses.
                hit = [sequence for sequence, low, high in entries if low <= at < high]
                if not hit:
                    assert run.warnings() == [] and not run.lost
                    assert run.entries() == written
                    continue
                first = hit[0]
            state = f"{name}, byte {at} of {size}"
            assert run.lost == range(first, newest + 1), state
            stopped, aside = run.only("replay_stopped"), run.only("quarantined")
            assert "tail_truncated" not in run.names(), state
            assert (stopped.file, stopped.sequence) == (name, first), state
            # The head of the damaged file is as good as gone, and its entries are found still.
            is_entry = at >= document
            assert stopped.complete == newest - first + (not is_entry), state
            if first <= newest:
                assert (aside.first, aside.last) == (first, newest), state
            else:
                assert (aside.first, aside.last) == (-1, -1), state
            assert aside.files.split(", ") == names[index:], state
            assert left.bytes_of(f"quarantine/{name}") == hurt, state
            for later in names[index + 1 :]:
                assert left.bytes_of(f"quarantine/{later}") == folder.bytes_of(later), state
            assert run.entries() == {k: v for k, v in written.items() if k < first}, state
            settles(left, run)
    print(f"{flips} flips")


def test_a_flipped_bit_in_the_header_of_an_empty_segment_loses_nothing() -> None:
    folder = MemoryFolder()
    run = open_journal(folder, settings=TINY)
    written = fill(run, [100])
    run.journal.close()
    # Another schema begins a new segment.
    owner = replace(OWNER, schema=b"another schema")
    open_journal(folder, settings=TINY, owner=owner).journal.close()
    name = segments(folder)[-1]
    assert places(folder, name) == []
    for at in range(len(folder.bytes_of(name))):
        left = flip(folder, name, at, 3)
        run = open_journal(left, settings=TINY, owner=owner)
        assert run.lost == range(0), "nothing was in it"
        assert run.entries() == written


@pytest.mark.parametrize("file", ["cursor", "accepted"])
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_a_flipped_bit_in_a_note_loses_no_entry(file: str, closed: bool) -> None:
    folder, written = small_journal(closed)
    if file == "cursor" and not closed:
        pytest.skip("there is none")
    for at in range(len(folder.bytes_of(file))):
        for bit in range(8):
            left = flip(folder, file, at, bit)
            run = open_journal(left, settings=TINY)
            named = ["cursor_rejected"] if file == "cursor" else []
            assert [event.name for event in run.warnings()] == named
            assert (run.entries(), run.lost) == (written, range(0))
            run.journal.close()
            assert open_journal(left, settings=TINY).warnings() == []


@pytest.mark.proves("accepted-not-torn")
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_an_entry_that_was_acknowledged_is_not_cut_off_as_torn(closed: bool) -> None:
    folder, written = small_journal(closed)
    name = segments(folder)[-1]
    sequence, begin, end = places(folder, name)[-1]
    intact = folder.bytes_of(name)
    for size in range(begin, len(intact)):
        left = folder.after_kill()
        left.put(name, intact[:size])
        run = open_journal(left, settings=TINY)
        assert "tail_truncated" not in run.names(), size
        assert run.lost == range(sequence, sequence + 1), size
        assert left.bytes_of(f"quarantine/{name}") == intact[:size]
        settles(left, run)


def test_a_missing_newest_segment_is_reported_with_its_entries() -> None:
    folder, written = small_journal(closed=True)
    name = segments(folder)[-1]
    first = places(folder, name)[0][0]
    folder.remove(name)
    run = open_journal(folder, settings=TINY)
    assert run.lost == range(first, max(written) + 1)
    assert run.only("replay_stopped").file == name
    assert run.only("quarantined").files == ""
    settles(folder, run)


def test_a_journal_without_any_segment_reports_its_entries() -> None:
    folder, written = small_journal(closed=True)
    for name in segments(folder):
        folder.remove(name)
    run = open_journal(folder, settings=TINY)
    assert run.lost == range(max(written) + 1)
    settles(folder, run)


def test_the_next_opening_keeps_entries_that_an_opening_reported_as_accepted() -> None:
    folder = MemoryFolder()
    run = open_journal(folder)
    fill(run, [100])
    run.journal.write(content(1, 100))  # no wait: not acknowledged, yet on the disk
    left = folder.after_kill()
    assert open_journal(left).journal.last == 1
    left = left.after_kill()
    (name,) = segments(left)
    hurt = bytearray(left.bytes_of(name))
    hurt[-10] ^= 1
    left.put(name, bytes(hurt))
    run = open_journal(left)
    assert "tail_truncated" not in run.names()
    assert run.lost == range(1, 2)


def test_a_torn_entry_before_an_intact_one_is_reported_as_lost() -> None:
    folder = MemoryFolder()
    run = open_journal(folder)
    written = fill(run, [100])
    for sequence in (1, 2, 3):
        run.journal.write(content(sequence, 100))
    left = folder.after_kill()
    (name,) = segments(left)
    hurt = bytearray(left.bytes_of(name))
    at = hurt.index(content(1, 100))
    hurt[at : at + 60] = bytes(60)
    left.put(name, bytes(hurt))
    run = open_journal(left)
    # A false alarm by the rule: none of them was reported as accepted.
    assert run.lost == range(1, 4)
    assert run.only("replay_stopped").complete == 2
    assert run.entries() == written
    assert left.bytes_of(f"quarantine/{name}") == hurt


def test_entries_that_the_log_has_are_not_reported_as_lost() -> None:
    folder, written = small_journal(closed=True)
    name = segments(folder)[1]
    at = places(folder, name)[0][1]
    run = open_journal(flip(folder, name, at, 0), 5, TINY)
    assert run.lost == range(6, max(written) + 1)
    assert run.journal.last == 5
    run = open_journal(flip(folder, name, at, 0), max(written), TINY)
    assert not run.lost
    assert run.only("quarantined").first == -1


def test_a_file_that_is_quarantined_twice_keeps_both_copies() -> None:
    folder, _ = small_journal(closed=True)
    name = segments(folder)[0]
    hurt = flip(folder, name, 3, 1)
    copy = hurt.bytes_of(name)
    open_journal(hurt, settings=TINY).journal.close()
    hurt.put(name, copy + b"another")
    hurt.remove("cursor")  # which knows that it came back
    open_journal(hurt, settings=TINY).journal.close()
    assert hurt.bytes_of(f"quarantine/{name}") == copy
    assert hurt.bytes_of(f"quarantine/{name}.1") == copy + b"another"


# Files that are none.


@pytest.mark.parametrize("length", [0, 1, 7, 16, 100, 5000])
@pytest.mark.parametrize("side", ["before", "after"])
def test_a_file_of_garbage_with_a_segments_name_is_quarantined(length: int, side: str) -> None:
    folder, written = small_journal(closed=True)
    number = 99 if side == "after" else 0
    name = segment_name(number)
    garbage = random.Random(length).randbytes(length)
    folder.put(name, garbage)
    run = open_journal(folder, settings=TINY)
    assert folder.bytes_of(f"quarantine/{name}") == garbage
    if side == "after":
        assert run.entries() == written
        assert not run.lost
    else:
        assert run.lost == range(max(written) + 1)
    settles(folder, run)


def test_files_that_are_no_journals_are_left_alone() -> None:
    folder, written = small_journal(closed=True)
    strange = {
        "notes.txt": b"mine",
        "notes.tmp": b"mine, and not finished",
        "3.wal": b"too short a name",
        "99999999999999999999.wal": b"beyond all that are counted",
        "00000000000000000001.wal.bak": folder.bytes_of(segments(folder)[1]),
        "quarantine/kept.tmp": b"mine",
    }
    for name, body in strange.items():
        folder.put(name, body)
    run = open_journal(folder, settings=TINY)
    assert run.warnings() == [] and run.entries() == written
    fill(run, [300, 300])
    assert all(len(name) == 24 for name in segments(folder) if name not in strange)
    run.journal.close()
    assert {name: folder.bytes_of(name) for name in strange} == strange


def test_a_copy_of_a_segment_under_another_name_is_quarantined() -> None:
    folder, written = small_journal(closed=True)
    body = folder.bytes_of(segments(folder)[0])
    name = segment_name(50)
    folder.put(name, body)
    run = open_journal(folder, settings=TINY)
    assert run.entries() == written and not run.lost
    assert "its header names segment 0" in run.only("replay_stopped").reason
    assert folder.bytes_of(f"quarantine/{name}") == body
    settles(folder, run)


def test_a_removed_segment_that_a_backup_restores_is_removed_again() -> None:
    folder = MemoryFolder()
    run = open_journal(folder, settings=TINY)
    written = fill(run, LENGTHS)
    name = segments(folder)[0]
    body = folder.bytes_of(name)
    run.journal.acknowledge(4)
    run.journal.drain()
    run.journal.close()
    assert name not in folder.names()
    folder.put(name, body)
    run = open_journal(folder, 4, TINY)
    assert run.warnings() == []
    assert run.entries(4) == {k: v for k, v in written.items() if k > 4}
    assert name not in folder.names()
    settles(folder, run, 4)


def test_a_missing_segment_in_the_middle_is_reported_with_all_later_entries() -> None:
    folder, written = small_journal(closed=True)
    names = segments(folder)
    first = places(folder, names[1])[0][0]
    later_entries = sum(len(places(folder, name)) for name in names[2:])
    folder.remove(names[1])
    run = open_journal(folder, settings=TINY)
    assert run.lost == range(first, max(written) + 1)
    assert run.only("replay_stopped").complete == later_entries
    settles(folder, run)


def test_a_segment_of_another_journal_at_the_end_is_quarantined() -> None:
    folder, written = small_journal(closed=True)
    other = MemoryFolder()
    run = open_journal(other, 5000, owner=replace(OWNER, producer="other"))
    fill(run, [10, 20])
    run.journal.close()
    reader = other.read(segments(other)[0])
    header, begin = read_header(reader)
    entries = blocks(reader, begin, reader.size)
    make_segment(folder, replace(header, id=60, first=max(written) + 1), entries)
    run = open_journal(folder, settings=TINY)
    assert not run.lost and run.entries() == written
    assert "of another log or producer" in run.only("replay_stopped").reason
    settles(folder, run)


def test_an_older_copy_of_the_folder_continues_after_the_logs_last_entry() -> None:
    folder = MemoryFolder()
    run = open_journal(folder, settings=TINY)
    fill(run, LENGTHS)
    copy = folder.after_kill()
    fill(run, [50] * 6)
    # The log has more entries than this copy: its appends continue after those.
    run = open_journal(copy, 11, TINY)
    assert run.warnings() == [] and not run.lost
    assert (run.journal.last, run.entries(11)) == (11, {})
    settles(copy, run, 11)


def test_a_huge_length_in_an_entry_allocates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, written = small_journal(closed=True)
    name = segments(folder)[-1]
    reader = folder.read(name)
    header, _ = read_header(reader)
    checked = struct.pack("<QII", max(written) + 1, 2**32 - 1, 0)
    crc = zlib.crc32(checked, header.salt)
    head = b"\x89wJe" + crc.to_bytes(4, "little") + checked
    folder.put(name, folder.bytes_of(name) + head + bytes(64))
    asked = []
    read_at = type(reader).read_at
    monkeypatch.setattr(
        type(reader), "read_at", lambda *args: asked.append(args[2]) or read_at(*args)
    )
    run = open_journal(folder, settings=TINY)
    assert max(asked) <= 16 * 2**20
    assert run.entries() == written
    assert not [sequence for sequence in run.lost if sequence <= max(written)]


def test_a_header_of_two_gigabytes_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, written = small_journal(closed=True)
    name = segments(folder)[-1]
    first = places(folder, name)[0][0]
    body = folder.bytes_of(name)
    folder.put(name, body[:8] + (2**31).to_bytes(4, "little") + body[12:])
    asked = []
    reader = type(folder.read(name))
    read_at = reader.read_at
    monkeypatch.setattr(reader, "read_at", lambda *args: asked.append(args[2]) or read_at(*args))
    run = open_journal(folder, settings=TINY)
    assert max(asked) <= 16 * 2**20
    assert run.lost == range(first, max(written) + 1)
    assert "a header of 2147483648 bytes" in run.only("replay_stopped").reason


def test_a_schema_that_no_header_holds_is_refused_when_it_is_written() -> None:
    folder = MemoryFolder()
    with pytest.raises(JournalEncodeError, match="bytes; 16777216 are read"):
        open_journal(folder, owner=replace(OWNER, schema=bytes(13 * 2**20)))
    assert segments(folder) == []


def with_version(folder: MemoryFolder, version: dict[str, int]) -> None:
    """Give the last segment of a journal another version, or none."""
    name = segments(folder)[-1]
    body = folder.bytes_of(name)
    _, length, _ = struct.unpack_from("<8sII", body)
    plain = json.loads(body[16 : 16 + length])
    del plain["version"]
    document = json.dumps(plain | version).encode()
    head = struct.pack("<8sII", b"SWJRNL1\n", len(document), zlib.crc32(document))
    folder.put(name, head + document + body[16 + length :])


def test_a_segment_without_a_version_stops_the_replay() -> None:
    folder, _ = small_journal(closed=True)
    with_version(folder, {})
    run = open_journal(folder, settings=TINY)
    assert "its header is not readable" in run.only("replay_stopped").reason


def test_a_segment_of_a_newer_version_is_not_taken_for_damage() -> None:
    folder, _ = small_journal(closed=True)
    with_version(folder, {"version": 2})
    before = {name: folder.bytes_of(name) for name in folder.names()}
    with pytest.raises(NewerFormatError, match=r"format 2, and .* reads up to 1: .*Upgrade"):
        open_journal(folder, settings=TINY)
    assert {name: folder.bytes_of(name) for name in folder.names()} == before


@pytest.mark.parametrize("name", [segment_name(0), segment_name(7), "cursor", "accepted"])
def test_a_folder_in_place_of_a_file_raises_until_it_is_removed(tmp_path: Path, name: str) -> None:
    folder = DiskFolder(tmp_path)
    (tmp_path / name).mkdir()
    with pytest.raises(JournalReadError, match=name):
        open_journal(folder)
    (tmp_path / name).rmdir()
    run = open_journal(folder)
    fill(run, [100])
    run.journal.close()


@pytest.mark.parametrize("name", ["lock", "quarantine"])
def test_a_lock_or_quarantine_of_the_wrong_kind_is_refused(tmp_path: Path, name: str) -> None:
    if name == "lock":
        (tmp_path / "quarantine").mkdir()
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(OptionError, match="cannot be used"):
        DiskFolder(tmp_path)


def test_a_journal_opens_with_segments_smaller_than_its_entries() -> None:
    folder = MemoryFolder()
    run = open_journal(folder)
    written = fill(run, [900, 10])
    run.journal.close()
    run = open_journal(folder, settings=TINY)
    assert run.warnings() == [] and not run.lost
    assert run.entries() == written
    settles(folder, run)


def test_an_opening_that_fails_changes_nothing() -> None:
    folder, _ = small_journal(closed=True)
    hurt = flip(folder, segments(folder)[1], 3, 1)
    before = everything(hurt)
    with pytest.raises(OptionError, match="another path"):
        open_journal(hurt, owner=replace(OWNER, log_id="log-2"))
    assert everything(hurt) == before
    assert data(hurt, "cursor") == before["cursor"]
