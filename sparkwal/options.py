"""Every option: its name, type, default and meaning, in one table each for writing and reading.

The tables are the fields of the dataclasses below. `parse` checks names, values
and pairs at once and says what to do about the first thing that is wrong.
"""

from __future__ import annotations

import dataclasses
import difflib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sparkwal import numbering
from sparkwal.errors import OptionError
from sparkwal.option_types import (
    boolean,
    duration,
    one_of,
    option,
    position,
    secret,
    sequencer_name,
    size,
    star,
    text,
    timestamp,
    whole,
)
from sparkwal.store.base import Store
from sparkwal.store.open import join_key, open_store
from sparkwal.store.retry import RetryPolicy
from sparkwal.store.s3 import S3Config

T = TypeVar("T", bound="StoreOptions")

# What Spark itself adds to a source's or sink's options.
_SPARKS_OWN = {"checkpointlocation", "queryname"}

# The log at the path itself; its rows have this name where sequencers are told apart.
ROOT = "default"


@dataclass(frozen=True)
class StoreOptions:
    """How to reach the store; common to writing and reading."""

    path: str = option("path", text, "", "where the log is: s3://bucket/prefix, file:///folder or a folder", "required")  # fmt: skip  # noqa: E501
    endpoint: str | None = option("endpoint", text, None, "URL of an S3-compatible server")
    region: str | None = option("region", text, None, "AWS region")
    profile: str | None = option("profile", text, None, "named profile of the AWS configuration")
    access_key_id: str | None = option("accessKeyId", secret, None, "access key; with secretAccessKey")  # fmt: skip  # noqa: E501
    secret_access_key: str | None = option("secretAccessKey", secret, None, "never printed or stored")  # fmt: skip  # noqa: E501
    session_token: str | None = option("sessionToken", secret, None, "of temporary credentials")
    max_in_flight: int = option("maxInFlightRequests", whole, 50, "requests under way at once, 1…1000")  # fmt: skip  # noqa: E501
    pool_size: int = option("targetPoolSize", whole, 0, "connections kept open; at least maxInFlightRequests", "2 × maxInFlightRequests")  # fmt: skip  # noqa: E501
    max_retries: int = option("maxRetryAttempts", whole, 3, "retries of one request before the query fails")  # fmt: skip  # noqa: E501
    retry_delay_ms: int = option("retryBaseDelayMs", duration, 100, "first backoff; doubles, with full jitter")  # fmt: skip  # noqa: E501

    sequencer: str = option("sequencer", sequencer_name, ROOT, "the independent log of this name under the path", "the log at the path itself")  # fmt: skip  # noqa: E501

    def check(self) -> None:
        """Raises OptionError for values out of range and for pairs that contradict each other."""
        if not self.path:
            raise OptionError(
                'option path is missing: .option("path", "s3://bucket/wal") or .start("s3://…")'
            )
        if not 1 <= self.max_in_flight <= 1000:
            raise OptionError(
                f"maxInFlightRequests is {self.max_in_flight}; 1…1000 is allowed, because "
                "recovery reads at most 1000 objects in its one LIST"
            )
        if self.pool_size and self.pool_size < self.max_in_flight:
            raise OptionError(
                f"targetPoolSize {self.pool_size} is below maxInFlightRequests "
                f"{self.max_in_flight}: raise the one or lower the other"
            )
        if self.pool_size > 2 * self.max_in_flight:
            warnings.warn(
                f"targetPoolSize {self.pool_size} is above 2 × maxInFlightRequests "
                f"({2 * self.max_in_flight}); the rest will stay idle",
                stacklevel=2,
            )
        if self.retry_delay_ms <= 0:
            raise OptionError("retryBaseDelayMs must be greater than 0")
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise OptionError("accessKeyId and secretAccessKey go together: give both or neither")
        if self.session_token is not None and self.access_key_id is None:
            raise OptionError("sessionToken needs accessKeyId and secretAccessKey")
        if self.profile is not None and self.access_key_id is not None:
            raise OptionError("profile and accessKeyId contradict each other: give one of them")
        if self.endpoint is not None and not self.endpoint.startswith(("http://", "https://")):
            raise OptionError(
                f"endpoint {self.endpoint!r} is not a URL: write http://host:port or https://host"
            )

    def open(self, *, fail_fast: bool = False) -> tuple[Store, str]:
        """The store that `path` names and the log's key prefix in it. No request is made.

        Args:
            fail_fast: nothing answering at all is an error at once, without retries.
        """
        store, root = open_store(self.path, self.s3, self.retry, fail_fast=fail_fast)
        return store, sequencer_prefix(root, self.sequencer)

    @property
    def log_path(self) -> str:
        """The path of the log itself, its sequencer included; for people and as a name."""
        inside = sequencer_prefix("", self.sequencer)
        return f"{self.path.rstrip('/')}/{inside}" if inside else self.path

    @property
    def s3(self) -> S3Config:
        """What the S3 client needs of these."""
        return S3Config(
            endpoint=self.endpoint,
            region=self.region,
            profile=self.profile,
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
            session_token=self.session_token,
            max_pool_connections=self.pool_size or 2 * self.max_in_flight,
            max_in_flight_parts=min(self.max_in_flight, 4),
        )

    @property
    def retry(self) -> RetryPolicy:
        """The retry policy these describe."""
        return RetryPolicy(max_retry_attempts=self.max_retries, base_delay_ms=self.retry_delay_ms)


