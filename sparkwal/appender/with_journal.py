"""An appender with a journal: accepted is on this machine's disk, whatever the store does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from time import monotonic

import pyarrow as pa

from sparkwal.appender.batches import Failure
from sparkwal.appender.feeding import Feeder, entry_rows
from sparkwal.appender.journaled import Front, JournalTicket
from sparkwal.appender.origin import check_sent
from sparkwal.appender.rows import Accepted, RowSchema
from sparkwal.appender.salvage import Incident, incidents_of, unreadable_file
from sparkwal.appender.session import Session, Writer
from sparkwal.errors import JournalError, OptionError, SparkWalError
from sparkwal.journal.disk import DiskFolder
from sparkwal.journal.opening import begin
from sparkwal.journal.owner import Owner
from sparkwal.journal.scanning import Contents, scan_folder
from sparkwal.journal.sender import Sender, whose, write_sender
from sparkwal.journal.settings import DEFAULT_SLOTS, Settings
from sparkwal.journal.storage import Folder


class Journaled:
    """Opens the journal, takes the log over, sends what an earlier process accepted.

    Attributes:
        lost: sequences that were accepted and are damaged on the disk: to be sent again, in this
            order and before anything else.

    Raises OptionError, StoreUnavailableError, FencedError, InvalidLogError, JournalError.
    """

    def __init__(self, writer: Writer, folder: Folder | None = None) -> None:
        settings = _settings(writer)
        assert writer.settings.journal is not None
        # First of all: whoever holds it leads the log, and goes on doing so.
        self._folder = folder or DiskFolder(writer.settings.journal)
        self._writer = writer
        self._ends = threading.Lock()  # held by the call that closes the journal, for good
        self._told = _Relay()
        try:
            contents = scan_folder(self._folder, settings.largest, settings.slots, DEFAULT_SLOTS)
            session = Session(writer, self._told)
            try:
                _check_schema(self._folder.path, contents, session.known, writer.rows)
                check_sent(writer, session, contents, self._folder.path)
                self._open(writer, settings, contents, session)
            except BaseException:
                with suppress(SparkWalError, TimeoutError):
                    session.close(1.0)
                raise
        except BaseException:
            self._folder.close()
            raise

    def _open(
        self, writer: Writer, settings: Settings, contents: Contents, session: Session
    ) -> None:
        owner = Owner(
            log=writer.log.url,
            log_id=session.log_id,
            producer=writer.producer_id,
            durable=session.known,
            schema=writer.rows.arrow.serialize().to_pybytes(),
        )
        opened = begin(self._folder, contents, owner, settings, writer.subscribers.publish)
        self.lost, self.journal, self.quarantine = opened.lost, opened.journal, opened.quarantine
        mine = whose(session.log_id, writer.producer_id)
        with ExitStack() as failed:
            failed.callback(self._give_up)
            # Before it sends anything.
            write_sender(self._folder, Sender(mine, session.leadership.leader_id, session.known))
            self._front = Front(self.journal, writer.rows, session.known)
            failed.callback(self._front.callbacks.stop)
            self._feeder = Feeder(writer, self._front, session, self._next_session)
            self._told.feeder = self._feeder
            self._feeder.start()
            failed.pop_all()

    def _give_up(self) -> None:
        with suppress(JournalError):  # the opening's own error is raised
            self.journal.close()

    def _next_session(self, feeder: Feeder, former: Session) -> Session:
        return Session(self._writer, feeder, former)

    def resend_lost(self, unreadable: Callable[[int], Accepted]) -> list[int]:
        """See `Appender.resend_lost`."""
        gone = []
        try:
            for sequence, found in self.quarantine.entries(self.journal.last):
                if sequence != self.journal.last + 1:
                    raise OptionError(
                        f"append {sequence} was lost and is to be appended again, and "
                        f"{self.journal.last} was appended meanwhile: call it before anything else "
                        "is appended. What is left of the lost ones is where `incidents` says"
                    )
                if found is None:
                    gone.append(sequence)
                    self.append(unreadable(sequence), True)
                else:
                    content, schema = found[0], pa.ipc.read_schema(pa.py_buffer(found[1]))
                    self.append(entry_rows(content, schema, self._writer.rows), True)
        except OSError as error:
            raise unreadable_file(self._folder.path, error) from error
        return gone

    def incidents(self) -> list[Incident]:
        """See `Appender.incidents`."""
        try:
            return incidents_of(self.quarantine, self.journal.last)
        except OSError as error:
            raise unreadable_file(self._folder.path, error) from error

    # As `Session` has them.

    def append(self, accepted: Accepted, block: bool) -> JournalTicket:
        return self._front.append(accepted, block)

    def begin(self, accepted: Accepted) -> JournalTicket:
        """Written; accepted once `accepted` has returned."""
        return self._front.begin(accepted, False)

    def accepted(self, sequence: int) -> None:
        """Wait until this append is accepted."""
        self.journal.wait(sequence)

    @property
    def last_sequence(self) -> int:
        return self.journal.accepted

    @property
    def is_store_away(self) -> bool:
        return self._feeder.is_away

    @property
    def in_flight(self) -> int:
        session = self._feeder.session
        return 0 if session is None else session.in_flight

    @property
    def held(self) -> int:
        session = self._feeder.session
        return 0 if session is None else session.held

    @property
    def unacknowledged(self) -> int:
        return self.journal.last - self._front.decided

    @property
    def failure(self) -> Failure | None:
        failure = self._front.failure
        if failure is None and self.journal.failure is not None:
            return Failure(self.journal.failure)
        return failure

    @property
    def pid(self) -> int:
        return self._front.callbacks.pid

    def flush(self, timeout: float | None) -> None:
        self._front.callbacks.check_process()
        last = self.journal.last
        self.journal.sync(last)
        if not self._front.wait_decided(last, timeout):
            raise TimeoutError(f"not everything is in the log after {timeout} seconds")

    def wait_room(self, timeout: float) -> None:
        self._front.callbacks.check_process()
        self.journal.wait_for_room(timeout)

    def close(self, timeout: float | None) -> bool:
        """Accept nothing more; send the rest while the store answers. What it does not take stays
        in the journal."""
        front, feeder = self._front, self._feeder
        front.callbacks.check_process()
        front.closing = True
        if self.journal.is_closed:
            return False
        end = None if timeout is None else monotonic() + timeout
        with suppress(JournalError):  # it is told below
            self.journal.sync()
            front.wait_idle(self.journal.last, feeder.takes_nothing, timeout)
        feeder.end(None if end is None else max(0.0, end - monotonic()))
        if not self._ends.acquire(blocking=False):
            return False
        try:
            self.journal.acknowledge(front.decided)
            self.journal.close()
        finally:
            front.end()
            front.callbacks.stop()
        return True

    def tell_rest(self) -> None:
        failure = self.failure
        if failure is not None and not failure.told:
            raise failure.tell()


class _Relay:
    """The first session begins before there is anyone to tell."""

    feeder: Feeder | None = None

    def decided(self, sequence: int, position: int) -> None:
        if self.feeder is not None:
            self.feeder.decided(sequence, position)

    def refused(self) -> None:
        if self.feeder is not None:
            self.feeder.refused()

    def stopped(self) -> None:
        if self.feeder is not None:
            self.feeder.stopped()


def _settings(writer: Writer) -> Settings:
    options = writer.settings
    return Settings(
        segment_bytes=options.journal_segment,
        max_bytes=options.journal_max,
        slots=options.journal_slots,
        sync=options.journal_sync,
        interval_ms=options.journal_interval_ms,
    )


def _check_schema(path: str, contents: Contents, known: int, rows: RowSchema) -> None:
    """What waits, all after `known`, can be sent with this schema. Raises OptionError."""
    for segment in contents.segments:
        if segment.last <= known:
            continue
        kept = pa.ipc.read_schema(pa.py_buffer(segment.header.schema))
        have = {each.name: each.type for each in rows.arrow}
        wrong = [
            f"a column {each.name!r} of type {each.type}, which the schema has not"
            for each in kept
            if have.get(each.name) != each.type
        ]
        wrong += [
            f"no column {name!r}, which takes no null" for name in rows.required
            if name not in kept.names
        ]  # fmt: skip
        if wrong:
            raise OptionError(
                f"journal {path} holds rows that wait and have {wrong[0]}: open it once with the "
                "former schema, and close it when everything is sent"
            )
