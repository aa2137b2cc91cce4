"""The planner's notes between microbatches, on the driver's own disk (PROTOCOL §6).

Each leader of a log has one hint, in one of three states:

    planned → committed → planned …     the leader's own plans and commits
    any → fenced                        another leader of this machine took the log over
"""

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
from sparkwal.errors import FencedError, InvalidLogError, NewerFormatError, OptionError
from sparkwal.format import versions
from sparkwal.format.checked import Whole, parse, plain, prepare, read, to_json
from sparkwal.protocol.leadership import Leadership

# A session's file keeps this many ended runs before the newest one. Each run is noted once.
_MAX_ENDED = 1000


@dataclass(frozen=True)
class Put:
    """Duration and retries of a record's PUT. The leader's next record reports them."""

    put_ms: float
    retries: Whole


@dataclass(frozen=True)
class Planned:
    """The leader's last plan is not committed. Its tasks may still run, so its window is taken."""

    leader_id: str
    plan_id: str


@dataclass(frozen=True)
class Committed:
    """The leader's last plan is committed, with or without rows.

    Attributes:
        leadership: the leadership after that plan.
        checked_by: the query's run that last committed a record or looked at the log.
        last_run_id: the query's run whose microbatch was committed last.
        looked_ms: the time of the last look at the log, on the boot-time clock.
        boot_ms, boot_id: the time of this hint, on the same clock.
        last_put: the PUT of the leader's last record, if no record reports it yet.
    """

    leadership: Leadership
    checked_by: str
    last_run_id: str
    looked_ms: Whole
    boot_ms: Whole
    boot_id: str
    last_put: Put | None = None


@dataclass(frozen=True)
class LeaderNote:
    """A leader, as errors name it: `position`, `term` and `timestamp_ms` are its last record's."""

    leader_id: str
    host: str
    position: Whole
    term: Whole
    timestamp_ms: Whole


@dataclass(frozen=True)
class Fenced:
    """Another leader of this machine took the log over.

    Attributes:
        by: that leader.
        run_id: the fenced run of the query; None if it is unknown.
        is_pending: the fenced leader had a plan that was not committed. The run that tries to
            commit it is the fenced one.
    """

    by: LeaderNote
    run_id: str | None = None
    is_pending: bool = False


Hint = Planned | Committed | Fenced

_STATES: dict[str, type[Hint]] = {"planned": Planned, "committed": Committed, "fenced": Fenced}
_NAMES = {kind: name for name, kind in _STATES.items()}

prepare(Planned, Committed, Fenced)


def fence(hint: Hint | None, by: LeaderNote) -> Fenced:
    """The hint of a leader after `by` has fenced it."""
    match hint:
        case Planned():
            return Fenced(by, is_pending=True)
        case Committed():
            return Fenced(by, hint.last_run_id)
        case Fenced():
            return replace(hint, by=by)
        case None:
            return Fenced(by)


class Hints:
    """The hints of one user on this machine for one log (`LogStore.identity`), a file each.

    The folder is private (0700), and each use checks that: a file that another user could plant or
    redirect is not read.

    Args:
        log: the log's identity.
        folder: replaces the folder of this user in the temporary folder, in tests.
        ended: the file of `note_ended`. Without it no run has certainly ended.
    """

    def __init__(self, log: str, folder: Path | None = None, ended: Path | None = None) -> None:
        self._log = short_hash(log)
        self._ended = ended
        try:
            self.folder = folder or Path(tempfile.gettempdir()) / f"sparkwal-{os.getuid()}"
        except FileNotFoundError as error:
            raise OptionError(
                f"this machine has no temporary folder that can be written ({error.strerror}): set "
                "TMPDIR to one for the driver and its Python workers. sparkwal wrote nothing"
            ) from None

    def _file(self, leader_id: str) -> Path:
        return self.folder / f"{self._log}-{short_hash(leader_id)}.json"

    def load(self, leader_id: str) -> Hint | None:
        """This leader's hint, or None if it is missing or cannot be trusted.

        Raises:
            NewerFormatError: a newer version wrote it; it may be the note of a takeover.
        """
        hint = self._read(self._file(leader_id))
        match hint:
            case Planned():
                return hint if hint.leader_id == leader_id else None
            case Committed():
                return hint if hint.leadership.leader_id == leader_id else None
        return hint

    def _read(self, file: Path) -> Hint | None:
        try:
            if not self._private():
                return None
            document = parse(file.read_bytes(), str(file), versions.NOTE)
            version = document.get("version")
            versions.check(versions.HINT, version, str(file))
            kind = _STATES.get(str(document.get("state")))
            if version != versions.VERSIONS[versions.HINT] or kind is None:
                return None
            return read(kind, document, str(file))
        except NewerFormatError:
            raise
        except (OSError, InvalidLogError):
            return None

    def save(self, leader_id: str, hint: Hint) -> bool:
        """Replace this leader's hint atomically. False if the disk refused a write."""
        return self._write(self._file(leader_id), hint)

    def _write(self, file: Path, hint: Hint) -> bool:
        version = versions.VERSIONS[versions.HINT]
        state = {"version": version, "state": _NAMES[type(hint)], **plain(hint)}
        text = to_json(versions.NOTE, state)
        # No other process writes this draft, and this one writes one at a time.
        draft = file.with_suffix(f".{os.getpid()}")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._private():
                raise PermissionError(f"{self.folder} is open to other users")
            draft.write_bytes(text)
            # Unlink first: on ext4 a rename that replaces a file waits for the disk. After a crash
            # between the two calls the next plan starts cold.
            file.unlink(missing_ok=True)
            os.replace(draft, file)
        except OSError as error:
            # Remove the old hint too: with it this leader would claim a slot that it has filled
            # itself, and would be fenced.
            for leftover in (draft, file):
                with suppress(OSError):
                    leftover.unlink(missing_ok=True)
            events.emit(events.HintNotSaved(folder=str(self.folder), reason=str(error)))
            return False
        return True

    def forget(self, leader_id: str) -> None:
        """Remove this leader's hint: its next plan starts cold."""
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

    def fence_others(self, by: LeaderNote) -> None:
        """Set the hints of the log's other leaders on this machine to fenced.

        Without this, a leader that slept would start cold and take the log back silently.
        """
        with suppress(OSError):
            for file in self.folder.glob(f"{self._log}-*.json"):
                if file != self._file(by.leader_id):
                    self._write(file, fence(self._fenced(file), by))

    def _fenced(self, file: Path) -> Hint | None:
        """The hint of a leader that is fenced. Of a newer one only the takeover is noted."""
        with suppress(NewerFormatError):
            return self._read(file)
        return None

    def has_ended(self, run_id: str | None) -> bool:
        """Whether this run of a query has certainly ended."""
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
    """Note for `Hints.has_ended` that a run of a query has ended. One thread at a time."""
    try:
        ended = file.read_text().splitlines()
    except FileNotFoundError:
        ended = []
    draft = file.with_suffix(".draft")
    draft.write_text("\n".join([*ended[-_MAX_ENDED:], run_id]))
    os.replace(draft, file)


def short_hash(text: str) -> str:
    """A file name for any text."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]
