"""A stream publishes how far it is: when it starts, and now and then when it commits.

A publication that is late or lost only delays collection: one that fails is a warning, and the
stream goes on. But a stream does not start before it is registered.
"""

import socket
import uuid
from dataclasses import dataclass

from sparkwal import events
from sparkwal.errors import InvalidLogError, SparkWalError
from sparkwal.format.consumer_record import Consumer
from sparkwal.lifecycle.consumers import join, publish, publish_of_all, read
from sparkwal.lifecycle.namesakes import Namesake, join_namesakes
from sparkwal.protocol.clock import SYSTEM, Clock, is_old
from sparkwal.protocol.holds import Holds
from sparkwal.store.base import LogStore


@dataclass
class _LogState:
    """One log of the stream: what it needs now, and what it published last and when; `published` is
    None before this run knows that no other bears its name."""

    log: LogStore
    log_id: str
    position: int
    namesake: Namesake | None
    published: int | None = None
    boot_ms: int | None = None


class Publisher:
    """One run of a stream that bears a consumer's `name`, or "", in each log that it reads. It
    publishes at most every `interval_ms`; `holds`: what queries of this machine would read again.
    """

    def __init__(self, name: str, interval_ms: int, holds: Holds, clock: Clock = SYSTEM) -> None:
        self._name = name
        self._interval_ms = interval_ms
        self._holds = holds
        self._clock = clock
        self._host, self._run_id = socket.gethostname(), uuid.uuid4().hex
        self._logs: dict[str, _LogState] = {}
        self._protected_ms: int | None = None

    def protect_new_logs(self, root: LogStore) -> None:
        """Keep what comes to logs under a path that this stream has not seen yet: 1 PUT, at most
        every `interval_ms`. Call it before the logs are listed."""
        clock, before = self._clock, self._protected_ms
        is_due = before is None or is_old(clock, before, clock.boot_id(), self._interval_ms)
        if not self._name or not is_due:
            return
        self._protected_ms = clock.boot_ms()
        try:
            publish_of_all(root, self._consumer("", 0))
        except SparkWalError as error:
            if before is None:
                self._protected_ms = None
                raise
            events.emit(events.ConsumerNotPublished(root.url, self._name, 0, str(error)))

    def join(self, log: LogStore, log_id: str | None, position: int) -> int:
        """Register before anything is read, once for each log that is there, and where the stream
        may begin; see `consumers.join`."""
        if not self._name or log_id is None or log.prefix in self._logs:
            return position
        held = self._holds.lowest(log_id, position)
        # Before this run publishes: a namesake that publishes meanwhile counts it in.
        state = self._holds.state
        namesake = join_namesakes(state, log_id, self._name, self._run_id, position)
        begin = max(position, join(log, self._consumer(log_id, held)))
        self._logs[log.prefix] = _LogState(log, log_id, begin, namesake)
        return begin

    def committed(self, log: LogStore, position: int) -> None:
        """Spark will not ask for anything below `position` again. The first time it is published at
        once: what an earlier run published holds the floor down until then. 1 GET, 1 PUT."""
        if (state := self._logs.get(log.prefix)) is None:
            return
        state.position = max(state.position, position)
        if state.namesake is not None:
            state.namesake.move(state.position)
        boot_id = self._clock.boot_id()
        if state.boot_ms is None or is_old(self._clock, state.boot_ms, boot_id, self._interval_ms):
            self._publish(state)

    def catch_up(self) -> None:
        """The stream may end: publish what it needs when it comes back."""
        for state in self._logs.values():
            if state.position != state.published:
                self._publish(state)

    def _publish(self, state: _LogState) -> None:
        # Where the store is down each attempt takes long: the next is an interval away too.
        state.boot_ms = self._clock.boot_ms()
        try:
            held = self._holds.lowest(state.log_id, state.position)
            position = min(held, self._of_others(state))
            publish(state.log, self._consumer(state.log_id, position))
            state.published = state.position
        except SparkWalError as error:
            path = state.log.url
            name = self._name
            reason = str(error)
            events.emit(events.ConsumerNotPublished(path, name, state.position, reason))

    def _of_others(self, state: _LogState) -> int:
        """What all runs under this name need, as far as this one can see.

        Of those on this machine it is the lowest. Of another that has published since this one did
        it is what that published: while they alternate none publishes more than was published
        before, and the floor waits until all but one are gone.
        """
        namesakes = state.namesake.others() if state.namesake else {}
        needed = min([state.position, *namesakes.values()])
        found = read(state.log, self._name)
        if found is None or found.run_id in {self._run_id, *namesakes}:
            return needed
        if found.log_id != state.log_id:
            raise InvalidLogError(
                f"{state.log.url} was recreated: {self._name} on {found.host} reads the log "
                f"{found.log_id}, this stream read {state.log_id}"
            )
        path = state.log.url
        name = self._name
        host = found.host
        events.emit(events.ConsumerShared(path, name, host, found.position))
        return min(needed, found.position)

    def _consumer(self, log_id: str, position: int) -> Consumer:
        now_ms = self._clock.now_ms()
        return Consumer(self._name, log_id, position, now_ms, self._host, self._run_id)
