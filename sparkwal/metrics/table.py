"""All metrics: their names, labels and meaning."""

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sparkwal.format.keys import ROOT

# The value of the label `sequencer` for all sequencers of a path together.
ALL = "*"


class Labels(NamedTuple):
    """The labels that name a log: the URL of its path, without secrets, and its sequencer."""

    log: str
    sequencer: str


def labels_of(url: str) -> Labels:
    """The labels of the log at `url` (a `LogStore.url`); a sequencer's URL lies under the path."""
    match = re.fullmatch(r"(.*[^/])/sequencers/([^/]+)", url)
    return Labels(*match.groups()) if match else Labels(url, ROOT)


Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: the name without the prefix `sparkwal_` and a counter's suffix `_total`.
        help: the meaning, as Prometheus shows it.
        sources: the parts that report it: `appender`, `lifecycle` (a process that compacts or
            collects), `http` (jobs/http_ingest.py), `records` (a follower of the log's records),
            `stream` (a listener of Spark).
        more: labels after `log` and `sequencer`.
    """

    name: str
    kind: Kind
    help: str
    sources: tuple[str, ...]
    more: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """The name that Prometheus shows."""
        return f"sparkwal_{self.name}" + ("_total" if self.kind == "counter" else "")

    @property
    def labels(self) -> tuple[str, ...]:
        return (*Labels._fields, *self.more)


METRICS: list[Metric] = []


def _metric(name: str, kind: Kind, help: str, sources: str, *more: str) -> Metric:
    metric = Metric(name, kind, help, tuple(sources.split()), more)
    METRICS.append(metric)
    return metric


# Writes.
COMMITS = _metric("commits", "counter", "Commits that became durable.", "appender records")
ROWS = _metric("rows", "counter", "Rows of these commits.", "appender records")
WRITTEN = _metric("written_bytes", "counter", "Stored bytes of these rows.", "appender records")
OBJECTS = _metric(
    "objects",
    "counter",
    "Objects of these commits: one record each, and a data object for every partition whose rows "
    "the record does not hold. Each is one PUT, unless it is large.",
    "records",
)
PUT = _metric(
    "put_seconds",
    "histogram",
    "Duration of the PUT of a commit record, with its retries.",
    "appender records",
)
DATA_WRITE = _metric(
    "data_write_seconds",
    "histogram",
    "Time from the first row to the stored data object, for the slowest task of a Spark commit.",
    "records",
)
ADD_BATCH = _metric(
    "add_batch_seconds",
    "histogram",
    "Time that Spark took to run and commit a microbatch of this log.",
    "stream",
)
RETRIES = _metric(
    "retries", "counter", "Requests that failed and were sent again.", "appender records"
)
HEDGED = _metric("hedged", "counter", "Requests sent a second time: late.", "appender")
IN_FLIGHT = _metric(
    "in_flight",
    "gauge",
    "Records sent and not acknowledged; a follower reports the number at the newest record.",
    "appender records",
)
POSITION = _metric("durable_position", "gauge", "The newest durable position.", "appender records")
LAST_COMMIT = _metric(
    "last_commit_timestamp_seconds",
    "gauge",
    "Time of the newest commit, by its writer's clock.",
    "records",
)
# Leaders.
TERM = _metric("term", "gauge", "The term of the newest record.", "records")
TAKEOVERS = _metric(
    "takeovers", "counter", "New terms: a writer took the log over or restarted.", "records"
)
FENCED = _metric(
    "fenced", "counter", "Writers of this process that were fenced.", "appender stream"
)
UP = _metric(
    "up",
    "gauge",
    "1 while the appender accepts rows, or the query that writes to the log runs; 0 after its end.",
    "appender stream",
)
# One appender.
BUFFERED = _metric("buffered_bytes", "gauge", "Bytes of accepted rows not sent yet.", "appender")
BUFFER_LIMIT = _metric(
    "buffer_limit_bytes", "gauge", "maxBufferedBytes: appends wait above it.", "appender"
)
WAITING = _metric(
    "unacknowledged_appends", "gauge", "Appends accepted and not acknowledged yet.", "appender"
)
SEQUENCE = _metric(
    "last_sequence",
    "gauge",
    "The newest durable sequence; with a journal, the newest sequence in the journal.",
    "appender",
)
REJECTED = _metric(
    "rejected", "counter", "Appends rejected: a value does not fit the schema.", "appender"
)
BACK_PRESSURE = _metric(
    "back_pressure",
    "counter",
    "Times that the journal was full, or the log at a limit of its size: appends wait, or soon "
    "will.",
    "appender",
)
EVENTS = _metric("events", "counter", "Events of the appender, by name.", "appender", "name")
# Its journal.
JOURNAL_BYTES = _metric("journal_bytes", "gauge", "Bytes of the journal's files.", "appender")
JOURNAL_LIMIT = _metric(
    "journal_limit_bytes",
    "gauge",
    "Bytes that appends may fill: journalMaxBytes minus one file.",
    "appender",
)
JOURNAL_WAITING = _metric(
    "journal_waiting", "gauge", "Appends that only the journal holds.", "appender"
)
JOURNAL_LOST = _metric(
    "journal_lost",
    "gauge",
    "Appends that damage destroyed, or may have: send them again.",
    "appender",
)
STORE_AWAY = _metric(
    "store_away",
    "gauge",
    "1 while the store does not answer and the journal still accepts rows.",
    "appender",
)
# HTTP before an appender.
REQUESTS = _metric("requests", "counter", "Appends over HTTP, by status.", "http", "status")
BODY_BYTES = _metric("body_bytes", "counter", "Bytes of bodies answered with 200 or 202.", "http")
ANSWERED_ROWS = _metric("answered_rows", "counter", "Rows in these bodies.", "http")
PENDING_BODIES = _metric("pending_body_bytes", "gauge", "Bytes of bodies not parsed yet.", "http")
APPEND = _metric("append_seconds", "histogram", "Time from a request to such an answer.", "http")
# Compaction and collection.
FLOOR = _metric("floor_position", "gauge", "Positions below may be deleted.", "records lifecycle")
COMPACTED = _metric(
    "compacted_position", "gauge", "Positions below are in the table.", "records lifecycle"
)
COMPACTION_LAG = _metric(
    "compaction_lag_positions",
    "gauge",
    "Positions that are not in the table yet, for a log with a table.",
    "records",
)
COMPACTION_LAG_TIME = _metric(
    "compaction_lag_seconds",
    "gauge",
    "Time from the oldest record that is not in the table to the newest record.",
    "records",
)
COMPACTION_OPEN = _metric(
    "compaction_open_seconds",
    "gauge",
    "Time since a range was promised to the table and not confirmed; 0: no range is open.",
    "records",
)
ROWS_ASIDE = _metric(
    "rows_aside",
    "gauge",
    "Rows that the table refused and that stepped aside into its table of refused rows.",
    "records",
)
# Of the last range that is done. Several logs may share it.
RANGE_VERSIONS = _metric(
    "range_versions",
    "gauge",
    "Commits (snapshots) that the last range added to the table and to those beside it.",
    "records lifecycle",
)
RANGE_FILES = _metric(
    "range_files",
    "gauge",
    "Data files that the last range added to them.",
    "records lifecycle",
)
RANGE_BYTES = _metric("range_bytes", "gauge", "Bytes of these files.", "records lifecycle")
COMPACTIONS = _metric("compactions", "counter", "Ranges confirmed in the table.", "lifecycle")
COMPACTION_RETRIES = _metric(
    "compaction_retries",
    "counter",
    "Ranges tried again: another writer of the table committed first.",
    "lifecycle",
)
COMPACTION_SUSPENDED = _metric(
    "compaction_suspended", "counter", "Times that compaction stopped with an error.", "lifecycle"
)
COLLECTED_OBJECTS = _metric(
    "collected_objects", "counter", "Objects deleted below the floor.", "lifecycle"
)
COLLECTED_BYTES = _metric(
    "collected_bytes", "counter", "Bytes of these deleted objects.", "lifecycle"
)
# Readers with the option `consumer`.
CONSUMER_POSITION = _metric(
    "consumer_position",
    "gauge",
    "The next position to read, as the consumer published it last.",
    "records",
    "consumer",
)
CONSUMER_LAG = _metric(
    "consumer_lag_positions",
    "gauge",
    "Positions from that position to the end of the log.",
    "records",
    "consumer",
)
CONSUMER_LAG_TIME = _metric(
    "consumer_lag_seconds",
    "gauge",
    "Time from the record at that position to the newest record.",
    "records",
    "consumer",
)
CONSUMER_AGE = _metric(
    "consumer_age_seconds",
    "gauge",
    "Time since the consumer published last, by the store's clock.",
    "records",
    "consumer",
)
CONSUMER_TABLE_FILES = _metric(
    "consumer_table_files",
    "gauge",
    "Files of the table that a consumer has to read before the log, as it published last.",
    "records",
    "consumer",
)
# The follower and the listener themselves.
FOLLOW_ERRORS = _metric(
    "follow_errors",
    "counter",
    "Failed updates: the store does not answer, or an object is damaged.",
    "records",
)
DROPPED = _metric(
    "listener_dropped",
    "counter",
    "Events of Spark dropped because too many earlier ones waited.",
    "stream",
)