@dataclass(frozen=True)
class WriterOptions(StoreOptions):
    """Options of writing, by Spark or by an appender."""

    batch_size: int = option("batchSizeThreshold", size, 2**20, "a frame (Arrow record batch) closes at this size", "1mb")  # fmt: skip  # noqa: E501
    batch_timeout_ms: int = option("batchTimeoutMs", duration, 1, "a frame closes at this age of its first row", "1ms")  # fmt: skip  # noqa: E501
    window_size: int | None = option("windowSize", whole, None, "numbers for each position, a power of ten 1000…1000000; one microbatch has fewer partitions than this; fixed by a log's first record", "1000")  # fmt: skip  # noqa: E501
    compression: str = option("compression", one_of("zstd", "lz4", "none"), "zstd", "of the rows: zstd, lz4 or none")  # fmt: skip  # noqa: E501
    merge_schema: bool = option("mergeSchema", boolean, False, "let this query add nullable columns to the log")  # fmt: skip  # noqa: E501
    plan_ttl_ms: int = option("planTtl", duration, 600_000, "a plan older than this is checked against the log before it is used", "10min")  # fmt: skip  # noqa: E501

    def check(self) -> None:
        super().check()
        for name, value in (
            ("batchSizeThreshold", self.batch_size),
            ("batchTimeoutMs", self.batch_timeout_ms),
            ("planTtl", self.plan_ttl_ms),
        ):
            if value <= 0:
                raise OptionError(f"{name} must be greater than 0")
        if self.window_size is not None and self.window_size not in numbering.WINDOWS:
            raise OptionError(
                f"windowSize is {self.window_size}; 1000, 10000, 100000 or 1000000 is allowed"
            )

    @property
    def codec(self) -> str | None:
        """The compression as Arrow names it."""
        return None if self.compression == "none" else self.compression


@dataclass(frozen=True)
class SinkOptions(WriterOptions):
    """Options of Spark's sink."""

    inline_threshold: int | None = option("inlineThreshold", size, None, "a partition up to this size (of Arrow, before compression) travels through the driver inside the commit record; 0: never", "64kb; with a windowSize above 1000 less, 64mb / windowSize")  # fmt: skip  # noqa: E501
    multipart_threshold: int = option("multipartThreshold", size, 16 * 2**20, "an object beyond this size is uploaded in parts; at least 5mb", "16mb")  # fmt: skip  # noqa: E501
    txn_app_id: str | None = option("txnAppId", text, None, "batch writes: with txnVersion, makes the append idempotent")  # fmt: skip  # noqa: E501
    txn_version: int | None = option("txnVersion", whole, None, "batch writes: a number that grows with every append of txnAppId")  # fmt: skip  # noqa: E501

    def check(self) -> None:
        super().check()
        if self.multipart_threshold < 5 * 2**20:
            raise OptionError("multipartThreshold must be at least 5mb: S3 takes no smaller parts")
        if (self.inline_threshold or 0) > self.multipart_threshold:
            raise OptionError("inlineThreshold is above multipartThreshold: lower it")
        if (self.txn_app_id is None) != (self.txn_version is None):
            raise OptionError("txnAppId and txnVersion go together: give both or neither")


