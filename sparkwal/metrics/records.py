"""Numbers from the records of a log, for whoever does not write it: reads, and never fences."""

from __future__ import annotations

import time
from dataclasses import replace

from sparkwal.format.header import CommitHeader, SlotHeader
from sparkwal.lifecycle.consumers import consumer_infos, lag_ms
from sparkwal.metrics import table
from sparkwal.metrics.meter import begin
from sparkwal.metrics.prometheus import Prometheus
from sparkwal.metrics.table import METRICS, labels_of
from sparkwal.options.open import open_log
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol import chain
from sparkwal.protocol.recovery import Head
from sparkwal.protocol.replay import AnotherLog
from sparkwal.protocol.slots import SlotRecord
from sparkwal.reading.history import Follower
from sparkwal.reading.log_range import LogRange, find_end
from sparkwal.reading.rows import PassedOver

# How many queries of a log are remembered, to know whose progress is this log's.
_MOST_QUERIES = 1000
_ALL = 2**63


class LogNumbers:
    """Counts the new records of one log, and reports how far its readers and its table are.

    Args:
        options: of reading, of one log.
        backlog: how many of the newest records that are there already are counted at the start.
        passed_over: gets each record that is damaged; the others are counted.

    Attributes:
        queries: the ids of the queries whose commits were seen, the newest last.
    """

    def __init__(
        self,
        options: SourceOptions,
        meter: Prometheus,
        backlog: int = 0,
        passed_over: PassedOver | None = None,
    ) -> None:
        # What is missing, or was collected, is not counted; the rest is.
        self._options = replace(options, fail_on_data_loss=False)
        self._log = open_log(options)
        self._meter, self._backlog = meter, backlog
        self._passed_over = passed_over
        self.labels = labels_of(self._log.url)
        self.queries: dict[str, None] = {}
        self._follower: Follower | None = None
        self._term = 0
        self._consumers: set[str] = set()
        begin(meter, self.labels, "records")

    @property
    def is_there(self) -> bool:
        """Whether there was a log at the last look."""
        return self._follower is not None

    def look(self) -> None:
        """Count what is new: 1 GET where nothing is, else as many as a stream that reads on.

        Raises StoreUnavailableError, InvalidLogError, OptionError.
        """
        if self._follower is None and not self._begin():
            return
        try:
            self._follow()
        except AnotherLog:
            self._forget()
            if self._begin():
                self._follow()

    def _follow(self) -> None:
        assert self._follower is not None
        for found in self._follower.new(floor=False):
            if isinstance(found, SlotRecord):
                self._count(found.header)
        self._meter.set(table.POSITION, self._follower.log.gap - 1, *self.labels)

    def look_around(self) -> None:
        """Also how far consumers and compaction are, and whether this is still the log it was.

        3 LISTs and some GETs, and 2 requests or 3 for each consumer. Raises as `look`.
        """
        head, gap = find_end(self._log, passed_over=self._passed_over or (lambda error: None))
        log_id = head.live.header.log_id if head.live else None
        if self._follower is not None:
            known = self._follower.log
            if log_id != known.log_id or gap < known.gap:
                self._forget()
        self.look()
        if head.live is not None and log_id is not None:
            self._measure_consumers(head)
            self._measure_compaction(head, log_id)

    def _begin(self) -> bool:
        options, passed_over = self._options, self._passed_over
        found = LogRange(options, options.sequencer, self._log, passed_over=passed_over)
        gap = found.look()
        if found.head is None or found.head.live is None:
            # All of a log that comes later is new.
            self._backlog = _ALL
            return False
        first = found.floor.current()
        start = max(first, gap - self._backlog)
        self._term = found.head.live.header.term if start == gap else 0
        self._meter.set(table.TERM, found.head.live.header.term, *self.labels)
        self._follower = Follower(found, start)
        return True

    def _count(self, header: SlotHeader) -> None:
        meter, labels = self._meter, self.labels
        if header.term > self._term:
            if self._term or header.position == 0:
                meter.add(table.TAKEOVERS, 1, *labels)
            self._term = header.term
            meter.set(table.TERM, header.term, *labels)
        if not isinstance(header, CommitHeader):
            return
        put_ms, last_put_ms = (header.metric(n) for n in ("put_ms", "last_put_ms"))
        meter.add(table.COMMITS, 1, *labels)
        meter.add(table.ROWS, header.rows, *labels)
        meter.add(table.WRITTEN, header.bytes, *labels)
        meter.add(table.OBJECTS, 1 + len(header.batches), *labels)
        meter.add(table.RETRIES, header.metric("retries") or 0, *labels)
        meter.set(table.LAST_COMMIT, header.timestamp_ms / 1000, *labels)
        if last_put_ms is not None:
            meter.observe(table.PUT, last_put_ms / 1000, *labels)
        if header.batches and put_ms is not None:
            meter.observe(table.DATA_WRITE, put_ms / 1000, *labels)
        meter.set(table.IN_FLIGHT, header.metric("in_flight") or 1, *labels)
        self.queries.pop(header.query_id, None)
        self.queries[header.query_id] = None
        if len(self.queries) > _MOST_QUERIES:
            del self.queries[next(iter(self.queries))]

    def _measure_consumers(self, head: Head) -> None:
        meter, labels = self._meter, self.labels
        seen = set()
        for each in consumer_infos(self._log, labels.sequencer, head, None):
            # A lease has a new name for every read, and one of another log counts for nothing.
            if each.expires_ms is not None or not each.of_this_log:
                continue
            seen.add(each.name)
            of_consumer = (*labels, each.name)
            meter.set(table.CONSUMER_POSITION, each.position, *of_consumer)
            meter.set(table.CONSUMER_LAG, each.lag, *of_consumer)
            meter.set(table.CONSUMER_AGE, each.age_ms / 1000, *of_consumer)
            if each.lag_ms is None:
                meter.forget(table.CONSUMER_LAG_TIME, *of_consumer)
            else:
                meter.set(table.CONSUMER_LAG_TIME, each.lag_ms / 1000, *of_consumer)
        for name in self._consumers - seen:
            self._forget_consumer(name)
        self._consumers = seen

    def _measure_compaction(self, head: Head, log_id: str) -> None:
        meter, labels = self._meter, self.labels
        state = chain.look(self._log, log_id)
        meter.set(table.FLOOR, state.floor if state else 0, *labels)
        if state is None or state.target is None:
            return
        meter.set(table.COMPACTED, state.cut, *labels)
        meter.set(table.COMPACTION_LAG, max(head.gap - state.cut, 0), *labels)
        lag = lag_ms(self._log, head, state.cut)
        if lag is not None:
            meter.set(table.COMPACTION_LAG_TIME, lag / 1000, *labels)
        open_for = time.time() - state.timestamp_ms / 1000 if state.is_open else 0.0
        meter.set(table.COMPACTION_OPEN, max(open_for, 0.0), *labels)

    def _forget_consumer(self, name: str) -> None:
        for metric in METRICS:
            if "consumer" in metric.more:
                self._meter.forget(metric, *self.labels, name)

    def end(self) -> None:
        """Nothing is reported of this log any more."""
        for metric in METRICS:
            if "records" in metric.sources and not metric.more:
                self._meter.forget(metric, *self.labels)
        for name in self._consumers:
            self._forget_consumer(name)

    def _forget(self) -> None:
        """The log was recreated, or is gone: nothing that was reported holds for what comes."""
        self.end()
        self._follower, self._term, self._consumers = None, 0, set()
        self._backlog = _ALL
        self.queries.clear()
        begin(self._meter, self.labels, "records")
