"""Follows the records of a log, or of all logs under a path, and reports metrics of them.

A follower only reads: it writes no object and fences no writer.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Unpack

from sparkwal.errors import InvalidLogError, SparkWalError
from sparkwal.format.header import CommitHeader, SlotHeader, Txns
from sparkwal.lifecycle.consumers.consumer_list import ConsumerInfo, consumer_infos
from sparkwal.metrics import table
from sparkwal.metrics.prometheus import Prometheus, zero_counters
from sparkwal.options.keywords import SourceKeywords
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import CONSUMERS, TRIGGERS, SourceOptions
from sparkwal.options.store import refuse
from sparkwal.protocol import chain
from sparkwal.protocol.missing import AnotherLog
from sparkwal.protocol.recovery import Head, find_end
from sparkwal.protocol.slots import SlotRecord
from sparkwal.protocol.view import DamagePolicy
from sparkwal.reading.estimates import lag_ms
from sparkwal.reading.history import Follower
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.sequencers import logs_of
from sparkwal.store.base import LogStore

_logger = logging.getLogger("sparkwal")
# A log remembers so many of the queries that wrote to it. Spark's progress of a query is reported
# for the logs that remember it.
_MOST_QUERIES = 1000
# The backlog of a log that appears while it is followed: all its records are counted.
_ALL = 2**63


class LogMetrics:
    """Counts the new records of one log, and measures how far its readers and its table are.

    Args:
        backlog: how many of the newest existing records are counted too.
    """

    def __init__(self, log: LogRange, meter: Prometheus, backlog: int) -> None:
        self._log = log
        self._meter = meter
        self._backlog = backlog
        self.labels = table.labels_of(log.log.url)
        # The queries that committed, in the order of their last commits.
        self.queries: dict[str, None] = {}
        self._follower: Follower | None = None
        self._term = 0
        self._consumers: set[str] = set()
        zero_counters(meter, self.labels, "records")

    @property
    def exists(self) -> bool:
        """Whether the log existed at the last update."""
        return self._follower is not None

    def update(self, *, full: bool) -> Head | None:
        """Count the new records; if `full`, measure compaction too.

        Without new records this costs 1 GET, with them as many requests as a stream. A full update
        also checks that this is still the same log. It costs 2 LISTs and some GETs more.

        Returns:
            After a full update the head, or None without a log.

        Raises:
            AnotherLog: the log was recreated or deleted.
        """
        if not full:
            self._follow()
            return None
        head, gap = find_end(self._log.log, DamagePolicy(report=self._log.damage.report))
        log_id = head.live.header.log_id if head.live else None
        if self.exists and (log_id != self._log.log_id or gap < self._log.gap):
            raise AnotherLog(f"{self._log.log.url} is another log than before")
        self._follow()
        if head.live is None or log_id is None:
            return None
        self._measure_compaction(head, log_id)
        return head

    def _follow(self) -> None:
        if self._follower is None:
            gap = self._log.refresh()
            if self._log.live is None:
                self._backlog = _ALL
                return
            start = max(self._log.floor.current(), gap - self._backlog)
            term = self._log.live.header.term
            self._term = term if start == gap else 0
            self._meter.set(table.TERM, term, *self.labels)
            self._note_earlier_writers(self._log.live.header.txns)
            self._follower = Follower(self._log, start)
        for entry in self._follower.new(floor=False):
            if isinstance(entry, SlotRecord):
                self._count(entry.header)
        self._meter.set(table.POSITION, self._log.gap - 1, *self.labels)

    def _note_earlier_writers(self, txns: Txns) -> None:
        """Take over who wrote before, and when: they may never write again, which is an alert."""
        oldest_first = sorted(txns, key=lambda query_id: txns[query_id][1])
        self.queries = dict.fromkeys(oldest_first[-_MOST_QUERIES:])
        if oldest_first:
            newest_ms = txns[oldest_first[-1]][1]
            self._meter.set(table.LAST_COMMIT, newest_ms / 1000, *self.labels)

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

    @property
    def log(self) -> LogStore:
        """The log."""
        return self._log.log

    def report(self, consumers: Sequence[ConsumerInfo]) -> None:
        """Report how far the consumers of the log are."""
        meter, labels = self._meter, self.labels
        reported = set()
        for consumer in consumers:
            # Each read has a lease with another name: its series would only pile up.
            is_lease = consumer.expires_ms is not None
            if is_lease or not consumer.of_this_log:
                continue
            reported.add(consumer.name)
            of_consumer = (*labels, consumer.name)
            meter.set(table.CONSUMER_POSITION, consumer.position, *of_consumer)
            meter.set(table.CONSUMER_LAG, consumer.lag, *of_consumer)
            meter.set(table.CONSUMER_AGE, consumer.age_ms / 1000, *of_consumer)
            lag = None if consumer.lag_ms is None else consumer.lag_ms / 1000
            meter.set(table.CONSUMER_LAG_TIME, lag, *of_consumer)
            meter.set(table.CONSUMER_TABLE_FILES, consumer.table_files, *of_consumer)
        self._forget_consumers(self._consumers - reported)
        self._consumers = reported

    def _measure_compaction(self, head: Head, log_id: str) -> None:
        meter = self._meter
        labels = self.labels
        log = self._log.log
        record = chain.newest_record(log)
        state = record.log(log.name, log_id) if record else None
        meter.set(table.FLOOR, state.floor if state else 0, *labels)
        if record is None or state is None or not state.table:
            return
        meter.set(table.COMPACTED, state.cut, *labels)
        meter.set(table.COMPACTION_LAG, max(head.gap - state.cut, 0), *labels)
        lag = lag_ms(log, head, state.cut)
        meter.set(table.COMPACTION_LAG_TIME, None if lag is None else lag / 1000, *labels)
        open_for = time.time() - record.timestamp_ms / 1000 if state.is_open else 0.0
        meter.set(table.COMPACTION_OPEN, max(open_for, 0.0), *labels)
        meter.set(table.ROWS_ASIDE, state.rows_aside, *labels)
        if added := record.tables[state.table].added:
            meter.set(table.RANGE_VERSIONS, added.versions, *labels)
            meter.set(table.RANGE_FILES, added.files, *labels)
            meter.set(table.RANGE_BYTES, added.bytes, *labels)

    def _forget_consumers(self, names: set[str]) -> None:
        for metric in table.METRICS:
            if "consumer" in metric.more:
                for name in names:
                    self._meter.forget(metric, *self.labels, name)

    def end(self) -> None:
        """Remove the series of this log and of its consumers."""
        for metric in table.METRICS:
            if "records" in metric.sources and not metric.more:
                self._meter.forget(metric, *self.labels)
        self._forget_consumers(self._consumers)


class Following:
    """Follows one log or several, and reports them to one meter. Use it from one thread.

    Args:
        path: as for `sparkwal.Log`.
        backlog: how many of the newest existing records of each log are counted.
        on_damage: called with a log's name and its damage; by default the damage is logged.
        options: as for `sparkwal.Log`. With sequencers="*" all logs under the path are followed.

    Attributes:
        labels: the labels of the log at the path.
        scope: the labels of all that is followed.

    Raises:
        OptionError: an option is invalid, or is of use only to a read of rows.
    """

    def __init__(
        self,
        path: str,
        meter: Prometheus,
        *,
        backlog: int = 0,
        on_damage: Callable[[str, InvalidLogError], None] | None = None,
        **options: Unpack[SourceKeywords],
    ) -> None:
        parsed = from_keywords(SourceOptions, path, options)
        refuse(parsed, "is for reading rows", *TRIGGERS, *CONSUMERS, "lease")
        # Missing, damaged and collected records are left out; all others are counted.
        self._options = replace(parsed, fail_on_data_loss=False, on_corruption="fail")
        self._meter, self._backlog = meter, backlog
        self._root = open_log(self._options)
        self.labels = table.labels_of(self._root.url)
        several = table.Labels(self.labels.log, table.ALL)
        self.scope = several if parsed.sequencers else self.labels
        self._logs: dict[str, LogMetrics] = {}
        # The failures of the previous update and of this one: each is logged once.
        self._logged: set[str] = set()
        self._failures: set[str] = set()
        self._on_damage = on_damage or (lambda _, error: self._failed(str(error)))

    @property
    def has_log(self) -> bool:
        """Whether any log existed at the last update."""
        return any(log.exists for log in self._logs.values())

    def logs_written_by(self, query_id: str) -> list[LogMetrics]:
        """The logs that hold commits of this query."""
        return [log for log in self._logs.values() if query_id in log.queries]

    def update(self, *, full: bool = True) -> None:
        """Update the metrics of each log. A full update costs 2 or 3 requests for each consumer,
        and 1 LIST for those of each log.

        Args:
            full: measure consumers and compaction, and find new sequencers, too.

        Raises:
            InvalidLogError: a log is damaged. The other logs are updated all the same.
        """
        if full or not self._logs:
            self._find_logs()
        damage: list[InvalidLogError] = []
        heads: list[tuple[LogMetrics, Head]] = []
        for name, log in list(self._logs.items()):
            try:
                try:
                    head = log.update(full=full)
                except AnotherLog:
                    # The log was recreated or deleted, so the reported values are void.
                    log.end()
                    log = self._begin(name, _ALL)
                    head = log.update(full=full)
                if head is not None:
                    heads.append((log, head))
            except InvalidLogError as error:
                damage.append(error)
        logs = [(log.log, log.labels.sequencer, head) for log, head in heads]
        for (log, _), infos in zip(heads, consumer_infos(logs, None), strict=True):
            if isinstance(infos, InvalidLogError):
                damage.append(infos)
            else:
                log.report(infos)
        if damage:
            raise damage[0]

    def _find_logs(self) -> None:
        several = bool(self._options.sequencers)
        names = logs_of(self._root, self._options)
        for name in names:
            if name not in self._logs:
                self._begin(name, self._backlog)
        for name in self._logs.keys() - set(names):
            self._logs.pop(name).end()
        if several:
            self._backlog = _ALL

    def _begin(self, name: str, backlog: int) -> LogMetrics:
        log = LogRange(self._options, name, self._root, on_damage=partial(self._on_damage, name))
        self._logs[name] = LogMetrics(log, self._meter, backlog)
        return self._logs[name]

    def try_update(self, *, full: bool = True) -> None:
        """Update as `update` does; count an error and log it once. The next update tries again."""
        self._failures = set()
        try:
            self.update(full=full)
        except SparkWalError as error:
            self._failed(str(error))
        except Exception as error:
            self._failed(f"{type(error).__name__}: {error}")
        self._logged = self._failures

    def _failed(self, reason: str) -> None:
        self._meter.add(table.FOLLOW_ERRORS, 1, *self.labels)
        is_logged = reason in self._logged | self._failures
        self._failures.add(reason)
        if not is_logged:
            _logger.warning("the metrics of %s are out of date: %s", self.labels.log, reason)
