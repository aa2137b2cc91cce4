"""All metrics: their names, labels and meaning. Whatever reports one takes it from here."""

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sparkwal.format.keys import ROOT

# As a sequencer: every one of the log.
ALL = "*"


class Labels(NamedTuple):
    """Which log: the URL of the path, which holds no secret, and the log's name under it."""

    log: str
    sequencer: str


def labels_of(url: str) -> Labels:
    """Of the log at `LogStore.url`; a sequencer lies under the path."""
    match = re.fullmatch(r"(.*[^/])/sequencers/([^/]+)", url)
    return Labels(*match.groups()) if match else Labels(url, ROOT)


Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: Prometheus' name, with its unit; `sparkwal_` comes before it, `_total` after a
            counter's.
        sources: who reports it: `appender`, `lifecycle` (the process that compacts or collects),
            `http` (jobs/http_ingest.py), `records` (who follows a log), `stream` (a listener).
        more: labels after `log` and `sequencer`.
    """

    name: str
    kind: Kind
    help: str
    sources: tuple[str, ...]
    more: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """As Prometheus shows it."""
        return f"sparkwal_{self.name}" + ("_total" if self.kind == "counter" else "")

    @property
    def labels(self) -> tuple[str, ...]:
        return (*Labels._fields, *self.more)


METRICS: list[Metric] = []


def _metric(name: str, kind: Kind, help: str, sources: str, *more: str) -> Metric:
    made = Metric(name, kind, help, tuple(sources.split()), more)
    METRICS.append(made)
    return made


# A metric a line.


# What is written.
COMMITS = _metric("commits", "counter", "Commits that became durable.", "appender records")
ROWS = _metric("rows", "counter", "Rows of these commits.", "appender records")
WRITTEN = _metric("written_bytes", "counter", "Stored bytes of these rows.", "appender records")
OBJECTS = _metric(
    "objects",
    "counter",
    "Objects of these commits: each has a record, and one more for every partition whose rows "
    "are not in it. One PUT each, if none was large.",
    "records",
)
PUT = _metric(
    "put_seconds",
    "histogram",
    "How long the PUT of a commit record took, its retries included.",
    "appender records",
)
DATA_WRITE = _metric(
    "data_write_seconds",
    "histogram",
    "Of a commit of Spark with data objects: how long the slowest task wrote, from its first "
    "row on.",
    "records",
)
ADD_BATCH = _metric(
    "add_batch_seconds",
    "histogram",
    "How long Spark ran and committed a microbatch that went to this log.",
    "stream",
)
RETRIES = _metric(
    "retries", "counter", "Requests that failed and were sent again.", "appender records"
)
HEDGED = _metric("hedged", "counter", "Requests that were late and sent once more.", "appender")
IN_FLIGHT = _metric(
    "in_flight",
    "gauge",
    "Records sent and not acknowledged; from records: as the newest one was sent.",
    "appender records",
)
POSITION = _metric("durable_position", "gauge", "The newest durable position.", "appender records")
LAST_COMMIT = _metric(
    "last_commit_timestamp_seconds",
    "gauge",
    "When the newest commit was made, by its writer's clock.",
    "records",
)
# Who leads.
TERM = _metric("term", "gauge", "The term of the newest record.", "records")
TAKEOVERS = _metric(
    "takeovers", "counter", "New terms: a writer took the log over, or began again.", "records"
)
FENCED = _metric("fenced", "counter", "Writers here that another one fenced.", "appender stream")
# One appender.
UP = _metric("up", "gauge", "1 while the appender accepts rows.", "appender")
BUFFERED = _metric("buffered_bytes", "gauge", "Accepted rows not sent yet.", "appender")
BUFFER_LIMIT = _metric(
    "buffer_limit_bytes", "gauge", "maxBufferedBytes: appends wait above it.", "appender"
)
WAITING = _metric(
    "unacknowledged_appends", "gauge", "Appends accepted and not known to be durable.", "appender"
)
SEQUENCE = _metric(
    "last_sequence",
    "gauge",
    "The newest durable sequence; with a journal the newest in it.",
    "appender",
)
REJECTED = _metric(
    "rejected", "counter", "Appends left out because a value does not fit the schema.", "appender"
)
BACK_PRESSURE = _metric(
    "back_pressure",
    "counter",
    "Times that a journal was full or the log at a limit of its size, so that appends wait or "
    "soon will.",
    "appender",
)
EVENTS = _metric("events", "counter", "Events of the appender, by name.", "appender", "name")
# Its journal.
JOURNAL_BYTES = _metric("journal_bytes", "gauge", "Bytes of the journal's files.", "appender")
JOURNAL_LIMIT = _metric(
    "journal_limit_bytes",
    "gauge",
    "What appends may fill: journalMaxBytes without one file.",
    "appender",
)
JOURNAL_WAITING = _metric(
    "journal_waiting", "gauge", "Appends in the journal and not in the log.", "appender"
)
JOURNAL_LOST = _metric(
    "journal_lost",
    "gauge",
    "Appends that are or may be lost to damage, to be sent again.",
    "appender",
)
STORE_AWAY = _metric(
    "store_away",
    "gauge",
    "1 while the store does not answer, and the journal accepts all the same.",
    "appender",
)
# HTTP before an appender.
REQUESTS = _metric("requests", "counter", "Appends over HTTP, by status.", "http", "status")
BODY_BYTES = _metric("body_bytes", "counter", "Bytes of bodies answered with 200 or 202.", "http")
ANSWERED_ROWS = _metric("answered_rows", "counter", "Rows answered so.", "http")
PENDING_BODIES = _metric("pending_body_bytes", "gauge", "Bytes of bodies not parsed yet.", "http")
APPEND = _metric("append_seconds", "histogram", "From the request to such an answer.", "http")
# What becomes of the rows.
FLOOR = _metric("floor_position", "gauge", "Positions below may be deleted.", "records lifecycle")
COMPACTED = _metric(
    "compacted_position", "gauge", "Positions below are in the table.", "records lifecycle"
)
COMPACTION_LAG = _metric(
    "compaction_lag_positions",
    "gauge",
    "Positions that are not in the table yet; only of a log that has one.",
    "records",
)
COMPACTION_LAG_TIME = _metric(
    "compaction_lag_seconds",
    "gauge",
    "Between the oldest record that is not in the table and the newest record.",
    "records",
)
COMPACTION_OPEN = _metric(
    "compaction_open_seconds",
    "gauge",
    "For how long a range has been promised to the table and not confirmed; 0: none is.",
    "records",
)
COMPACTIONS = _metric("compactions", "counter", "Ranges confirmed in the table.", "lifecycle")
COMPACTION_RETRIES = _metric(
    "compaction_retries",
    "counter",
    "Ranges tried again: another writer of the table was faster.",
    "lifecycle",
)
COMPACTION_SUSPENDED = _metric(
    "compaction_suspended", "counter", "Times that compaction stopped with an error.", "lifecycle"
)
COLLECTED_OBJECTS = _metric(
    "collected_objects", "counter", "Objects deleted below the floor.", "lifecycle"
)
COLLECTED_BYTES = _metric("collected_bytes", "counter", "Their bytes.", "lifecycle")
# Who reads, by the option `consumer`.
CONSUMER_POSITION = _metric(
    "consumer_position",
    "gauge",
    "The next position it reads, as it published last.",
    "records",
    "consumer",
)
CONSUMER_LAG = _metric(
    "consumer_lag_positions",
    "gauge",
    "Positions from there to the end of the log.",
    "records",
    "consumer",
)
CONSUMER_LAG_TIME = _metric(
    "consumer_lag_seconds",
    "gauge",
    "Between the record there and the newest one.",
    "records",
    "consumer",
)
CONSUMER_AGE = _metric(
    "consumer_age_seconds",
    "gauge",
    "Since it published last, by the store's clock.",
    "records",
    "consumer",
)
# Of the following itself.
FOLLOW_ERRORS = _metric(
    "follow_errors",
    "counter",
    "Looks at the log that failed: the store is away, or an object is damaged.",
    "records",
)
DROPPED = _metric(
    "listener_dropped",
    "counter",
    "Events of Spark left out because earlier ones still waited.",
    "stream",
)
