"""Accepted entries on a local disk, in order, until the log has them.

Segments of a stated size take the entries; a ring tells where each lies; one fsync is for all
appends that wait. After Apache Iggy's metadata journal; nothing is evicted: what is full refuses.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable
from contextlib import nullcontext, suppress

from sparkwal import events
from sparkwal.errors import BackPressureError, JournalError, JournalReadError, OptionError
from sparkwal.events import Event
from sparkwal.journal import files
from sparkwal.journal.draining import checkpoint, let_go
from sparkwal.journal.files import Mark
from sparkwal.journal.segment import Found, entry_size
from sparkwal.journal.segments import Segments
from sparkwal.journal.settings import ALWAYS, INTERVAL, Settings
from sparkwal.journal.storage import Bytes, Folder, check_process, closed_early

# How often an append looks whether a full disk has room again.
_LOOK_SECONDS = 0.5


class Journal:
    """An open journal; made by `sparkwal.journal.opening`. Thread-safe.

    Args:
        acked: the log has every entry up to it.

    Attributes:
        path: of its folder, for messages.
        last: sequence of the newest entry that was written.
        lock: held while an entry is written. A signal's handler may come into that, and close it.
        failure: why it has stopped.
        is_closed: whether `close` has ended.
        wants_room: an append waits, or was refused: `drain` should give room.
        on_accepted: called when there may be something to read or to drain; does nothing that
            takes long.
    """

    def __init__(
        self,
        folder: Folder,
        settings: Settings,
        segments: Segments,
        acked: int,
        publish: Callable[[Event], None],
    ) -> None:
        self._folder, self._settings, self._publish = folder, settings, publish
        self._segments, self.path = segments, folder.path
        self._mark, self._pid = Mark(folder), os.getpid()
        self.lock = self._lock = threading.RLock()
        self._changed, self._draining = threading.Condition(self._lock), threading.RLock()
        self._syncer: int | None = None  # the thread that syncs
        self.failure: JournalError | None = None
        self.is_closed = self._closing = self._told_full = self.wants_room = self._adding = False
        self.last, self._synced, self._acked = segments.newest.last, -1, acked
        # Safety (§11): "what an earlier process accepted gets no mark"
        self._have_synced(segments.newest.header.id, self.last)
        self.on_accepted: Callable[[], None] = lambda: None
        if settings.sync == INTERVAL:
            threading.Thread(target=self._sync_often, name="sparkwal-journal", daemon=True).start()

    @property
    def accepted(self) -> int:
        """The newest sequence of which an append may have returned."""
        return self._synced if self._settings.sync == ALWAYS else self.last

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._segments.size

    def remaining_capacity(self) -> int:
        """How many more entries it takes before the log has taken some."""
        return self._segments.slots - (self.last - self._acked)

    # Appending.

    def write(self, content: Bytes, block: bool = True) -> int:
        """The sequence of a new entry. It may be lost until `wait` has returned.

        Raises:
            OptionError: it is too large for a segment; the journal is closed; this is a fork.
            BackPressureError: the journal or its disk is full, and `block` is False.
            JournalError: it has stopped; whether this entry is on the disk only opening it
                again can tell.
        """
        if len(content) > self._settings.largest:
            raise OptionError(
                f"an append of {len(content)} bytes; {self._settings.largest} fit into a segment "
                "of the journal: split it, or raise journalSegmentBytes"
            )
        check_process(self._pid)
        crc = zlib.crc32(content)  # of what may be large: before the lock
        with self._lock:
            while True:
                self._check_open(adds=True)
                self._wait_for_room(entry_size(len(content)), block)
                try:
                    if not self._segments.fits(len(content), self._settings.segment_bytes):
                        # Others may have appended in between: look again.
                        self._rotate()
                        continue
                    self._adding = True
                    self.last = self._segments.append(content, crc)
                    break
                except OSError as error:
                    if self.is_closed:  # by a signal's handler: told above
                        continue
                    self._undo(error)
                    why = f"the disk of {self.path} is full ({error.strerror})"
                finally:
                    self._adding = False
                self._full(why, block)
            self.wants_room = False
            # Where one entry goes as the next comes, it is full the same time.
            room = 2 * self.size <= self._settings.max_bytes
            self._told_full &= not (room and 2 * self.remaining_capacity() >= self._segments.slots)
            if self._settings.sync != ALWAYS:
                self.on_accepted()
            return self.last

    def _undo(self, error: OSError) -> None:
        if not files.is_full(error):
            raise self._stop(files.failed(self.path, error)) from error
        try:
            self._segments.undo()
        except OSError as again:
            raise self._stop(files.failed(self.path, again)) from again

    def _wait_for_room(self, need: int, block: bool) -> None:
        soft = self._settings.max_bytes - self._settings.segment_bytes
        while True:
            if self.remaining_capacity() < 1:
                why = f"{self._segments.slots} entries wait in {self.path} (journalSlots)"
            elif self.size + need > soft:
                why = f"{self.size} bytes wait in {self.path} (journalMaxBytes)"
            else:
                return
            self._full(why, block)

    def _full(self, why: str, block: bool) -> None:
        self.wants_room = True
        if not self._told_full:
            self._told_full = True
            self._publish(events.JournalFull(path=self.path, bytes=self.size, reason=why))
        self.on_accepted()
        if not block:
            raise BackPressureError(f"{why}: nothing of this append was accepted, try again later")
        self._changed.wait(_LOOK_SECONDS)
        self._check_open()

    def wait_for_room(self, timeout: float) -> None:
        """After a BackPressureError: until there may be room, at most so many seconds."""
        with self._lock:
            if self.wants_room:
                self._changed.wait(min(timeout, _LOOK_SECONDS))

    def _rotate(self, spare: bool = False) -> None:
        """Go on in a new segment, unless another thread did."""
        former = self._segments.newest
        # A sync of it may be under way in another thread.
        while self._syncer not in (None, threading.get_ident()):
            self._changed.wait()
            self._check_open()
        if self._segments.newest is not former:
            return
        try:
            self._adding = True
            # Safety (§11): "a file that is full is not synced"
            self._segments.writer.sync()
            self._have_synced(self._segments.newest.header.id, self.last)
            self._changed.notify_all()
            self._segments.rotate(spare)
        except JournalError as error:
            if self.is_closed:  # by a signal's handler that came into this
                self._check_open()
            raise self._stopped_by(error) from error
        finally:
            self._adding = False

    # Syncing.

    def wait(self, sequence: int) -> None:
        """Until this entry is on the disk; with `INTERVAL` and `NONE` at once.

        Raises JournalError where that can't be known.
        """
        # Safety (§11): "an append returns before it is on the disk"
        if self._settings.sync == ALWAYS:
            self.sync(sequence)

    def sync(self, sequence: int | None = None) -> None:
        """Until every entry up to this one, or every one, is on the disk: one syncs for all."""
        check_process(self._pid)
        with self._lock:
            upto = self.last if sequence is None else sequence
            while self._synced < upto:
                self._check_failure()
                if self.is_closed:  # by a signal's handler in the middle of an append
                    raise closed_early(self.path)
                # A signal's handler may have interrupted the very thread that syncs.
                if self._syncer in (None, threading.get_ident()):
                    self._sync_once()
                else:
                    self._changed.wait()
        self.on_accepted()

    def _sync_once(self) -> None:
        writer, upto, segment = self._segments.writer, self.last, self._segments.newest.header.id
        mine, self._syncer = self._syncer, threading.get_ident()
        try:
            # Others append meanwhile: the next sync is for all of them.
            self._lock.release()
            try:
                writer.sync()
            finally:
                self._lock.acquire()
        except JournalError as error:
            # Where a signal's handler closed it meanwhile, that has synced all of it.
            if self._synced < upto:
                raise self._stopped_by(error) from error
        finally:
            self._syncer = mine
            self._changed.notify_all()
        # Safety (§11): "what comes while it syncs counts as synced"
        self._have_synced(segment, upto)

    def _have_synced(self, segment: int, upto: int) -> None:
        if upto > self._synced:
            self._synced = upto
            self._mark.put(segment, upto)

    def _sync_often(self) -> None:
        with suppress(JournalError, OptionError):  # the next append tells it
            while not self.is_closed:
                with self._lock:
                    self._changed.wait(self._settings.interval_ms / 1000)
                self.sync()

    # Reading and letting go.

    def read(self, sequence: int) -> tuple[memoryview, bytes]:
        """(content, schema) of an entry that the log does not have. Raises JournalReadError."""
        try:
            return self._segments.read(sequence)
        except JournalReadError as error:
            raise self._stopped_by(error) from error.__cause__

    def acknowledge(self, sequence: int) -> None:
        """The log has every entry up to this one."""
        with self._lock:
            if sequence > self._acked:
                self._acked = sequence
                if self.wants_room:
                    self._changed.notify_all()

    def may_drain(self) -> bool:
        """Whether `drain` would let a file go, or give the room that an append waits for."""
        with self._lock:
            if self.failure is not None or self.is_closed:
                return False
            if self._segments.done(self._acked):
                return True
            return self.wants_room and (
                self._segments.newest_is_done(self._acked) or self._shrinks_from() is not None
            )

    def _shrinks_from(self) -> Found | None:
        with self._lock:
            return self._segments.may_shrink(self._acked, self._settings.segment_bytes // 2)

    def drain(self) -> None:
        """Let go what the log has: the cursor first, then whole segments. Where an append waits for
        room, a segment that holds both is written anew. Raises JournalError.
        """
        with self._draining:
            try:
                self._check_open()
                # Where the disk is full an append would take the room that the cursor needs.
                with self._lock if self.wants_room else nullcontext():
                    rotates = self.wants_room and not self._adding
                    if rotates and self._segments.newest_is_done(self._acked):
                        self._rotate(spare=True)
                    let_go(self._folder, self._segments, self._acked, self._publish)
                if self.wants_room and (found := self._shrinks_from()) is not None:
                    self._segments.shrink(found, self._lock)
            except JournalError as error:
                raise self._stopped_by(error) from error
            except OSError as error:
                if not files.is_full(error):
                    raise self._stop(files.failed(self.path, error)) from error
            with self._lock:
                self._changed.notify_all()

    def close(self) -> None:
        """Sync everything, let another process have the folder. Raises JournalError."""
        check_process(self._pid)
        if self.is_closed:
            return
        try:
            if self.failure is None:
                with self._lock:
                    while self._synced < self.last:
                        self.sync()
                    # Nothing is appended from here on: every byte is synced.
                    self._closing = True
                    newest = self._segments.newest
                    ends = None if self._adding else (newest.header.id, newest.size)
                # Without it the next start reads a little more.
                with self._draining, suppress(JournalError, OSError):
                    checkpoint(self._folder, self._segments, self._acked, self._publish, ends=ends)
        finally:
            with self._lock:
                self.is_closed = True
                self._changed.notify_all()
            # Not with the lock, which one who writes a segment anew takes last.
            self._segments.close()
            self._mark.close()
            self._folder.close()

    # What stops it.

    def _stopped_by(self, error: JournalError) -> JournalError:
        """What may be tried again leaves everything as it was."""
        return error if error.retryable else self._stop(error)

    def _stop(self, error: JournalError) -> JournalError:
        with self._lock:
            self.failure = self.failure or error
            self._changed.notify_all()
        self.on_accepted()
        return error

    def _check_failure(self) -> None:
        if self.failure is not None:
            raise type(self.failure)(str(self.failure))

    def _check_open(self, adds: bool = False) -> None:
        self._check_failure()
        # Whoever adds while another is in the middle of it: its handler waits to close.
        if self.is_closed or self._closing or (adds and self._adding):
            raise OptionError("this journal is closed; open it again")
