"""The backend of an appender with a journal."""

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from time import monotonic

from sparkwal.appender.batches import CheckedRows
from sparkwal.appender.context import AppenderContext
from sparkwal.appender.journal_intake import JournalIntake
from sparkwal.appender.journal_sender import JournalSender
from sparkwal.appender.origin import check_sent
from sparkwal.appender.rows import read_schema
from sparkwal.appender.sender import open_session
from sparkwal.errors import JournalError, OptionError, SparkWalError
from sparkwal.journal.disk import DiskFolder
from sparkwal.journal.files import Sender, whose, write_sender
from sparkwal.journal.journal import Settings
from sparkwal.journal.opening import Opening, Owner
from sparkwal.journal.scanning import Contents, scan_folder
from sparkwal.journal.storage import Folder
from sparkwal.options.open import journal_folder
from sparkwal.protocol.recovery import Head


class JournalBackend:
    """Opens the journal, takes the log over and sends what an earlier process accepted. Raises
    OptionError, StoreUnavailableError, FencedError, InvalidLogError, JournalError."""

    def __init__(self, context: AppenderContext, folder: Folder | None = None) -> None:
        options = context.settings
        assert options.journal is not None
        settings = Settings(
            options.journal_segment, options.journal_max, options.journal_slots,
            options.journal_sync, options.journal_interval_ms,
        )  # fmt: skip
        # Lock the folder before leading, so that a second process fails without fencing the first.
        self._folder = folder or DiskFolder(journal_folder(options.journal, options.path))
        self._context, self._ends = context, threading.Lock()
        with ExitStack() as failed:
            failed.callback(self._folder.close)
            contents = scan_folder(self._folder, settings)
            session = open_session(context, check=partial(self._check, contents))
            failed.callback(_give_up, partial(session.close, 1.0))
            journal = self._opening.begin(settings, context.subscribers.publish)
            failed.callback(_give_up, journal.close)
            # Write the note before anything is sent.
            lead = session.leadership
            mine = whose(lead.log_id, context.producer_id)
            write_sender(self._folder, Sender(mine, lead.leader_id, session.known))
            self.intake = JournalIntake(journal, context.rows, session.known)
            failed.callback(self.intake.callbacks.stop)
            self.sender = JournalSender(context, self.intake, session)
            failed.pop_all()
        self.journal, self.lost, self.quarantine = journal, journal.lost, journal.quarantine

    def _check(self, contents: Contents, head: Head, log_id: str, known: int) -> None:
        """Before anything is written."""
        path, rows = self._folder.path, self._context.rows
        for segment in contents.segments:
            if segment.last <= known:
                continue
            kept = read_schema(segment.header.schema)
            new = next((name for name in rows.required if name not in kept.names), None)
            lacks = None if new is None else f"no column {new!r}, which takes no null"
            if wrong := rows.mismatch(kept) or lacks:
                raise OptionError(
                    f"journal {path} holds rows that wait and do not fit ({wrong}): open it once "
                    "with the former schema, and close it when everything is sent"
                )
        check_sent(self._context, head, log_id, known, contents, path)
        schema, log = rows.arrow.serialize().to_pybytes(), self._context.log.url
        owner = Owner(log, log_id, self._context.producer_id, known, schema)
        # The head may move before this appender leads: then it is checked again.
        self._opening = Opening(self._folder, replace(contents), owner)

    def resend_lost(self, unreadable: Callable[[int], CheckedRows]) -> list[int]:
        gone = []
        for sequence, found in self.quarantine.entries(self.journal.last):
            if sequence != self.journal.last + 1:
                raise OptionError(
                    f"append {sequence} was lost and is to be appended again, and "
                    f"{self.journal.last} was appended meanwhile: call it before anything else is "
                    "appended. What is left of the lost ones is where `incidents` says"
                )
            if found is None:
                gone.append(sequence)
                self.intake.append(unreadable(sequence), True)
            else:
                self.intake.append(self._context.rows.restore(*found), True)
        return gone

    @property
    def in_flight(self) -> int:
        return self.sender.session.in_flight

    @property
    def held(self) -> int:
        return self.intake.held + self.sender.session.held

    def close(self, timeout: float | None) -> None:
        """Accept nothing more and send the rest while the store answers; the journal keeps what it
        does not take. Raises TimeoutError, JournalError."""
        intake, sender, journal = self.intake, self.sender, self.journal
        intake.close()
        if journal.is_closed:
            return
        end = None if timeout is None else monotonic() + timeout
        with suppress(JournalError):  # `journal.close` raises it again
            journal.sync()
            last = journal.last

            def is_done() -> bool:
                idle = intake.decided >= last or intake.stopped is not None
                return idle or sender.takes_nothing()

            if not intake.wait_for(is_done, timeout):
                raise TimeoutError(f"not everything is in the log after {timeout} seconds")
        sender.end(None if end is None else max(0.0, end - monotonic()))
        with self._ends:
            if not journal.is_closed:
                try:
                    journal.acknowledge(intake.decided)
                    journal.close()
                finally:
                    intake.end()
        intake.callbacks.stop()


def _give_up(close: Callable[[], None]) -> None:
    with suppress(SparkWalError, TimeoutError):  # the error that made the opening fail is raised
        close()
