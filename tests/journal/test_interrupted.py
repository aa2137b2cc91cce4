"""A signal's handler that raises in the middle of an append, and what a restart reports."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from sparkwal.errors import JournalSyncError, OptionError
from sparkwal.journal import files
from sparkwal.journal import open_segments as appending
from sparkwal.journal.disk import DiskFolder
from tests.journal.disk import MemoryFolder
from tests.journal.stand import fill, open_journal, segments


class Interrupted(BaseException):
    """The error that a signal's handler raises."""


def once(real: Any, *, before: bool) -> Any:
    """`real`, but its first call is interrupted, before it or after."""
    calls = []

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 1 and before:
            raise Interrupted
        found = real(*args, **kwargs)
        if len(calls) == 1:
            raise Interrupted
        return found

    return call


@pytest.mark.parametrize("before", [True, False])
def test_an_append_that_was_interrupted_leaves_its_sequence_to_the_next(
    monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    folder = MemoryFolder()
    run = open_journal(folder)
    written = fill(run, [40])
    with monkeypatch.context() as patched:
        patched.setattr(appending, "entry", once(appending.entry, before=before))
        with pytest.raises(Interrupted):
            run.append(b"x" * 100)
    written |= fill(run, [8, 40, 40])
    assert list(written) == [0, 1, 2, 3]
    again = open_journal(folder.after_kill())
    assert again.entries() == written and again.warnings() == []


@pytest.mark.parametrize("before", [True, False])
def test_a_rotation_that_was_interrupted_leaves_no_segment_between(
    monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    folder = MemoryFolder()
    run = open_journal(folder)
    written = fill(run, [300])
    with monkeypatch.context() as patched:
        made = once(files.make_segment, before=before)
        patched.setattr(files, "make_segment", made)
        with pytest.raises(Interrupted):
            run.append(bytes(900))
    written |= fill(run, [8, 600, 600])
    again = open_journal(folder.after_kill())
    assert again.entries() == written and again.warnings() == []


def test_an_error_of_a_handler_in_a_sync_is_no_failure_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_journal(DiskFolder(tmp_path / "j"))
    sequence = run.journal.write(b"x")

    def interrupts(file: int) -> None:
        raise OptionError("from a handler")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", interrupts)
        with pytest.raises(OptionError, match="from a handler"):
            run.journal.wait(sequence)
    run.journal.wait(sequence)
    assert run.journal.accepted == sequence and run.journal.failure is None
    run.journal.close()


def damaged() -> tuple[MemoryFolder, dict[int, bytes]]:
    """A journal with five entries of which the last two are unreadable."""
    folder = MemoryFolder()
    written = fill(open_journal(folder), [20] * 5)
    folder = folder.after_kill()
    (name,) = segments(folder)
    data = folder.bytes_of(name)
    folder.put(name, data.replace(written[3], bytes(20)))
    return folder, written


def test_lost_entries_are_reported_until_they_are_resent() -> None:
    folder, written = damaged()
    assert open_journal(folder).lost == range(3, 5)
    # The process that got the report has died.
    folder = folder.after_kill()
    run = open_journal(folder)
    assert run.lost == range(3, 5) and run.warnings() == []
    assert run.append(written[3]) == 3
    folder = folder.after_kill()
    run = open_journal(folder)
    assert run.lost == range(4, 5)
    assert run.append(written[4]) == 4
    run = open_journal(folder.after_kill())
    assert not run.lost and run.entries() == written


def test_lost_entries_are_reported_after_an_opening_that_failed() -> None:
    folder, _ = damaged()
    for calls in range(1, 60):
        there = folder.after_kill()
        there.crash_at = calls
        try:
            open_journal(there)
        except BaseException:
            assert open_journal(there.after_kill()).lost == range(3, 5), calls
        else:
            break
    else:
        pytest.fail("the opening never ended")


def test_without_the_first_segment_no_later_entry_is_sent() -> None:
    folder = MemoryFolder()
    written = fill(open_journal(folder), [600] * 4)
    folder = folder.after_kill()
    folder.remove(segments(folder)[0])
    run = open_journal(folder)
    assert run.lost == range(4) and run.entries() == {}
    assert "quarantined" in run.names()
    assert fill(run, [600]) == {0: written[0]}


def test_a_folder_that_is_removed_while_it_is_open_stops_the_journal(tmp_path: Path) -> None:
    run = open_journal(DiskFolder(tmp_path / "j"))
    fill(run, [10])
    shutil.rmtree(tmp_path / "j")
    with pytest.raises(JournalSyncError, match="removed"):
        run.append(b"x")
