"""An open journal: keeps accepted entries on a local disk, in order, until the log has them.

Segments hold the entries. One fsync serves all appends that wait. The design follows Apache Iggy's
metadata journal, but a full journal refuses appends.

    open → ending (`close`: refuses appends, syncs) → closed
    open, ending → failed (`_stop`) → closed

An entry: written → synced → acknowledged (the log has it) → removed (`drain`).
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from isal.isal_zlib import crc32

from sparkwal import events
from sparkwal.errors import BackPressureError, JournalError, JournalReadError, OptionError
from sparkwal.events import Event
from sparkwal.journal import files
from sparkwal.journal.files import Cursor
from sparkwal.journal.open_segments import Segments
from sparkwal.journal.quarantine import Quarantine
from sparkwal.journal.safe_threading import Flag
from sparkwal.journal.segment import entry_size
from sparkwal.journal.storage import Bytes, Folder
from sparkwal.store.threads import start_daemon

Publish = Callable[[Event], None]
ALWAYS = "always"
INTERVAL = "interval"
NONE = "none"
DEFAULT_SLOTS = 2**20
# The interval at which an append checks whether a full disk has room again.
_ROOM_CHECK_SECONDS = 0.5


@dataclass(frozen=True)
class Settings:
    """The limits of a journal, and when an append returns.

    Attributes:
        segment_bytes: the limit of a segment's file, and so of an entry.
        max_bytes: the limit of all files. Appends leave room for one segment.
        slots: the number of entries that may wait; by default that of the newest segment.
        sync: with ALWAYS an append returns after a sync. With INTERVAL and NONE it returns at once;
            INTERVAL syncs every `interval_ms`, NONE only full segments.
        interval_ms: see `sync`.
    """

    segment_bytes: int = 64 * 2**20
    max_bytes: int = 2**30
    slots: int | None = None
    sync: str = ALWAYS
    interval_ms: int = 100

    @property
    def largest(self) -> int:
        """The largest size of an entry's content, in bytes."""
        return self.segment_bytes - entry_size(0)


