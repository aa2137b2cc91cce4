"""Requests of a newcomer that a busy leader hand over its log (PROTOCOL §7)."""

from dataclasses import dataclass

from sparkwal import events
from sparkwal.errors import FencedError, SparkWalError
from sparkwal.format import keys, limits
from sparkwal.format.header import Header
from sparkwal.protocol.clock import Clock
from sparkwal.store.base import LogStore, NotFound

# At most one GET for sixteen PUTs. A leader that sends fewer leaves a newcomer enough time.
LOOK_RECORDS = 16
LOOK_MS = 500


class Requests:
    """The requests of one newcomer. It deletes them in the end."""

    def __init__(self, log: LogStore, leader_id: str) -> None:
        self._log = log
        self._leader_id = leader_id
        self._keys: list[str] = []

    def ask(self, leader: Header) -> None:
        """Ask the leader that wrote the record with this header for the log."""
        # SAFETY(request-old-term) §7: a request names the term that is to end
        key = keys.handover_key(self._log.prefix, leader.log_id, leader.term)
        # Put the request each time: another newcomer may have deleted the same one.
        self._log.store.put_if_absent(key, self._leader_id.encode())
        if key not in self._keys:
            self._keys.append(key)
            events.emit(events.HandoverAsked(path=self._log.url, term=leader.term))

    def withdraw(self) -> None:
        """Delete the requests. Call it when the newcomer leads or gives up."""
        for key in self._keys:
            try:
                self._log.store.delete(key)
            except SparkWalError as error:
                # The request is harmless: its term has ended, or a newcomer that needs it asks
                # again.
                events.emit(events.HandoverLeftBehind(key=key, reason=str(error)))


@dataclass
class Lookout:
    """Looks for a request for the leader's log. Only `check` is thread-safe."""

    log: LogStore
    log_id: str
    term: int
    clock: Clock
    records: int = LOOK_RECORDS
    ms: int = LOOK_MS

    def __post_init__(self) -> None:
        # The key holds the term, so that a leftover request does not stop a later leader.
        self._key = keys.handover_key(self.log.prefix, self.log_id, self.term)
        self._sent = 0
        self._looked_ms = self.clock.boot_ms()

    def is_due(self) -> bool:
        """Count one sent record. Returns whether to look now."""
        self._sent += 1
        if self._sent < self.records or (now := self.clock.boot_ms()) - self._looked_ms < self.ms:
            return False
        self._sent, self._looked_ms = 0, now
        return True

    def check(self) -> None:
        """Look for a request. 1 GET.

        Raises:
            FencedError: another writer asks for the log, so send no more records.
        """
        try:
            request = self.log.store.get_range(self._key, 0, limits.HANDOVER)
            newcomer = request.decode(errors="replace")[:200]
        # SAFETY(asked-leader-stops) §7: a leader that finds a request sends nothing more
        except NotFound:
            return
        events.emit(events.HandedOver(path=self.log.url, by=newcomer, term=self.term))
        raise FencedError(
            f"another writer ({newcomer!r}) asked for {self.log.url} and takes it over. The "
            "records in flight are still decided, but this writer sends no more. Stop one of the "
            "two; a new appender with the same producer_id takes the log over again"
        )
