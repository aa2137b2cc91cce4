"""Publishes the positions of a stream: when it starts, and at intervals when it commits.

Spark tells a source of the end of a microbatch only when the next one begins. Meanwhile it asks
what follows. That shows that it has committed the microbatch, unless it tracks progress
asynchronously.

A late or lost publication only delays collection, so a failure is a warning. But a stream does not
start before it is registered.
"""

import socket
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sparkwal import events
from sparkwal.errors import InvalidLogError, SparkWalError
from sparkwal.format.consumer_record import Consumer, LogPosition
from sparkwal.lifecycle.consumers.namesakes import Namesake, join_namesakes
from sparkwal.lifecycle.consumers.objects import ConsumerObject, join, update, with_lower
from sparkwal.protocol.clock import SYSTEM, Clock, is_old
from sparkwal.protocol.holds import Holds
from sparkwal.store.base import LogStore


@dataclass
class _LogState:
    """One log of the stream.

    Attributes:
        position: the first position that the stream still needs.
        is_released: the stream said so after it joined. Before, the position of an earlier run
            holds the floor back.
        published: the position that this run published last after that, or tried to.
    """

    log_id: str
    position: int
    is_released: bool = False
    published: int | None = None


class Publisher:
    """One run of a stream as a consumer of each log that it reads.

    A stream of one log has its object in that log. A stream of all logs has one object at the path;
    `protect_new_logs` begins it.

    Args:
        name: the consumer's name, or "" for a stream that is no consumer.
        interval_ms: the least time between two publications.
        holds: the positions from which queries of this machine would read again.
        clock: replaces the system's clock.

    Attributes:
        table_files: the number of files of the table to read before the logs, or None.
    """

    def __init__(self, name: str, interval_ms: int, holds: Holds, clock: Clock = SYSTEM) -> None:
        self._name = name
        self._interval_ms = interval_ms
        self._holds = holds
        self._clock = clock
        self.table_files: int | None = None
        self._published_files: int | None = None
        self._host = socket.gethostname()
        self._run_id = uuid.uuid4().hex
        self._logs: dict[str, _LogState] = {}
        self._stored: ConsumerObject | None = None
        self._namesake: Namesake | None = None
        # The time of the last publication, on the boot-time clock.
        self._boot_ms: int | None = None
        # The positions that Spark committed last, and the ends of the microbatch that it planned
        # last.
        self._told: Mapping[str, int] = {}
        self._planned: tuple[Mapping[str, int], Mapping[str, int]] | None = None
        self._is_asynchronous = False
        # The positions after which Spark asks, and the time when it first asked.
        self._asked: Mapping[str, int] = {}
        self._asked_ms = 0

    def protect_new_logs(self, root: LogStore) -> None:
        """Protect logs under a path that this stream has not seen yet: 1 GET and 1 PUT every
        `interval_ms`.

        Call it before the logs are listed. The positions that were published under the name stay in
        force.
        """
        if not self._name:
            return
        if self._stored is not None:
            if self._is_due():
                self._publish(self._stored)
            return
        stored = ConsumerObject(root, self._name, is_of_all=True)
        self._enter(f"{root.identity}\0*", {})
        update(stored, lambda published: self._lowest(published, {}))
        self._boot_ms = self._clock.boot_ms()
        self._stored = stored

    def join(self, logs: Sequence[tuple[LogStore, str | None, int]]) -> dict[str, int]:
        """Register before the first read of logs, once for each log.

        Args:
            logs: each log with its id, or None without a log, and the first position to read.

        Returns:
            The positions at which the stream may begin, by the names of the logs; see
            `consumers.join`.
        """
        begins = {log.name: position for log, _, position in logs}
        new = {
            log.name: _LogState(log_id, position)
            for log, log_id, position in logs
            if self._name and log_id is not None and log.name not in self._logs
        }
        if not new:
            return begins
        stored = self._stored or ConsumerObject(logs[0][0], self._name)
        after = {**self._logs, **new}
        # Create the file before this run publishes, so that a namesake which publishes meanwhile
        # includes this run.
        if self._stored is None:
            (state,) = new.values()
            self._enter(state.log_id, _positions(after))
        elif self._namesake is not None:
            self._namesake.move(_positions(after))
        starts = {name: state.position for name, state in new.items()}
        begins |= join(stored, starts, lambda published: self._lowest(published, after))
        for name, state in new.items():
            state.position = begins[name]
        self._logs = after
        self._stored = stored
        return begins

    def committed(self, positions: Mapping[str, int]) -> None:
        """Record that Spark will not read below these positions again: 1 GET and 1 PUT if it
        publishes.

        The first call for a log publishes at once: until then, the position of an earlier run holds
        the floor back.

        Args:
            positions: the positions by the names of the logs.
        """
        self._told = positions
        self._release(positions)

    def planned(self, start: Mapping[str, int], end: Mapping[str, int]) -> None:
        """Record that Spark plans a microbatch between these positions."""
        is_next = self._planned not in (None, (start, end)) and start != end
        # SAFETY(told-before-planned) §10: if Spark plans a microbatch and has not told of the last
        # one, it tracks progress asynchronously
        if is_next and self._told != start:
            self._is_asynchronous = True
        self._planned = start, end

    def asked(self, positions: Mapping[str, int]) -> None:
        """Record that Spark asks what follows these positions, and gets nothing.

        If it asks for an interval, the microbatch that ended there is committed. It costs 1 GET and
        1 PUT if this publishes.
        """
        now_ms, boot_id = self._clock.boot_ms(), self._clock.boot_id()
        if positions != self._asked:
            self._asked, self._asked_ms = positions, now_ms
        # Of a run's first microbatch nothing shows how Spark tracks progress. In both ways it is
        # committed an interval later.
        is_old_enough = is_old(self._clock, self._asked_ms, boot_id, self._interval_ms)
        is_of_last = self._planned is not None and self._planned[1] == positions
        # SAFETY(asked-for-an-interval) §10: without a later commit, only what Spark must have
        # committed counts as such
        if not is_old_enough or not is_of_last or self._is_asynchronous:
            return
        joined = [(self._logs[name], at) for name, at in positions.items() if name in self._logs]
        is_new = any(state.position < at or not state.is_released for state, at in joined)
        is_published = self._is_published(state for state, _ in joined)
        if is_new or (not is_published and self._is_due()):
            self._release(positions)

    def _release(self, positions: Mapping[str, int]) -> None:
        joined = {name: state for name, state in self._logs.items() if name in positions}
        if not joined or self._stored is None:
            return
        is_first = not all(state.is_released for state in joined.values())
        for name, state in joined.items():
            state.position = max(state.position, positions[name])
            state.is_released = True
        if self._namesake is not None:
            self._namesake.move(_positions(self._logs))
        if is_first or self._is_due():
            self._publish(self._stored)

    def _is_published(self, states: Iterable[_LogState]) -> bool:
        """Whether a consumer record has these positions and the number of files."""
        has_files = self.table_files == self._published_files
        return has_files and all(state.position == state.published for state in states)

    def catch_up(self) -> None:
        """Publish all positions, before the stream may end."""
        states = self._logs.values()
        if self._stored is None or self._is_published(states):
            return
        for state in states:
            state.is_released = True
        self._publish(self._stored)

    def _is_due(self) -> bool:
        before, boot_id = self._boot_ms, self._clock.boot_id()
        return before is None or is_old(self._clock, before, boot_id, self._interval_ms)

    def _enter(self, log: str, positions: Mapping[str, int]) -> None:
        state = self._holds.state
        self._namesake = join_namesakes(state, log, self._name, self._run_id, positions)

    def _publish(self, stored: ConsumerObject) -> None:
        # Set the time also for a failed attempt: while the store is down each attempt takes long.
        self._boot_ms = self._clock.boot_ms()
        try:
            update(stored, lambda published: self._lowest(published, self._logs, stored))
        except SparkWalError as error:
            lowest = min((state.position for state in self._logs.values()), default=0)
            path = stored.log.url
            events.emit(events.ConsumerNotPublished(path, self._name, lowest, str(error)))
            return
        self._published_files = self.table_files
        for state in self._logs.values():
            if state.is_released:
                state.published = state.position

    def _lowest(
        self,
        published: Consumer | None,
        logs: Mapping[str, _LogState],
        reported: ConsumerObject | None = None,
    ) -> Consumer:
        """The lowest positions that a run of this name needs, as far as this run can read them.

        They include all runs on this machine, and the positions that a run on another machine has
        published since this run did. While two machines publish in turn, none publishes a higher
        position than the other, and the floors wait until one of them ends.

        Args:
            published: the published positions.
            logs: the logs of this run. Before it joins one, the published positions stay.
            reported: their object, to report a run on another machine.
        """
        needed = self._holds.lowest_of(_positions(logs))
        namesakes = self._namesake.others() if self._namesake else {}
        for positions in namesakes.values():
            for log_id in needed.keys() & positions.keys():
                needed[log_id] = min(needed[log_id], positions[log_id])
        own = {name: LogPosition(log.log_id, needed[log.log_id]) for name, log in logs.items()}
        if published is None:
            return self._consumer(own)
        if not logs:
            return self._consumer(published.logs)
        if published.run_id in {self._run_id, *namesakes}:
            waiting = [name for name, log in logs.items() if not log.is_released]
            return with_lower(self._consumer(own), published, waiting)
        if reported is not None:
            self._report_shared(reported, published)
        return with_lower(self._consumer(own), published, logs)

    def _report_shared(self, stored: ConsumerObject, published: Consumer) -> None:
        """Report that another machine has published under this name.

        Raises:
            InvalidLogError: it reads another log at one of the paths.
        """
        shared = self._logs.keys() & published.logs.keys()
        for name in shared:
            own, other = self._logs[name], published.logs[name]
            if other.log_id != own.log_id:
                raise InvalidLogError(
                    f"{stored.log.root.sequencer(name).url} was recreated: {self._name} on "
                    f"{published.host} reads the log {other.log_id}, this stream read {own.log_id}"
                )
        if shared:
            lowest = min(published.logs[name].position for name in shared)
            path = stored.log.url
            events.emit(events.ConsumerShared(path, self._name, published.host, lowest))

    def _consumer(self, logs: Mapping[str, LogPosition]) -> Consumer:
        now_ms = self._clock.now_ms()
        files = self.table_files
        return Consumer(self._name, logs, now_ms, self._host, self._run_id, table_files=files)


def _positions(logs: Mapping[str, _LogState]) -> dict[str, int]:
    """The positions by the ids of the logs. A copy of a log has the same id."""
    positions: dict[str, int] = {}
    for log in logs.values():
        positions[log.log_id] = min(log.position, positions.get(log.log_id, log.position))
    return positions
