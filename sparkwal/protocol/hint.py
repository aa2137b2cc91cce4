"""What the planner remembers between microbatches, on the driver's own disk (PROTOCOL §6)."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sparkwal import events
from sparkwal.errors import FencedError, InvalidLogError, OptionError
from sparkwal.format.checked import Whole, parse, plain, prepare, read, to_json
from sparkwal.protocol.leadership import Leadership

_VERSION = 6
# How many ended runs a session remembers at least. A run of a query is noted once.
_MOST_ENDED = 1000


@dataclass(frozen=True)
class Put:
    """Duration and retries of a record's PUT. The leader's next record reports them."""

    put_ms: float
    retries: Whole


@dataclass(frozen=True)
class Hint:
    """The leadership after the last plan, and whether that plan was committed.

    Attributes:
        planned: the plan that owns `leadership.next_position`; None if it was committed.
        run_id: of the query's run that last committed a record or looked at the log.
        goes_on: the run whose microbatch was done last, with or without rows.
        looked_ms: when the log was last looked at, on the boot-time clock.
        boot_ms: when the hint was written, on the same clock.
        last_put: of the leader's last record, if no record reports it yet.
    """

    leadership: Leadership
    planned: str | None
    run_id: str
    goes_on: str
    looked_ms: Whole
    boot_ms: Whole
    boot_id: str
    last_put: Put | None = None


@dataclass(frozen=True)
class FencingNote:
    """What a leader leaves in place of the hints of the leaders that it fenced on its machine:
    `run_id` is the fenced run, "" if unknown, None until the planned microbatch is committed."""

    leader_id: str
    host: str
    position: Whole
    term: Whole
    timestamp_ms: Whole
    run_id: str | None = ""

    def over(self, before: Hint | FencingNote | None) -> FencingNote:
        """This note, with the fenced run taken from what it replaces."""
        if isinstance(before, Hint):
            return replace(self, run_id=before.goes_on if before.planned is None else None)
        return replace(self, run_id=before.run_id) if before else self


prepare(Hint, FencingNote)


class Hints:
    """Hints of one user on this machine for one log (`LogStore.identity`): a file for each leader.

    The folder is private (0700) and checked to be so: a file that another user could plant or
    redirect is not read. `ended` is the file of `note_ended`, if there is one.
    """

    def __init__(self, log: str, folder: Path | None = None, ended: Path | None = None) -> None:
        self._log, self._ended = short_hash(log), ended
        try:
            self.folder = folder or Path(tempfile.gettempdir()) / f"sparkwal-{os.getuid()}"
        except FileNotFoundError as error:
            raise OptionError(
                f"this machine has no temporary folder that can be written ({error.strerror}): set "
                "TMPDIR to one for the driver and its Python workers. Nothing was written"
            ) from None

    def _file(self, leader_id: str) -> Path:
        return self.folder / f"{self._log}-{short_hash(leader_id)}.json"

    def load(self, leader_id: str) -> Hint | FencingNote | None:
        """This leader's last hint, or the note of who fenced it; None if neither can be trusted."""
        found = self._read(self._file(leader_id))
        if isinstance(found, Hint) and found.leadership.leader_id != leader_id:
            return None
        return found

    def _read(self, file: Path) -> Hint | FencingNote | None:
        try:
            if not self._private():
                return None
            document = parse(file.read_bytes(), str(file), "hint")
            if document.get("version") != _VERSION:
                return None
            kind: type[Hint | FencingNote] = Hint if "planned" in document else FencingNote
            return read(kind, document, str(file))
        except (OSError, InvalidLogError):
            return None

    def save(self, leader_id: str, kept: Hint | FencingNote) -> bool:
        """Replace this leader's hint or note as a whole. False if the disk refused it."""
        return self._write(self._file(leader_id), kept)

    def _write(self, file: Path, kept: Hint | FencingNote) -> bool:
        text = to_json({"version": _VERSION, **plain(kept)})
        # Each process has a draft of its own name, and writes one at a time.
        draft = file.with_suffix(f".{os.getpid()}")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._private():
                raise PermissionError(f"{self.folder} is open to other users")
            draft.write_bytes(text)
            # Unlink first: a replacing rename waits for ext4. A crash between: a cold start.
            file.unlink(missing_ok=True)
            os.replace(draft, file)
        except OSError as error:
            # By the old hint this leader would claim a slot that it filled, and fence itself.
            for left in (draft, file):
                with suppress(OSError):
                    left.unlink(missing_ok=True)
            events.emit(events.HintNotSaved(folder=str(self.folder), reason=str(error)))
            return False
        return True

    def forget(self, leader_id: str) -> None:
        """Remove this leader's hint or note: its next plan starts cold."""
        with suppress(OSError):
            self._file(leader_id).unlink(missing_ok=True)

    @contextmanager
    def forgotten_when_fenced(self, leader_id: str) -> Iterator[None]:
        """Forget the hint after a FencedError: the next start must take the log over."""
        try:
            yield
        except FencedError:
            self.forget(leader_id)
            raise

    def fence_others(self, note: FencingNote) -> None:
        """Leave a leader's note to the log's other leaders on this machine. Without it, a leader
        that slept would start cold and take the log back silently."""
        with suppress(OSError):
            for file in self.folder.glob(f"{self._log}-*.json"):
                if file != self._file(note.leader_id):
                    self._write(file, note.over(self._read(file)))

    def has_ended(self, run_id: str) -> bool:
        """Whether this run of a query is known to have ended."""
        try:
            return self._ended is not None and run_id in self._ended.read_text().splitlines()
        except OSError:
            return False

    def _private(self) -> bool:
        status = os.lstat(self.folder)
        return (
            stat.S_ISDIR(status.st_mode)
            and status.st_uid == os.getuid()
            and not status.st_mode & 0o077
        )


def note_ended(file: Path, run_id: str) -> None:
    """Note that a run of a query has ended, for `Hints.has_ended`; one thread at a time."""
    try:
        known = file.read_text().splitlines()
    except FileNotFoundError:
        known = []
    draft = file.with_suffix(".draft")
    draft.write_text("\n".join([*known[-_MOST_ENDED:], run_id]))
    os.replace(draft, file)


def short_hash(text: str) -> str:
    """A file name for any text."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]
