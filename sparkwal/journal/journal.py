"""Accepted entries on a local disk, in order, until the log has them.

Segments of a stated size take the entries; a ring holds where each lies; one fsync is for all
appends that wait. After Apache Iggy's metadata journal; nothing is evicted: what is full refuses.

    open → ending (`close`: nothing is appended, all is synced) → closed
    open, ending → failed (`_stop`) → closed

Of an entry: written → synced → acknowledged (the log has it) → let go (`drain`).
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from contextlib import suppress

from sparkwal import events
from sparkwal.errors import BackPressureError, JournalError, JournalReadError, OptionError
from sparkwal.events import Event
from sparkwal.journal import files
from sparkwal.journal.files import Cursor, Mark
from sparkwal.journal.segment import entry_size
from sparkwal.journal.segments import Segments
from sparkwal.journal.settings import ALWAYS, INTERVAL, Settings
from sparkwal.journal.storage import Bytes, Folder

# How often an append looks whether a full disk has room again.
_LOOK_SECONDS = 0.5


class Journal:
    """An open journal; made by `sparkwal.journal.opening`. Thread-safe.

    Args:
        acked: the log has every entry up to it.

    Attributes:
        path: of its folder, for messages.
        last: sequence of the newest entry that was written.
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
        self._mark = Mark(folder)
        # Taken in this order: by who drains; by who syncs or begins a segment; by who writes.
        self._draining, self._syncing, self._lock = (threading.Lock() for _ in range(3))
        self._turn = threading.Lock()  # of the sync that is under way, or comes next
        self._room, self._ending = threading.Event(), threading.Event()
        self.failure: JournalError | None = None
        self.is_closed = self._reported_full = self.wants_room = False
        self.last, self._synced, self._acked = segments.newest.last, -1, acked
        # SAFETY(mark-at-opening) §11: the mark is written at each opening
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

    def write(self, content: Bytes) -> int:
        """The sequence of a new entry. It may be lost until `wait` has returned.

        Raises:
            OptionError: it is too large for a segment, or the journal is closed.
            BackPressureError: the journal or its disk is full: `wait_for_room`.
            JournalError: it has stopped; whether this entry is on the disk only opening it
                again can show.
        """
        length = len(content)
        if length > self._settings.largest:
            raise OptionError(
                f"an append of {length} bytes; {self._settings.largest} fit into a segment "
                "of the journal: split it, or raise journalSegmentBytes"
            )
        crc = zlib.crc32(content)  # of what may be large: before the lock
        while True:
            with self._lock:
                self._check_open()
                self._check_room(entry_size(length))
                if self._segments.fits(length, self._settings.segment_bytes):
                    return self._append(content, crc)
                full = self._segments.newest
            with self._syncing, self._lock:
                # Others may have appended in between: look again.
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
        # Where one entry goes as the next comes, it is full the same time.
        room = 2 * self.size <= self._settings.max_bytes
        self._reported_full &= not (room and 2 * self.remaining_capacity() >= self._segments.slots)
        if self._settings.sync != ALWAYS:
            self.on_accepted()
        return self.last

    def _not_written(self, error: OSError) -> BackPressureError | JournalError:
        """What did not fit never was."""
        try:
            if not files.is_full(error):
                raise error
            self._segments.undo()
        except OSError as failed:
            return self._stop(files.failed(self.path, failed))
        return self._full(f"the disk of {self.path} is full ({error.strerror})")

    def _check_room(self, need: int) -> None:
        if self.remaining_capacity() < 1:
            raise self._full(f"{self._segments.slots} entries wait in {self.path} (journalSlots)")
        if self.size + need > self._settings.max_bytes - self._settings.segment_bytes:
            raise self._full(f"{self.size} bytes wait in {self.path} (journalMaxBytes)")

    def _full(self, why: str) -> BackPressureError:
        self.wants_room = True
        self._room.clear()
        if not self._reported_full:
            self._reported_full = True
            self._publish(events.JournalFull(path=self.path, bytes=self.size, reason=why))
        self.on_accepted()
        return BackPressureError(f"{why}: nothing of this append was accepted, try again later")

    def wait_for_room(self, timeout: float) -> None:
        """After a BackPressureError: until there may be room, at most so many seconds."""
        if self.wants_room:
            self._room.wait(min(timeout, _LOOK_SECONDS))

    def _rotate(self, spare: bool = False) -> None:
        """Go on in a new segment. With the locks of who syncs and of who writes. Raises
        JournalError, OSError for no room."""
        try:
            # SAFETY(sync-before-rotate) §11: a full segment is synced before the next begins
            self._segments.writer.sync()
            self._have_synced(self._segments.newest.header.id, self.last)
            self._segments.rotate(spare)
        except JournalError as error:
            raise self._stopped_by(error) from error

    # Syncing.

    def wait(self, sequence: int) -> None:
        """Until this entry is on the disk; with `INTERVAL` and `NONE` at once.

        Raises JournalError where that can't be known.
        """
        # SAFETY(sync-before-return) §11: with journalSync=always an append returns after a sync
        if self._settings.sync == ALWAYS:
            self.sync(sequence)

    def sync(self, sequence: int | None = None) -> None:
        """Until every entry up to this one, or every one, is on the disk: one syncs for all."""
        upto = self.last if sequence is None else sequence
        while self._synced < upto:
            turn = self._turn
            with turn:
                # Else the sync is over that this thread waited for: look again.
                if turn is self._turn:
                    self._sync_once()
                    self._turn = threading.Lock()
        self.on_accepted()

    def _sync_once(self) -> None:
        with self._syncing:
            with self._lock:
                self._check_failure()
                newest, writer, upto = self._segments.newest, self._segments.writer, self.last
            # Others append meanwhile: the next sync is for all of them.
            try:
                writer.sync()
            except JournalError as error:
                raise self._stopped_by(error) from error
            with self._lock:
                # SAFETY(sync-covers-earlier) §11: a sync covers only what was written when it began
                self._have_synced(newest.header.id, upto)

    def _have_synced(self, segment: int, upto: int) -> None:
        if upto > self._synced:
            self._synced = upto
            self._mark.put(segment, upto)

    def _sync_often(self) -> None:
        with suppress(JournalError, OptionError):  # the next append raises it
            while not self._ending.wait(self._settings.interval_ms / 1000):
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
                    self._room.set()

    def may_drain(self) -> bool:
        """Whether `drain` would let a file go, or give the room that an append waits for."""
        with self._lock:
            if self.failure is not None or self.is_closed:
                return False
            if self._segments.done(self._acked):
                return True
            return self.wants_room and self._segments.newest_is_done(self._acked)

    def drain(self) -> None:
        """Let go what the log has: the cursor first, then whole segments; where an append waits for
        room the newest too. Raises JournalError."""
        with self._draining:
            try:
                self._check_open()
                if self.wants_room:
                    # Where the disk is full an append would take the room that the cursor needs.
                    with self._syncing, self._lock:
                        if self._segments.newest_is_done(self._acked):
                            self._rotate(spare=True)
                        self._let_go()
                else:
                    self._let_go()
            except JournalError as error:
                raise self._stopped_by(error) from error
            except OSError as error:
                if not files.is_full(error):
                    raise self._stop(files.failed(self.path, error)) from error
            self._room.set()

    def _let_go(self) -> None:
        acked = self._acked
        done = self._segments.done(acked)
        # SAFETY(cursor-before-removal) §11: the cursor is durable before a segment is removed
        self._checkpoint(done[-1].header.id + 1 if done else self._segments.oldest.header.id)
        for segment in done:
            self._segments.remove(segment)
            number = segment.header.id
            self._publish(events.SegmentRemoved(path=self.path, segment=number, last=segment.last))
        files.keep_reserve(self._folder)

    def _checkpoint(self, first: int, ends: tuple[int, int] | None = None) -> None:
        """Write the cursor: segments below `first` are to be removed."""
        header, acked = self._segments.oldest.header, self._acked
        following = self._segments.next_id
        cursor = Cursor(header.log_id, header.producer, acked, first, following, ends)
        files.write_cursor(self._folder, cursor)
        self._publish(events.Checkpointed(path=self.path, sequence=acked))

    def close(self) -> None:
        """Sync everything, let another process have the folder. Raises JournalError."""
        if self.is_closed:
            return
        with self._lock:
            self._ending.set()  # nothing is appended from here on
        try:
            if self.failure is None:
                self.sync()
                ends = self._segments.newest.header.id, self._segments.newest.size
                # Without it the next start reads a little more.
                with self._draining, suppress(JournalError, OSError):
                    self._checkpoint(self._segments.oldest.header.id, ends)
        finally:
            self.is_closed = True
            self._room.set()
            self._segments.close()
            self._mark.close()
            self._folder.close()

    # What stops it.

    def _stopped_by(self, error: JournalError) -> JournalError:
        """What may be tried again leaves everything as it was."""
        return error if error.retryable else self._stop(error)

    def _stop(self, error: JournalError) -> JournalError:
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
