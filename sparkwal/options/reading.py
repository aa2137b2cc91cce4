"""The options of reading, by Spark or by `sparkwal.Log`."""

from dataclasses import dataclass

from sparkwal.errors import OptionError
from sparkwal.format.keys import ROOT
from sparkwal.options import types
from sparkwal.options.store import StoreOptions
from sparkwal.options.types import ABOVE_ZERO, option


@dataclass(frozen=True)
class SourceOptions(StoreOptions):
    starting_position: str | int | None = option(
        "startingPosition",
        types.position,
        None,
        "earliest (the log's floor: what was compacted is not read), latest, the first position "
        "to read, or, for a stream, table: the rows of the log's table, then the log",
        "earliest",
    )
    ending_position: int | None = option(
        "endingPosition",
        types.integer,
        None,
        "batch reads: the last position to read, inclusive",
        "the head",
    )
    starting_timestamp_ms: int | None = option(
        "startingTimestamp",
        types.timestamp,
        None,
        "read commits at or after this time: ISO 8601 (UTC by default) or milliseconds since 1970",
    )
    ending_timestamp_ms: int | None = option(
        "endingTimestamp", types.timestamp, None, "batch reads: read commits at or before this time"
    )
    max_rows: int | None = option(
        "maxRowsPerTrigger",
        types.integer,
        None,
        "streams: at most this many rows in a microbatch; a commit is never split",
        limit=ABOVE_ZERO,
    )
    max_bytes: int | None = option(
        "maxBytesPerTrigger",
        types.size,
        None,
        "streams: at most this many stored bytes in a microbatch; a commit is never split",
        limit=ABOVE_ZERO,
    )
    max_commits: int | None = option(
        "maxCommitsPerTrigger",
        types.integer,
        None,
        "streams: at most this many commits in a microbatch",
        limit=ABOVE_ZERO,
    )
    min_partitions: int | None = option(
        "minPartitions",
        types.integer,
        None,
        "split the read into at least this many tasks, if the log's frames allow it",
        "by its size",
        limit=ABOVE_ZERO,
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        types.boolean,
        True,
        "false: skip positions that were collected or are missing",
    )
    include_metadata: bool = option(
        "includeMetadata",
        types.boolean,
        False,
        "add _wal_position, _wal_timestamp, _wal_partition, _wal_leader_id, _wal_batch_id, "
        "_wal_query_id",
    )
    verify_checksums: bool = option(
        "verifyChecksums", types.boolean, True, "check the CRC-32 of all bytes that are read"
    )
    verify_texts: bool = option(
        "verifyTexts",
        types.boolean,
        True,
        "check that texts are UTF-8; it takes 2 % of a large read, and 10 % if they are not "
        "ASCII: set it to false only if you trust all writers of the log",
    )
    sequencers: str | None = option(
        "sequencers",
        types.sequencers,
        None,
        "*, or names with commas: read all logs under the path, or these, each in its own order "
        "with its own offset",
    )
    on_corruption: str = option(
        "onCorruption",
        types.one_of("fail", "stop"),
        "fail",
        "at a damaged object: fail, or stop: end the read before it",
    )

    consumer: str | None = option(
        "consumer",
        types.consumer_name,
        None,
        "streams: a name for this stream alone; the log keeps the rows that it has not read yet",
    )
    cursor_interval_ms: int = option(
        "cursorInterval",
        types.duration,
        60_000,
        "streams with a consumer: the least time between two publications of its position",
        "1min",
        limit=ABOVE_ZERO,
    )
    lease_ms: int | None = option(
        "lease",
        types.duration,
        None,
        "batch reads: the log keeps the rows of the read for this long",
        limit=ABOVE_ZERO,
    )

    @property
    def limits(self) -> dict[str, int]:
        """The limits of a microbatch that are set, by option name."""
        values = self.max_rows, self.max_bytes, self.max_commits
        limits = zip(TRIGGERS, values, strict=True)
        return {name: value for name, value in limits if value is not None}

    def check(self) -> None:
        super().check()
        start, end = self.starting_position, self.ending_position
        since_ms, until_ms = self.starting_timestamp_ms, self.ending_timestamp_ms
        if start is not None and since_ms is not None:
            raise OptionError("startingPosition and startingTimestamp: give one of them")
        if end is not None and until_ms is not None:
            raise OptionError("endingPosition and endingTimestamp: give one of them")
        if isinstance(start, int) and end is not None and end < start:
            raise OptionError(f"endingPosition {end} lies before startingPosition {start}")
        if since_ms is not None and until_ms is not None and until_ms < since_ms:
            raise OptionError("endingTimestamp lies before startingTimestamp")
        if self.sequencers and self.sequencer != ROOT:
            raise OptionError("sequencer and sequencers: give one of them")
        if self.sequencers and (isinstance(start, int) or end is not None):
            raise OptionError(
                "sequencers reads logs whose positions have nothing in common: use "
                "startingTimestamp and endingTimestamp, or read one sequencer"
            )
        if self.consumer and self.sequencers not in (None, types.ALL):
            raise OptionError(
                "a consumer reads one log or all of a path: give sequencer or sequencers=*, or no "
                "consumer"
            )
        if self.starting_position == types.TABLE and not self.fail_on_data_loss:
            raise OptionError(
                "startingPosition=table and failOnDataLoss=false: the log has what the table "
                "lacks, and must not lose it; remove failOnDataLoss"
            )
        if self.consumer and self.lease_ms:
            raise OptionError("a stream takes consumer, a batch read takes lease: give one of them")
        if self.on_corruption == "stop" and not self.verify_checksums:
            raise OptionError("onCorruption=stop needs verifyChecksums=true to find corruption")


RANGE = ("startingPosition", "endingPosition", "startingTimestamp", "endingTimestamp")
CONSUMERS = ("consumer", "cursorInterval")
TRIGGERS = ("maxRowsPerTrigger", "maxBytesPerTrigger", "maxCommitsPerTrigger")
