"""Option names of Kafka, Delta Lake and Iceberg, for the error of an unknown option."""

import re

# Name → sparkwal's option for the same thing. Case, dots, `_` and `-` do not matter.
SAME = {
    # Delta Lake and Iceberg
    "versionAsOf": "endingPosition",
    "timestampAsOf": "endingTimestamp",
    "startingVersion": "startingPosition",
    "endingVersion": "endingPosition",
    "maxFilesPerTrigger": "maxCommitsPerTrigger",
    "overwriteSchema": "mergeSchema",
    "as-of-timestamp": "endingTimestamp",
    "stream-from-timestamp": "startingTimestamp",
    # Kafka
    "startingOffsets": "startingPosition",
    "endingOffsets": "endingPosition",
    "startingOffsetsByTimestamp": "startingTimestamp",
    "endingOffsetsByTimestamp": "endingTimestamp",
    "auto.offset.reset": "startingPosition",
    "maxOffsetsPerTrigger": "maxRowsPerTrigger",
    "includeHeaders": "includeMetadata",
    "group.id": "consumer",
    "linger.ms": "batchTimeoutMs",
    "batch.size": "batchSizeThreshold",
    "buffer.memory": "maxBufferedBytes",
    "max.in.flight.requests.per.connection": "maxInFlightRequests",
    "retries": "maxRetryAttempts",
    "retry.backoff.ms": "retryBaseDelayMs",
    "compression.type": "compression",
}
# Name → why sparkwal has no such option, or where the setting is.
_NONE = {
    "ignoreDeletes": "a log has no deletes: remove it",
    "ignoreChanges": "rows of a log do not change: remove it",
    "skipChangeCommits": "rows of a log do not change: remove it",
    "readChangeFeed": "a log is its own change feed: remove it",
    "readChangeData": "a log is its own change feed: remove it",
    "replaceWhere": "a log only appends; compaction changes rows of its table by key",
    "acks": "an append or microbatch is acknowledged when it is durable, always: remove it",
    "enable.idempotence": "each append and microbatch is in the log once, always: remove it",
    "transactional.id": "that is the argument producer_id of an appender",
    "bootstrap.servers": "a log has no brokers: its path is enough (endpoint: another store)",
    "subscribe": "the path names the log, as a topic does",
    "topic": "the path names the log, as a topic does",
    "retention.ms": "that is retainSeconds of sparkwal.Lifecycle",
    "retention.bytes": "that is retainBytes of sparkwal.Lifecycle",
}


def _plain(name: str) -> str:
    return re.sub(r"[._-]", "", name.lower())


_SAME_BY_PLAIN = {_plain(name): option for name, option in SAME.items()}
_NONE_BY_PLAIN = {_plain(name): reason for name, reason in _NONE.items()}


def same_option(name: str) -> str | None:
    """The option of sparkwal for the same thing, or None."""
    return _SAME_BY_PLAIN.get(_plain(re.sub(r"^kafka\.", "", name.lower())))


def not_needed(name: str) -> str | None:
    """Why sparkwal has no such option, or None."""
    return _NONE_BY_PLAIN.get(_plain(re.sub(r"^kafka\.", "", name.lower())))
