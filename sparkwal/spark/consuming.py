"""A stream as a consumer of the logs that it reads; one without a name publishes nothing."""

from __future__ import annotations

from sparkwal.lifecycle.publishing import publisher
from sparkwal.options.reading import SourceOptions
from sparkwal.reading.log_range import LogRange


class Consuming:
    """One run of a stream."""

    def __init__(self, options: SourceOptions) -> None:
        self._publisher = publisher(options)

    def start(self, log: LogRange) -> int:
        """Where the stream begins, registered there."""
        start = log.start()
        return log.start() if self.join(log, start) else start

    def join(self, log: LogRange, start: int) -> bool:
        """Register as a consumer before anything is read from `start`. Returns whether the floor
        passed it before that was seen."""
        publisher = self._publisher
        if publisher is None or log.log_id is None or publisher.has_joined(log.log):
            return False
        passed = publisher.join(log.log, log.log_id, start) > start
        if passed:
            log.floor.look()
        return passed

    def committed(self, log: LogRange, position: int) -> None:
        """Spark will not ask for anything below `position` again."""
        if self._publisher is not None:
            self._publisher.committed(log.log, position)

    def stop(self) -> None:
        """The stream ends."""
        if self._publisher is not None:
            self._publisher.stop()
