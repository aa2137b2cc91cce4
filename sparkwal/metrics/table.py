"""All metrics: their names, labels and meaning. Whatever tells one takes it from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Place(NamedTuple):
    """Which log: the first two labels of every metric.

    Attributes:
        log: the URL of the path, which holds no secret.
        sequencer: the log's name under it.
    """

    log: str
    sequencer: str


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: Prometheus' name, with its unit; `sparkwal_` comes before it, `_total` after a
            counter's.
        sources: who tells it: `appender`, `lifecycle` (the process that compacts or collects),
            `http` (jobs/http_ingest.py), `records` (who follows a log), `stream` (a listener).
        more: labels after `log` and `sequencer`.
        unit: for OpenTelemetry, in UCUM.
        otel: OpenTelemetry's name, where a convention has one.
    """

    name: str
    kind: Kind
    help: str
    sources: tuple[str, ...]
    more: tuple[str, ...] = ()
    unit: str = "1"
    otel: str = ""

    @property
    def full_name(self) -> str:
        """As Prometheus shows it."""
        return f"sparkwal_{self.name}" + ("_total" if self.kind == "counter" else "")

    @property
    def labels(self) -> tuple[str, ...]:
        return (*Place._fields, *self.more)


METRICS: list[Metric] = []


def _metric(
    name: str, kind: Kind, help: str, sources: str, *more: str, unit: str = "1", otel: str = ""
) -> Metric:
    made = Metric(name, kind, help, tuple(sources.split()), more, unit, otel)
    METRICS.append(made)
    return made


# A metric a line.
# ruff: noqa: E501
# fmt: off

