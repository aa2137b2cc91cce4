"""What the planner remembers between microbatches, on the driver's own disk.

A hint saves the LIST and the GET of a cold start. It is only a hint: every
claim is a conditional PUT, so a wrong one ends in a refusal, never in a wrong
log. Missing, unreadable, stale or from another boot: cold start.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwal import events
from sparkwal.protocol.clock import Clock
from sparkwal.protocol.leadership import Leadership

_VERSION = 1


@dataclass(frozen=True)
class Hint:
    """The leadership after the last plan, and whether that plan was committed.

    Attributes:
        planned: the plan that owns `leadership.next_position`, or None when the
            last plan was committed (then that position is free).
        boot_ms: when it was written, on the boot-time clock.
    """

    leadership: Leadership
    planned: str | None
    boot_ms: int
    boot_id: str


class Hints:
    """Hints of one user on this machine for one log, one file for each leader.

    Args:
        log: what the log is called on this machine, such as its path.

    The folder is private (0700) and checked to be so: a file that another user
    could plant or redirect is not read.
    """

    def __init__(self, log: str, folder: Path | None = None) -> None:
        self._log = _short_hash(log)
        self.folder = folder or Path(tempfile.gettempdir()) / f"sparkwal-{os.getuid()}"

    def _file(self, leader_id: str) -> Path:
        return self.folder / f"{self._log}-{_short_hash(leader_id)}.json"

    def load(self, leader_id: str) -> Hint | None:
        """The last hint of this leader, or None if there is none that can be trusted."""
        try:
            if not self._private():
                return None
            document = json.loads(self._file(leader_id).read_bytes())
            if document.pop("version") != _VERSION:
                return None
            leadership = Leadership(**_with_txns(document.pop("leadership")))
            hint = Hint(leadership=leadership, **document)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
        return hint if leadership.leader_id == leader_id else None

    def save(self, hint: Hint) -> bool:
        """Replace this leader's hint; whoever looks finds the old one, none or the new one,
        never a part. False when the disk did not take it."""
        file = self._file(hint.leadership.leader_id)
        document = json.dumps({"version": _VERSION, **vars(hint)}, default=vars)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._private():
                raise PermissionError(f"{self.folder} is open to other users")
            # Another process's draft has another name; within one there is one at a time.
            draft = file.with_suffix(f".{os.getpid()}")
            try:
                draft.write_text(document)
                # ext4 writes a file's data to the disk before it may replace another, and a
                # microbatch waits milliseconds for it. Between the two: no hint, a cold start.
                file.unlink(missing_ok=True)
                os.replace(draft, file)
            except BaseException:
                with suppress(OSError):
                    os.unlink(draft)
                raise
        except OSError as error:
            events.emit(events.HintNotSaved(folder=str(self.folder), reason=str(error)))
            return False
        return True

    def forget_others(self, leader_id: str) -> None:
        """Remove the hints of this log's other leaders here, which `leader_id` has just fenced.

        One of them, planning by its hint, would only learn that by a failed microbatch.
        """
        with suppress(OSError):
            for file in self.folder.glob(f"{self._log}-*.json"):
                if file != self._file(leader_id):
                    file.unlink(missing_ok=True)

    def _private(self) -> bool:
        status = os.lstat(self.folder)
        return (
            stat.S_ISDIR(status.st_mode)
            and status.st_uid == os.getuid()
            and not status.st_mode & 0o077
        )


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _with_txns(document: dict[str, Any]) -> dict[str, Any]:
    txns = {query: (int(last), int(ms)) for query, (last, ms) in document["txns"].items()}
    return {**document, "txns": txns}


def fresh(hint: Hint, clock: Clock, ttl_ms: int) -> bool:
    """Whether a hint is from this boot and younger than `ttl_ms`."""
    age = clock.boot_ms() - hint.boot_ms
    return hint.boot_id == clock.boot_id() and 0 <= age < ttl_ms