@dataclass(frozen=True)
class AppenderOptions(WriterOptions):
    """Options of `sparkwal.Appender`."""

    batch_size: int = option("batchSizeThreshold", size, 2**20, "a batch closes at this size; the append that crosses it is included", "1mb")  # fmt: skip  # noqa: E501
    batch_timeout_ms: int = option("batchTimeoutMs", duration, 1, "a batch closes at this age of its first append, unless nothing is in flight: then it goes at once", "1ms")  # fmt: skip  # noqa: E501
    max_buffered: int = option("maxBufferedBytes", size, 64 * 2**20, "accepted rows that wait to be sent; beyond it append blocks, or raises BackPressureError", "64mb")  # fmt: skip  # noqa: E501

    def check(self) -> None:
        super().check()
        if self.max_buffered < self.batch_size:
            raise OptionError(
                f"maxBufferedBytes {self.max_buffered} is below batchSizeThreshold "
                f"{self.batch_size}: no batch could ever fill; raise the one or lower the other"
            )


@dataclass(frozen=True)
class SourceOptions(StoreOptions):
    """Options of reading."""

    starting_position: str | int | None = option("startingPosition", position, None, "earliest, latest or the first position to read", "earliest")  # fmt: skip  # noqa: E501
    ending_position: int | None = option("endingPosition", whole, None, "batch reads: the last position to read, inclusive", "the head")  # fmt: skip  # noqa: E501
    starting_timestamp_ms: int | None = option("startingTimestamp", timestamp, None, "read commits at or after this time: ISO 8601 (UTC unless it says otherwise) or milliseconds since 1970")  # fmt: skip  # noqa: E501
    ending_timestamp_ms: int | None = option("endingTimestamp", timestamp, None, "batch reads: read commits at or before this time")  # fmt: skip  # noqa: E501
    max_rows: int | None = option("maxRowsPerTrigger", whole, None, "streams: at most so many rows a microbatch; a commit is never split")  # fmt: skip  # noqa: E501
    max_bytes: int | None = option("maxBytesPerTrigger", size, None, "streams: at most so many stored bytes a microbatch; a commit is never split")  # fmt: skip  # noqa: E501
    max_commits: int | None = option("maxCommitsPerTrigger", whole, None, "streams: at most so many commits a microbatch")  # fmt: skip  # noqa: E501
    min_partitions: int | None = option("minPartitions", whole, None, "split the read into at least so many tasks where the log's frames allow it", "Spark's parallelism")  # fmt: skip  # noqa: E501
    fail_on_data_loss: bool = option("failOnDataLoss", boolean, True, "false: go on where positions were collected or are missing")  # fmt: skip  # noqa: E501
    include_metadata: bool = option("includeMetadata", boolean, False, "add _wal_position, _wal_timestamp, _wal_partition, _wal_leader_id, _wal_batch_id")  # fmt: skip  # noqa: E501
    verify_checksums: bool = option("verifyChecksums", boolean, True, "check the CRC-32 of all that is read")  # fmt: skip  # noqa: E501
    sequencers: str | None = option("sequencers", star, None, "*: read all logs under the path, each in its own order with its own offset")  # fmt: skip  # noqa: E501
    on_corruption: str = option("onCorruption", one_of("fail", "stop"), "fail", "at a damaged object: fail, or stop: end the replay before it")  # fmt: skip  # noqa: E501

    def check(self) -> None:
        super().check()
        if self.starting_position is not None and self.starting_timestamp_ms is not None:
            raise OptionError("startingPosition and startingTimestamp: give one of them")
        if self.ending_position is not None and self.ending_timestamp_ms is not None:
            raise OptionError("endingPosition and endingTimestamp: give one of them")
        if (
            isinstance(self.starting_position, int)
            and self.ending_position is not None
            and self.ending_position < self.starting_position
        ):
            raise OptionError(
                f"endingPosition {self.ending_position} lies before startingPosition "
                f"{self.starting_position}"
            )
        if (
            self.starting_timestamp_ms is not None
            and self.ending_timestamp_ms is not None
            and self.ending_timestamp_ms < self.starting_timestamp_ms
        ):
            raise OptionError("endingTimestamp lies before startingTimestamp")
        for name, value in (
            ("maxRowsPerTrigger", self.max_rows),
            ("maxBytesPerTrigger", self.max_bytes),
            ("maxCommitsPerTrigger", self.max_commits),
            ("minPartitions", self.min_partitions),
        ):
            if value is not None and value <= 0:
                raise OptionError(f"{name} must be greater than 0")
        if self.sequencers and self.sequencer != ROOT:
            raise OptionError("sequencer and sequencers: give one of them")
        if self.sequencers and (
            isinstance(self.starting_position, int) or self.ending_position is not None
        ):
            raise OptionError(
                "sequencers=* reads logs whose positions have nothing in common: use "
                "startingTimestamp and endingTimestamp, or read one sequencer"
            )
        if self.on_corruption == "stop" and not self.verify_checksums:
            raise OptionError("onCorruption=stop needs verifyChecksums=true to find corruption")