# What is written.
COMMITS = _metric("commits", "counter", "Commits that became durable.", "appender records", unit="{commit}")
ROWS = _metric("rows", "counter", "Rows of these commits.", "appender records", unit="{message}", otel="messaging.client.sent.messages")
WRITTEN = _metric("written_bytes", "counter", "Stored bytes of these rows.", "appender records", unit="By")
OBJECTS = _metric("objects", "counter", "Objects of these commits: each has a record, and one more for every partition whose rows are not in it. One PUT each, if none was large.", "records", unit="{object}")
PUT = _metric("put_seconds", "histogram", "How long the PUT of a commit record took, its retries included.", "appender records", unit="s", otel="messaging.client.operation.duration")
DATA_WRITE = _metric("data_write_seconds", "histogram", "Of a commit of Spark with data objects: how long the slowest task wrote, from its first row on.", "records", unit="s")
ADD_BATCH = _metric("add_batch_seconds", "histogram", "How long Spark ran and committed a microbatch that went to this log.", "stream", unit="s")
RETRIES = _metric("retries", "counter", "Requests that failed and were sent again.", "appender records", unit="{request}")
IN_FLIGHT = _metric("in_flight", "gauge", "Records sent and not acknowledged; from records: as the newest one was sent.", "appender records", unit="{commit}")
POSITION = _metric("durable_position", "gauge", "The newest durable position.", "appender records", unit="{position}")
LAST_COMMIT = _metric("last_commit_timestamp_seconds", "gauge", "When the newest commit was made, by its writer's clock.", "records", unit="s")
# Who leads.
TERM = _metric("term", "gauge", "The term of the newest record.", "records")
TAKEOVERS = _metric("takeovers", "counter", "New terms: a writer took the log over, or began again.", "records", unit="{takeover}")
FENCED = _metric("fenced", "counter", "Writers here that another one fenced.", "appender stream", unit="{writer}")
# One appender.
UP = _metric("up", "gauge", "1 while the appender accepts rows.", "appender")
BUFFERED = _metric("buffered_bytes", "gauge", "Accepted rows not sent yet.", "appender", unit="By")
BUFFER_LIMIT = _metric("buffer_limit_bytes", "gauge", "maxBufferedBytes: appends wait above it.", "appender", unit="By")
WAITING = _metric("unacknowledged_appends", "gauge", "Appends accepted and not known to be durable.", "appender", unit="{append}")
SEQUENCE = _metric("last_sequence", "gauge", "The newest durable sequence; with a journal the newest in it.", "appender")
REJECTED = _metric("rejected", "counter", "Appends left out because a value does not fit the schema.", "appender", unit="{append}")
BACK_PRESSURE = _metric("back_pressure", "counter", "Times that a journal was full or the log at a limit of its size, so that appends wait or soon will.", "appender", unit="{time}")
EVENTS = _metric("events", "counter", "Events of the appender, by name.", "appender", "name", unit="{event}")
# Its journal.
JOURNAL_BYTES = _metric("journal_bytes", "gauge", "Bytes of the journal's files.", "appender", unit="By")
JOURNAL_LIMIT = _metric("journal_limit_bytes", "gauge", "What appends may fill: journalMaxBytes without one file.", "appender", unit="By")
JOURNAL_WAITING = _metric("journal_waiting", "gauge", "Appends in the journal and not in the log.", "appender", unit="{append}")
JOURNAL_LOST = _metric("journal_lost", "gauge", "Appends found damaged at the start, to be sent again.", "appender", unit="{append}")
STORE_AWAY = _metric("store_away", "gauge", "1 while the store does not answer, and the journal accepts all the same.", "appender")
# HTTP before an appender.
REQUESTS = _metric("requests", "counter", "Appends over HTTP, by status.", "http", "status", unit="{request}")
BODY_BYTES = _metric("body_bytes", "counter", "Bytes of bodies answered with 200 or 202.", "http", unit="By")
ANSWERED_ROWS = _metric("answered_rows", "counter", "Rows answered so.", "http", unit="{row}")
PENDING_BODIES = _metric("pending_body_bytes", "gauge", "Bytes of bodies not parsed yet.", "http", unit="By")
APPEND = _metric("append_seconds", "histogram", "From the request to such an answer.", "http", unit="s")
# What becomes of the rows.
FLOOR = _metric("floor_position", "gauge", "Positions below may be deleted.", "records lifecycle", unit="{position}")
COMPACTED = _metric("compacted_position", "gauge", "Positions below are in the table.", "records lifecycle", unit="{position}")
COMPACTION_LAG = _metric("compaction_lag_positions", "gauge", "Positions that are not in the table yet; only of a log that has one.", "records", unit="{position}")
COMPACTION_LAG_TIME = _metric("compaction_lag_seconds", "gauge", "Between the oldest record that is not in the table and the newest record.", "records", unit="s")
COMPACTION_OPEN = _metric("compaction_open_seconds", "gauge", "For how long a range has been promised to the table and not confirmed; 0: none is.", "records", unit="s")
COMPACTIONS = _metric("compactions", "counter", "Ranges confirmed in the table.", "lifecycle", unit="{range}")
COMPACTION_RETRIES = _metric("compaction_retries", "counter", "Ranges tried again: another writer of the table was faster.", "lifecycle", unit="{range}")
COMPACTION_SUSPENDED = _metric("compaction_suspended", "counter", "Times that compaction stopped with an error.", "lifecycle", unit="{time}")
COLLECTED_OBJECTS = _metric("collected_objects", "counter", "Objects deleted below the floor.", "lifecycle", unit="{object}")
COLLECTED_BYTES = _metric("collected_bytes", "counter", "Their bytes.", "lifecycle", unit="By")
# Who reads, by the option `consumer`.
CONSUMER_POSITION = _metric("consumer_position", "gauge", "The next position it reads, as it told last.", "records", "consumer", unit="{position}")
CONSUMER_LAG = _metric("consumer_lag_positions", "gauge", "Positions from there to the end of the log.", "records", "consumer", unit="{position}")
CONSUMER_LAG_TIME = _metric("consumer_lag_seconds", "gauge", "Between the record there and the newest one.", "records", "consumer", unit="s")
CONSUMER_AGE = _metric("consumer_age_seconds", "gauge", "Since it told last, by the store's clock.", "records", "consumer", unit="s")
# Of the following itself.
FOLLOW_ERRORS = _metric("follow_errors", "counter", "Looks at the log that failed: the store is away, or an object is damaged.", "records", unit="{look}")
DROPPED = _metric("listener_dropped", "counter", "Events of Spark left out because earlier ones still waited.", "stream", unit="{event}")
