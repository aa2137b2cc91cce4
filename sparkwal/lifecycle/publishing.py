"""Publishes the position of a stream: when it starts, and at intervals when it commits.

A late or lost publication only delays collection, so a failure is a warning. But a stream does not
start before it is registered.
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
    """One log of the stream.

    Attributes:
        position: the first position that the stream still needs.
        namesake: the file of this reader on this machine.
        published: the position that this run published last. None before its first publication
            after `join`.
        boot_ms: the time of that publication, on the boot-time clock.
    """

    log: LogStore
    log_id: str
    position: int
    namesake: Namesake | None
    published: int | None = None
    boot_ms: int | None = None


class Publisher:
    """One run of a stream as a consumer of each log that it reads.

    Args:
        name: the consumer's name, or "" for a stream that is no consumer.
        interval_ms: the least time between two publications.
        holds: the positions from which queries of this machine would read again.
        clock: replaces the system's clock.
    """

    def __init__(self, name: str, interval_ms: int, holds: Holds, clock: Clock = SYSTEM) -> None:
        self._name = name
        self._interval_ms = interval_ms
        self._holds = holds
        self._clock = clock
        self._host = socket.gethostname()
        self._run_id = uuid.uuid4().hex
        self._logs: dict[str, _LogState] = {}
        self._protected_ms: int | None = None

    def protect_new_logs(self, root: LogStore) -> None:
        """Protect logs under a path that this stream has not seen yet: 1 PUT every `interval_ms`.

        Call it before the logs are listed.
        """
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
        """Register before the first read of a log, once for each log.

        Returns:
            The position at which the stream may begin; see `consumers.join`.
        """
        if not self._name or log_id is None or log.prefix in self._logs:
            return position
        lowest = self._holds.lowest(log_id, position)
        # Create the file before this run publishes, so that a namesake which publishes meanwhile
        # includes this run.
        state = self._holds.state
        namesake = join_namesakes(state, log_id, self._name, self._run_id, position)
        begin = max(position, join(log, self._consumer(log_id, lowest)))
        self._logs[log.prefix] = _LogState(log, log_id, begin, namesake)
        return begin

    def committed(self, log: LogStore, position: int) -> None:
        """Record that Spark will not read below `position` again: 1 GET and 1 PUT if it publishes.

        The first call publishes at once: until then, the position of an earlier run holds the floor
        back.
        """
        if (state := self._logs.get(log.prefix)) is None:
            return
        state.position = max(state.position, position)
        if state.namesake is not None:
            state.namesake.move(state.position)
        boot_id = self._clock.boot_id()
        if state.boot_ms is None or is_old(self._clock, state.boot_ms, boot_id, self._interval_ms):
            self._publish(state)

    def catch_up(self) -> None:
        """Publish all positions, before the stream may end."""
        for state in self._logs.values():
            if state.position != state.published:
                self._publish(state)

    def _publish(self, state: _LogState) -> None:
        # Set the time also for a failed attempt: while the store is down each attempt takes long.
        state.boot_ms = self._clock.boot_ms()
        try:
            lowest = self._holds.lowest(state.log_id, state.position)
            position = min(lowest, self._lowest_of_namesakes(state))
            publish(state.log, self._consumer(state.log_id, position))
            state.published = state.position
        except SparkWalError as error:
            path = state.log.url
            name = self._name
            reason = str(error)
            events.emit(events.ConsumerNotPublished(path, name, state.position, reason))

    def _lowest_of_namesakes(self, state: _LogState) -> int:
        """The lowest position that a run of this name needs, as far as this run can read it.

        It includes all runs on this machine, and the position that a run on another machine has
        published since this run did. While two machines publish in turn, none publishes a higher
        position than the other, and the floor waits until one of them ends.
        """
        namesakes = state.namesake.others() if state.namesake else {}
        needed = min([state.position, *namesakes.values()])
        published = read(state.log, self._name)
        if published is None or published.run_id in {self._run_id, *namesakes}:
            return needed
        if published.log_id != state.log_id:
            raise InvalidLogError(
                f"{state.log.url} was recreated: {self._name} on {published.host} reads the log "
                f"{published.log_id}, this stream read {state.log_id}"
            )
        events.emit(
            events.ConsumerShared(state.log.url, self._name, published.host, published.position)
        )
        return min(needed, published.position)

    def _consumer(self, log_id: str, position: int) -> Consumer:
        now_ms = self._clock.now_ms()
        return Consumer(self._name, log_id, position, now_ms, self._host, self._run_id)
