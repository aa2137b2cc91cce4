"""Follows a log, or all logs under a path, by their records: it reads, and never fences."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from sparkwal.errors import InvalidLogError, SparkWalError
from sparkwal.format.header import CommitHeader, SlotHeader
from sparkwal.lifecycle.consumers import consumer_infos, lag_ms
from sparkwal.metrics import table
from sparkwal.metrics.prometheus import Prometheus, begin
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import CONSUMERS, TRIGGERS, SourceOptions
from sparkwal.options.store import refuse
from sparkwal.protocol import chain
from sparkwal.protocol.recovery import Head
from sparkwal.protocol.replay import AnotherLog
from sparkwal.protocol.slots import SlotRecord
from sparkwal.reading.history import Follower
from sparkwal.reading.log_range import LogRange, find_end
from sparkwal.reading.sequencers import all_logs

_logger = logging.getLogger("sparkwal")
# How many queries of a log are remembered, to know whose progress is this log's.
_MOST_QUERIES = 1000
# Of a log that comes later all is new.
_ALL = 2**63


class LogNumbers:
    """Counts the new records of one log, as long as it is the same, and reports how far its readers
    and its table are. `backlog` is how many of the newest that are there already are counted."""

    def __init__(self, log: LogRange, meter: Prometheus, backlog: int) -> None:
        self._log = log
        self._meter = meter
        self._backlog = backlog
        self.labels = table.labels_of(log.log.url)
        # Whose commits were seen, the newest last.
        self.queries: dict[str, None] = {}
        self._follower: Follower | None = None
        self._term = 0
        self._consumers: set[str] = set()
        begin(meter, self.labels, "records")

    @property
    def is_there(self) -> bool:
        return self._follower is not None

    def look(self, *, around: bool) -> None:
        """Count what is new: 1 GET where nothing is, else as many as a stream that reads on. If
        `around`, also how far consumers and compaction are, and whether this is still the log it
        was: 3 LISTs and some GETs, and 2 requests or 3 for each consumer. Raises AnotherLog."""
        if not around:
            return self._follow()
        head, gap = find_end(self._log.log, on_damage=self._log.damage.report)
        log_id = head.live.header.log_id if head.live else None
        if self.is_there and (log_id != self._log.log_id or gap < self._log.gap):
            raise AnotherLog(f"{self._log.log.url} is another log than before")
        self._follow()
        if head.live is not None and log_id is not None:
            self._measure_consumers(head)
            self._measure_compaction(head, log_id)

    def _follow(self) -> None:
        if self._follower is None:
            gap = self._log.look()
            if self._log.live is None:
                self._backlog = _ALL
                return
            start = max(self._log.floor.current(), gap - self._backlog)
            term = self._log.live.header.term
            self._term = term if start == gap else 0
            self._meter.set(table.TERM, term, *self.labels)
            self._follower = Follower(self._log, start)
        for found in self._follower.new(floor=False):
            if isinstance(found, SlotRecord):
                self._count(found.header)
        self._meter.set(table.POSITION, self._log.gap - 1, *self.labels)

    def _count(self, header: SlotHeader) -> None:
        meter, labels = self._meter, self.labels
        if header.term > self._term:
            if self._term or header.position == 0:
                meter.add(table.TAKEOVERS, 1, *labels)
            self._term = header.term
            meter.set(table.TERM, header.term, *labels)
        if not isinstance(header, CommitHeader):
            return
        put_ms, last_put_ms = header.metric("put_ms"), header.metric("last_put_ms")
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
        for each in consumer_infos(self._log.log, labels.sequencer, head, None):
            # A lease has a new name for every read, and one of another log counts for nothing.
            if each.expires_ms is not None or not each.of_this_log:
                continue
            seen.add(each.name)
            of_consumer = (*labels, each.name)
            meter.set(table.CONSUMER_POSITION, each.position, *of_consumer)
            meter.set(table.CONSUMER_LAG, each.lag, *of_consumer)
            meter.set(table.CONSUMER_AGE, each.age_ms / 1000, *of_consumer)
            lag = None if each.lag_ms is None else each.lag_ms / 1000
            meter.set(table.CONSUMER_LAG_TIME, lag, *of_consumer)
        self._forget_consumers(self._consumers - seen)
        self._consumers = seen

    def _measure_compaction(self, head: Head, log_id: str) -> None:
        meter = self._meter
        labels = self.labels
        log = self._log.log
        state = chain.look(log, log_id)
        meter.set(table.FLOOR, state.floor if state else 0, *labels)
        if state is None or state.target is None:
            return
        meter.set(table.COMPACTED, state.cut, *labels)
        meter.set(table.COMPACTION_LAG, max(head.gap - state.cut, 0), *labels)
        lag = lag_ms(log, head, state.cut)
        meter.set(table.COMPACTION_LAG_TIME, None if lag is None else lag / 1000, *labels)
        open_for = time.time() - state.timestamp_ms / 1000 if state.is_open else 0.0
        meter.set(table.COMPACTION_OPEN, max(open_for, 0.0), *labels)

    def _forget_consumers(self, names: set[str]) -> None:
        for metric in table.METRICS:
            if "consumer" in metric.more:
                for name in names:
                    self._meter.forget(metric, *self.labels, name)

    def end(self) -> None:
        """Nothing is reported of this log any more."""
        for metric in table.METRICS:
            if "records" in metric.sources and not metric.more:
                self._meter.forget(metric, *self.labels)
        self._forget_consumers(self._consumers)


class Following:
    """The logs that are followed; one thread uses it. Raises OptionError.

    Args:
        path, options: as for `sparkwal.Log`; with sequencers="*" all logs under the path.
        backlog: how many of the newest records of each log are counted at the start.
        passed_over: gets the name of a log and its damage; by default the logger does.
    """

    def __init__(
        self,
        path: str,
        meter: Prometheus,
        *,
        backlog: int = 0,
        passed_over: Callable[[str, InvalidLogError], None] | None = None,
        **options: object,
    ) -> None:
        given = from_keywords(SourceOptions, path, options)
        refuse(given, "is for reading rows", *TRIGGERS, *CONSUMERS, "lease")
        # What is missing, damaged or was collected is not counted; the rest is.
        self._options = replace(given, fail_on_data_loss=False, on_corruption="fail")
        self._meter, self._backlog = meter, backlog
        self._root = open_log(self._options)
        self.labels = table.labels_of(self._root.url)
        self.counted = table.Labels(self.labels.log, table.ALL) if given.sequencers else self.labels
        self._logs: dict[str, LogNumbers] = {}
        # What the look before failed with, and this one.
        self._logged: set[str] = set()
        self._failures: set[str] = set()
        self._passed_over = passed_over or (lambda _, error: self._failed(str(error)))

    @property
    def is_there(self) -> bool:
        """Whether a log was there at the last look."""
        return any(log.is_there for log in self._logs.values())

    def wrote(self, query_id: str) -> list[LogNumbers]:
        """The logs that hold commits of this query."""
        return [log for log in self._logs.values() if query_id in log.queries]

    def look(self, *, around: bool = True) -> None:
        """One look at each log; if `around`, at consumers, compaction and new sequencers too."""
        if around or not self._logs:
            self._find()
        damaged: list[InvalidLogError] = []
        for name, log in list(self._logs.items()):
            try:
                try:
                    log.look(around=around)
                except AnotherLog:
                    # It was recreated, or is gone: nothing that was reported holds for what comes.
                    log.end()
                    self._begin(name, _ALL).look(around=around)
            except InvalidLogError as error:
                damaged.append(error)
        if damaged:
            raise damaged[0]

    def _find(self) -> None:
        several = bool(self._options.sequencers)
        names = all_logs(self._root) if several else [self._options.sequencer]
        for name in names:
            if name not in self._logs:
                self._begin(name, self._backlog)
        for name in self._logs.keys() - set(names):
            self._logs.pop(name).end()
        if several:
            self._backlog = _ALL

    def _begin(self, name: str, backlog: int) -> LogNumbers:
        damaged = partial(self._passed_over, name)
        log = LogRange(self._options, name, self._root, on_damage=damaged)
        self._logs[name] = LogNumbers(log, self._meter, backlog)
        return self._logs[name]

    def try_look(self, *, around: bool = True) -> None:
        """As `look`; what fails is counted, logged once, and tried again."""
        self._failures = set()
        try:
            self.look(around=around)
        except SparkWalError as error:
            self._failed(str(error))
        except Exception as error:
            self._failed(f"{type(error).__name__}: {error}")
        self._logged = self._failures

    def _failed(self, reason: str) -> None:
        self._meter.add(table.FOLLOW_ERRORS, 1, *self.labels)
        known = reason in self._logged | self._failures
        self._failures.add(reason)
        if not known:
            _logger.warning("the numbers of %s are not new: %s", self.labels.log, reason)