def parse(kind: type[T], given: Mapping[str, str]) -> T:
    """Checked options from what a user wrote; names without regard to case.

    Raises OptionError for an unknown name (with the nearest known one), a wrong
    value, or a pair that contradicts itself.
    """
    known = {f.metadata["name"].lower(): f for f in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        spec = known.get(name.lower())
        if spec is None:
            if name.lower() not in _SPARKS_OWN:
                raise OptionError(_unknown(name, kind))
            continue
        try:
            values[spec.name] = spec.metadata["parse"](str(value))
        except ValueError as expected:
            shown = "" if spec.metadata["parse"] is secret else f" is {str(value)!r};"
            raise OptionError(
                f"option {spec.metadata['name']}{shown} {expected} is expected"
            ) from None
    options = kind(**values)
    options.check()
    return options


def sequencer_prefix(root: str, sequencer: str) -> str:
    """Where the log of a sequencer lies: `root` itself for ROOT."""
    return root if sequencer == ROOT else join_key(root, "sequencers", sequencer)


_SIDES: dict[type[StoreOptions], str] = {
    SinkOptions: "writing",
    SourceOptions: "reading",
    AppenderOptions: "the appender",
}


def _unknown(name: str, kind: type[StoreOptions]) -> str:
    names = [f.metadata["name"] for f in dataclasses.fields(kind)]
    for other, side in _SIDES.items():
        if name.lower() in {f.metadata["name"].lower() for f in dataclasses.fields(other)}:
            return f"option {name!r} is for {side}; remove it here"
    lowered = {known.lower(): known for known in names}
    near = difflib.get_close_matches(name.lower(), lowered, 1, cutoff=0.6)
    hint = f"did you mean {lowered[near[0]]!r}?" if near else f"known are {', '.join(names)}"
    return f"unknown option {name!r}; {hint}"


def from_keywords(kind: type[T], path: str, given: Mapping[str, object]) -> T:
    """As `parse`, of Python keyword arguments."""
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
    }
    return parse(kind, {**texts, "path": path})


def one_log(options: SourceOptions) -> SourceOptions:
    """Raises OptionError where several logs are named and one is needed."""
    if options.sequencers:
        raise OptionError("sequencers=* is for spark.read and spark.readStream; name one here")
    return options