class Journal:
    """An open journal, which `sparkwal.journal.opening` creates. Thread-safe.

    Attributes:
        last: the sequence of the newest entry.
        lost: accepted sequences that the opening could not read. Send them again, in this order,
            before anything else. Each opening reports them until then.
        failure: the error that stopped the journal, or None.
        wants_room: an append waits or was refused, so `drain` should make room.
        on_accepted: called after an entry is accepted or acknowledged; must return quickly.
    """

    def __init__(
        self,
        folder: Folder,
        settings: Settings,
        segments: Segments,
        quarantine: Quarantine,
        acked: int,
        publish: Publish,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._publish = publish
        self._segments = segments
        self.quarantine = quarantine
        self.path = folder.path
        self._mark = folder.open(files.ACCEPTED)
        # Threads take these locks in this order: first `_draining`, then `_syncing`, then `_lock`.
        self._draining, self._syncing, self._lock = (threading.Lock() for _ in range(3))
        # The thread whose sync runs or comes next holds this lock.
        self._turn = threading.Lock()
        self._room, self._ending = Flag(), Flag()
        self.failure: JournalError | None = None
        self.is_closed = self._reported_full = self.wants_room = False
        # The log has every entry up to `_acked`.
        self.last = segments.newest.last
        self._acked = acked
        self.lost = quarantine.lost(self.last)
        self._synced = self.last
        self.on_accepted: Callable[[], None] = lambda: None
        if settings.sync == INTERVAL:
            start_daemon(self._sync_often, "journal")

    @property
    def accepted(self) -> int:
        """The newest sequence whose append may have returned."""
        return self._synced if self._settings.sync == ALWAYS else self.last

    @property
    def size(self) -> int:
        return self._segments.size

    def remaining_capacity(self) -> int:
        """The number of entries that the journal can accept before the log takes some."""
        return self._segments.slots - (self.last - self._acked)

    def write(self, content: Bytes) -> int:
        """Write a new entry.

        A crash may lose the entry until `wait` has returned.

        Returns:
            The entry's sequence.

        Raises:
            OptionError: the entry is too large for a segment, or the journal is closed.
            BackPressureError: the journal or its disk is full, see `wait_for_room`.
            JournalError: the journal has stopped. The next opening shows whether the entry is on
                the disk.
        """
        length = len(content)
        if length > self._settings.largest:
            raise OptionError(
                f"an append of {length} bytes; {self._settings.largest} fit into a segment "
                "of the journal: split it, or raise journalSegmentBytes"
            )
        most = self._settings.max_bytes - self._settings.segment_bytes
        # Compute the CRC before taking the lock: the content may be large.
        crc = crc32(content)
        while True:
            with self._lock:
                self._check_open()
                if self.remaining_capacity() < 1:
                    slots = self._segments.slots
                    raise self._full(f"{slots} entries wait in {self.path} (journalSlots)")
                if self.size + entry_size(length) > most:
                    raise self._full(f"{self.size} bytes wait in {self.path} (journalMaxBytes)")
                full, limit = self._segments.newest, self._settings.segment_bytes
                is_empty = full.last < full.header.first
                if is_empty or full.size + entry_size(length) <= limit:
                    return self._append(content, crc)
            with self._syncing, self._lock:
                # Another thread may have begun a segment meanwhile: check again.
                self._check_open()
                if self._segments.newest is full:
                    try:
                        self._rotate()
                    except OSError as error:
                        raise self._not_written(error) from error

    def _append(self, content: Bytes, crc: int) -> int:
        try:
            self.last = self._segments.append(content, crc)
        except OSError as error:
            raise self._not_written(error) from error
        self.wants_room = False
        # Report fullness again only after half of the journal was free.
        room = 2 * self.size <= self._settings.max_bytes
        self._reported_full &= not (room and 2 * self.remaining_capacity() >= self._segments.slots)
        if self._settings.sync != ALWAYS:
            self._have_accepted(self._segments.newest.header.id, self.last)
            self.on_accepted()
        return self.last

    def _not_written(self, error: OSError) -> BackPressureError | JournalError:
        """Undo a failed write if the disk is full, else stop. Returns the error to raise."""
        try:
            if not files.is_full(error):
                raise error
            self._segments.undo()
        except OSError as failed:
            return self._stop(files.failed(self.path, failed))
        return self._full(f"the disk of {self.path} is full ({error.strerror})")

    def _full(self, why: str) -> BackPressureError:
        self.wants_room = True
        self._room.clear()
        if not self._reported_full:
            self._reported_full = True
            self._publish(events.JournalFull(path=self.path, bytes=self.size, reason=why))
        self.on_accepted()
        return BackPressureError(f"{why}: this append was not accepted, try again later")

    def wait_for_room(self, timeout: float = _ROOM_CHECK_SECONDS) -> None:
        """After a BackPressureError: wait until there may be room, at most `timeout` seconds."""
        if self.wants_room:
            self._room.wait(min(timeout, _ROOM_CHECK_SECONDS))

    def _rotate(self, *, spare: bool = False) -> None:
        """Begin a new segment. The caller holds both locks.

        Raises:
            JournalError: a step failed.
            OSError: the disk is full.
        """
        try:
            # SAFETY(sync-before-rotate) §11: a full segment is synced before the next begins
            self._segments.file.sync()
            self._have_synced(self._segments.newest.header.id, self.last)
            self._segments.rotate(spare=spare)
        except JournalError as error:
            raise self._stop(error) from error

    def wait(self, sequence: int) -> None:
        """With ALWAYS, wait until this entry is synced. Otherwise return at once.

        Raises:
            JournalError: the sync failed.
        """
        # SAFETY(sync-before-return) §11: with journalSync=always an append returns after a sync
        if self._settings.sync == ALWAYS:
            self.sync(sequence)

    def sync(self, sequence: int | None = None) -> None:
        """Wait until the entries up to `sequence`, or all, are synced. One thread syncs for all."""
        upto = self.last if sequence is None else sequence
        while self._synced < upto:
            turn = self._turn
            with turn:
                # If the turn has changed, another thread's sync has ended: check again.
                if turn is self._turn:
                    self._sync_once()
                    self._turn = threading.Lock()
        self.on_accepted()

    def _sync_once(self) -> None:
        with self._syncing:
            with self._lock:
                self._check_failure()
                newest = self._segments.newest
                file = self._segments.file
                upto = self.last
            # Other threads append during the sync. The next sync serves them.
            try:
                file.sync()
            except JournalError as error:
                raise self._stop(error) from error
            with self._lock:
                # SAFETY(sync-covers-earlier) §11: a sync covers only what was written when it began
                self._have_synced(newest.header.id, upto)

    def _have_synced(self, segment: int, upto: int) -> None:
        if upto > self._synced:
            if self._settings.sync == ALWAYS:
                self._have_accepted(segment, upto)
            self._synced = upto

    def _have_accepted(self, segment: int, upto: int) -> None:
        """Move the mark.

        Raises:
            JournalError: the write failed. Without the mark a damaged entry would look like a torn
                tail.
        """
        try:
            # SAFETY(mark-before-return) §11: an entry is in the mark before its append returns
            files.put_mark(self._mark, segment, upto)
        except OSError as error:
            raise self._stop(files.failed(f"{self.path}/{files.ACCEPTED}", error)) from error

    def _sync_often(self) -> None:
        # The next append raises the error again.
        with suppress(JournalError, OptionError):
            while not self._ending.wait(self._settings.interval_ms / 1000):
                self.sync()

    def read(self, sequence: int) -> tuple[memoryview, bytes]:
        """Read the (content, schema) of an entry that the log does not have yet.

        Raises:
            JournalReadError: the entry cannot be read.
        """
        try:
            return self._segments.read(sequence)
        except JournalReadError as error:
            raise self._stop(error) from error.__cause__

    def acknowledge(self, sequence: int) -> None:
        with self._lock:
            if sequence > self._acked:
                self._acked = sequence
                if self.wants_room:
                    self._room.set()

    def drain(self) -> None:
        """Remove the segments that the log has. The newest is removed only to make room.

        Raises:
            JournalError: a step failed.
        """
        with self._draining:
            try:
                self._check_open()
                with self._lock:
                    newest_goes = self.wants_room and self._segments.newest_is_done(self._acked)
                    if not newest_goes and not self._segments.done(self._acked):
                        return
                if self.wants_room:
                    # On a full disk a concurrent append would take the room that the cursor needs.
                    with self._syncing, self._lock:
                        if self._segments.newest_is_done(self._acked):
                            self._rotate(spare=True)
                        self._let_go()
                else:
                    self._let_go()
            except JournalError as error:
                raise self._stop(error) from error
            except OSError as error:
                if not files.is_full(error):
                    raise self._stop(files.failed(self.path, error)) from error
                return
            self._room.set()

    def _let_go(self) -> None:
        acked = self._acked
        done = self._segments.done(acked)
        # SAFETY(cursor-before-removal) §11: the cursor is durable before a segment is removed
        self._checkpoint(done[-1].header.id + 1 if done else self._segments.oldest.header.id)
        for segment in done:
            self._segments.remove(segment)
            self._publish(events.SegmentRemoved(self.path, segment.header.id, segment.last))
        files.keep_reserve(self._folder)

    def _checkpoint(self, first: int, ends: list[int] | None = None) -> None:
        owner, acked = self._segments.oldest.header.owner, self._acked
        cursor = Cursor(*owner, acked, first, self._segments.next_id, ends)
        files.write_cursor(self._folder, cursor)
        self._publish(events.Checkpointed(path=self.path, sequence=acked))

    def settle(self) -> None:
        """Remove the entries that may never have been accepted from `lost`.

        Raises:
            JournalError: a step failed.
        """
        try:
            self.quarantine = self.quarantine.settled()
        except OSError as error:
            raise files.failed(self.path, error) from error
        self.lost = self.quarantine.lost(self.last)

    def close(self) -> None:
        """Sync everything and release the folder.

        Raises:
            JournalError: the sync failed.
        """
        if self.is_closed:
            return
        with self._lock:
            # From here on, `write` refuses appends.
            self._ending.set()
        try:
            if self.failure is None:
                self.sync()
                newest = self._segments.newest
                ends = [newest.header.id, newest.size, newest.last]
                # The cursor's `ends` spares the next opening from writing the last segment again.
                with self._draining, suppress(JournalError, OSError):
                    self._checkpoint(self._segments.oldest.header.id, ends)
        finally:
            self.is_closed = True
            self._room.set()
            self._segments.close()
            self._mark.close()
            self._folder.close()

    def _stop(self, error: JournalError) -> JournalError:
        """Stop, unless the error is retryable: then the journal is unchanged. Returns the error."""
        if not error.retryable:
            self.failure = self.failure or error
            self._room.set()
            self.on_accepted()
        return error

    def _check_failure(self) -> None:
        if self.failure is not None:
            raise type(self.failure)(str(self.failure))

    def _check_open(self) -> None:
        self._check_failure()
        if self._ending.is_set():
            raise OptionError("this journal is closed; open it again")
