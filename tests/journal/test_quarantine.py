"""Quarantine keeps the lost entries of each incident, separate from those of other incidents."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from sparkwal.errors import JournalReadError, OptionError
from sparkwal.journal.files import note_of, segment_name
from tests.journal.disk import MemoryFolder
from tests.journal.stand import OWNER, Run, content, everything, fill, open_journal, segments

NOTE = "lost"


def damaged(folder: MemoryFolder, sequence: int, length: int) -> MemoryFolder:
    """The folder as a dead process left it, with this entry damaged."""
    left = folder.after_kill()
    written = content(sequence, length)
    (name,) = [each for each in segments(left) if written in left.bytes_of(each)]
    left.put(name, left.bytes_of(name).replace(written, bytes(length)))
    return left


def five() -> MemoryFolder:
    """Five entries, the last two of which cannot be sent: damage at 3, of which 4 is intact."""
    folder = MemoryFolder()
    fill(open_journal(folder), [20] * 5)
    left = damaged(folder, 3, 20)
    assert open_journal(left).lost == range(3, 5)
    return left.after_kill()


OTHER = replace(OWNER, producer="another")


def opened_with(folder: MemoryFolder, durable: int) -> MemoryFolder:
    """The folder, and the log has all up to `durable`."""
    open_journal(folder, durable).journal.close()
    return folder


def kept(run: Run) -> dict[int, bytes | None]:
    return {
        sequence: None if found is None else bytes(found[0])
        for sequence, found in run.quarantine.entries(run.journal.last)
    }


def test_a_bit_flips_in_any_byte_of_the_note_of_what_was_lost() -> None:
    folder, rng = five(), random.Random(6)
    for at in range(len(folder.bytes_of(NOTE))):
        left = folder.after_kill()
        data = bytearray(left.bytes_of(NOTE))
        data[at] ^= 1 << rng.randrange(8)
        left.put(NOTE, bytes(data))
        assert open_journal(left).lost == range(3, 5), at


def noted(**changed: object) -> bytes:
    """A note with a right CRC."""
    incident = {"name": segment_name(1), "first": 3, "last": 4, "files": [], "reason": "a test"}
    return 2 * note_of(NOTE, ["log-1", "orders", [{**incident, **changed}]])


@pytest.mark.parametrize(
    "note",
    [
        b"",
        bytes(300),
        b'[4, "log-1", "orders"]',
        b"garbage",
        noted(first=2**63 - 1),
        noted(last=2),
        noted(last=2**63 - 1),
        noted(files=["\0"]),
        noted(name="cursor"),
    ],
    ids=[
        "empty",
        "zeros",
        "without a CRC",
        "garbage",
        "from the last on",
        "backwards",
        "without end",
        "no file",
        "no segment",
    ],
)
def test_a_note_that_cannot_be_read_is_never_taken_for_empty(note: bytes) -> None:
    folder = five()
    folder.put(NOTE, note)
    before = everything(folder)
    for _ in range(2):
        with pytest.raises(JournalReadError, match="/lost cannot be read.*remove lost"):
            open_journal(folder)
        assert everything(folder) == before
    # A user removes it after looking at it.
    folder.remove(NOTE)
    assert not open_journal(folder).lost


def test_a_second_damage_is_not_filled_with_what_the_first_left() -> None:
    """The sequences 3 and 4 were given again, to other rows, and one of these is damaged too."""
    folder = five()
    run = open_journal(folder)
    assert kept(run) == {3: None, 4: content(4, 20)}
    assert fill(run, [31, 32, 33]).keys() == {3, 4, 5}
    run = open_journal(damaged(folder, 4, 32))
    assert run.lost == range(4, 6)
    assert kept(run) == {4: None, 5: content(5, 33)}
    # `lost` has the entries of the second incident only; the first incident is still recorded.
    assert [(each.first, each.last) for each in run.quarantine.incidents] == [(3, 4), (4, 5)]


def test_a_second_damage_leaves_the_entries_of_the_first_incident() -> None:
    folder = MemoryFolder()
    fill(open_journal(folder), [20] * 6)
    folder = damaged(folder, 2, 20)
    run = open_journal(folder)
    fill(run, [40])
    run = open_journal(damaged(folder, 2, 40))
    assert run.lost == range(2, 6)
    assert kept(run) == {2: None, **{each: content(each, 20) for each in (3, 4, 5)}}
    assert run.append(b"again") == 2
    assert list(kept(run)) == [3, 4, 5]
    assert run.quarantine.waiting(5) == []


def test_damage_of_an_older_file_leaves_what_was_lost_of_a_newer_one() -> None:
    """The older one was intact when the newer one went into quarantine."""
    folder = MemoryFolder()
    fill(open_journal(folder), [600] * 4)
    folder = damaged(folder, 2, 600)
    assert open_journal(folder).lost == range(2, 4)
    run = open_journal(damaged(folder, 0, 600))
    assert run.lost == range(4)
    assert kept(run) == {0: None, 1: content(1, 600), 2: None, 3: content(3, 600)}
    assert [(each.first, each.last) for each in run.quarantine.incidents] == [(2, 3), (0, 1)]


def test_an_incident_is_forgotten_once_all_is_appended_again_and_its_files_are_removed() -> None:
    folder = five()
    fill(open_journal(folder), [20] * 2)
    left = folder.after_kill()
    for name in left.names():
        if name.startswith("quarantine/"):
            left.remove(name)
    fill(open_journal(left), [20])
    run = open_journal(damaged(left, 5, 20))
    assert [(each.first, each.last) for each in run.quarantine.incidents] == [(5, 5)]


def test_entries_of_another_journal_that_lay_behind_are_not_taken_for_lost_ones() -> None:
    other = MemoryFolder()
    fill(open_journal(other, owner=replace(OWNER, producer="another")), [50] * 9)
    (theirs,) = segments(other)
    folder = MemoryFolder()
    fill(open_journal(folder), [20] * 5)
    left = damaged(folder, 3, 20)
    left.put(segment_name(7), other.bytes_of(theirs))
    assert kept(open_journal(left)) == {3: None, 4: content(4, 20)}


def test_a_folder_whose_losses_were_not_sent_again_is_refused_to_another_producer() -> None:
    folder = five()
    with pytest.raises(OptionError, match="holds 0 entries and 2 lost to damage of producer 'ord"):
        # The log has all that the folder holds.
        run = open_journal(opened_with(folder, 2), owner=OTHER)
        fill(run, [20] * 3)
        open_journal(damaged(folder, 1, 20), owner=OTHER)
    assert open_journal(folder.after_kill(), 2).lost == range(3, 5)
    run = open_journal(folder, 2)
    fill(run, [30, 31])
    left = opened_with(folder, 4)
    assert fill(open_journal(left, owner=OTHER), [20]).keys() == {0}
