"""The options of writers: all writers, Spark's sink, and `sparkwal.Appender`."""

from dataclasses import dataclass

from sparkwal.errors import OptionError
from sparkwal.format import keys
from sparkwal.format.checked import LARGEST_NUMBER
from sparkwal.format.header import ANONYMOUS
from sparkwal.options import types
from sparkwal.options.store import StoreOptions, refuse
from sparkwal.options.types import ABOVE_ZERO, Limit, option

# gcGrace is at least an hour, and a request may be in flight for 15 minutes.
_PLAN_TTL = Limit(
    lambda milliseconds: 0 < milliseconds <= 40 * 60_000,
    "a time greater than 0 and at most 40min (a slot may be free again an hour after the log's "
    "floor passed it, and no older plan may write there)",
)


def check_limits(soft: int | None, hard: int | None) -> None:
    """Check the limits of a log's size.

    Raises:
        OptionError: a limit is 0, or `soft` is above `hard`.
    """
    for name, limit in (("softLimitBytes", soft), ("hardLimitBytes", hard)):
        if limit == 0:
            raise OptionError(f"{name} must be greater than 0; leave it out for no limit")
    if soft is not None and hard is not None and soft > hard:
        raise OptionError(f"softLimitBytes {soft} is above hardLimitBytes {hard}: lower it")


@dataclass(frozen=True)
class WriterOptions(StoreOptions):
    batch_size: int = option(
        "batchSizeThreshold",
        types.size,
        2**20,
        "a frame (Arrow record batch) closes at this size",
        "1mb",
        limit=ABOVE_ZERO,
    )
    batch_timeout_ms: int = option(
        "batchTimeoutMs",
        types.duration,
        1,
        "a frame closes at this age of its first row",
        "1ms",
        limit=ABOVE_ZERO,
    )
    window_size: int | None = option(
        "windowSize",
        types.integer,
        None,
        "numbers for each position, a power of ten 1000…1000000; only so many partitions of a "
        "microbatch, less one and at most 100000, may exceed inlineThreshold; fixed by a log's "
        "first record",
        "1000",
        limit=Limit(lambda number: number in keys.WINDOWS, "1000, 10000, 100000 or 1000000"),
    )
    compression: str = option(
        "compression",
        types.one_of("zstd", "lz4", "none"),
        "zstd",
        "of the rows: zstd (lz4 if the first frame is below 64kb), lz4 or none",
    )
    merge_schema: bool = option(
        "mergeSchema",
        types.boolean,
        False,
        "let this query add nullable columns to the log, leave some out (null), or widen some "
        "(int to bigint, float to double, a decimal with more digits)",
    )
    plan_ttl_ms: int = option(
        "planTtl",
        types.duration,
        600_000,
        "a plan older than this is checked against the log before it is used; at most 40min",
        "10min",
        limit=_PLAN_TTL,
    )

    @property
    def codec(self) -> str | None:
        return None if self.compression == "none" else self.compression


@dataclass(frozen=True)
class SinkOptions(WriterOptions):
    inline_threshold: int | None = option(
        "inlineThreshold",
        types.size,
        None,
        "a partition up to this size (of Arrow, before compression) travels through the "
        "driver inside the commit record; 0: never",
        "64kb; with a windowSize above 1000 less, 64mb / windowSize",
    )
    multipart_threshold: int = option(
        "multipartThreshold",
        types.size,
        16 * 2**20,
        "an object beyond this size is uploaded in parts; at least 5mb",
        "16mb",
        limit=Limit(lambda size: size >= 5 * 2**20, "at least 5mb (S3 takes no smaller parts)"),
    )
    checkpoint_max_bytes: int = option(
        "checkpointMaxBytes",
        types.size,
        16 * 2**20,
        "the most bytes of a checkpoint, compressed, that a commit record carries from the "
        "driver's disk",
        "16mb",
    )
    txn_app_id: str | None = option(
        "txnAppId", types.text, None, "batch writes: with txnVersion, makes the append idempotent"
    )
    txn_version: int | None = option(
        "txnVersion",
        types.integer,
        None,
        "batch writes: a number that grows with every append of txnAppId; a repetition of the "
        "last number is skipped if its rows are the same",
        limit=Limit(lambda number: number <= LARGEST_NUMBER, f"at most {LARGEST_NUMBER} (63 bits)"),
    )
    take_over: bool = option(
        "takeOver",
        types.boolean,
        False,
        "batch writes: append even if a stream leads the log; this stops that stream",
    )

    def check(self) -> None:
        super().check()
        if (self.inline_threshold or 0) > self.multipart_threshold:
            raise OptionError("inlineThreshold is above multipartThreshold: lower it")
        if (self.txn_app_id is None) != (self.txn_version is None):
            raise OptionError("txnAppId and txnVersion go together: give both or neither")
        if self.txn_app_id is not None and self.txn_app_id.startswith(ANONYMOUS):
            raise OptionError(
                f"txnAppId must not begin with {ANONYMOUS!r}: appends without an id have such "
                "names, and the log does not remember them"
            )


_OF_JOURNAL = (
    "journalSync",
    "journalSyncInterval",
    "journalSegmentBytes",
    "journalMaxBytes",
    "journalSlots",
    "journalSentUpTo",
)


@dataclass(frozen=True)
class AppenderOptions(WriterOptions):
    batch_size: int = option(
        "batchSizeThreshold",
        types.size,
        2**20,
        "a batch closes at this size; the append that crosses it is included",
        "1mb",
        limit=ABOVE_ZERO,
    )
    batch_timeout_ms: int = option(
        "batchTimeoutMs",
        types.duration,
        1,
        "a batch closes at this age of its first append, or at once if no batch is in flight",
        "1ms",
        limit=ABOVE_ZERO,
    )
    max_buffered: int = option(
        "maxBufferedBytes",
        types.size,
        64 * 2**20,
        "memory of accepted rows that wait to be sent, with the bookkeeping of each append; "
        "beyond it append blocks, or raises BackPressureError",
        "64mb",
    )
    soft_limit: int | None = option(
        "softLimitBytes",
        types.size,
        None,
        "emit the event size_limit when about this many stored bytes of the log are neither in "
        "a table nor below its floor",
    )
    hard_limit: int | None = option(
        "hardLimitBytes",
        types.size,
        None,
        "at about this many bytes append blocks, or raises BackPressureError, until compaction "
        "has caught up; rows that were accepted before are still written",
    )
    make_segments: bool = option(
        "makeSegments",
        types.boolean,
        False,
        "copy each thousand records that this appender wrote into a segment, for readers of long "
        "ranges: one PUT and no GET; it takes up to 160mb of memory",
    )
    journal: str | None = option(
        "journal",
        types.text,
        None,
        "a folder on a local disk: an append returns once its rows are on it, and they reach the "
        "log even if the store or this process fails",
    )
    journal_sync: str = option(
        "journalSync",
        types.one_of("always", "interval", "none"),
        "always",
        "always = an append returns once its rows are on the disk; interval, none = a loss of "
        "power may take back the last appends, a crash of the process does not",
    )
    journal_interval_ms: int = option(
        "journalSyncInterval",
        types.duration,
        100,
        "with journalSync=interval: the time between two syncs of the disk",
        "100ms",
        limit=ABOVE_ZERO,
    )
    journal_segment: int = option(
        "journalSegmentBytes",
        types.size,
        64 * 2**20,
        "size of one file of the journal; an append must fit into one",
        "64mb",
        limit=Limit(lambda size: 2**16 <= size <= 2**31, "64kb … 2gb"),
    )
    journal_max: int = option(
        "journalMaxBytes",
        types.size,
        2**30,
        "size of all files of the journal, which keeps one file free; beyond it append blocks, or "
        "raises BackPressureError",
        "1gb",
    )
    journal_slots: int | None = option(
        "journalSlots",
        types.integer,
        None,
        "appends that may wait in the journal; an existing journal keeps its number",
        "1048576",
        limit=Limit(lambda number: 1 <= number <= 2**30, "1 … 1073741824"),
    )
    journal_sent_up_to: int | None = option(
        "journalSentUpTo",
        types.integer,
        None,
        "confirms, for one opening, that the journal sent all of this producer's entries in the "
        "log up to this sequence; use it only if an error asks for it, since no check proves it",
    )

    def check(self) -> None:
        super().check()
        if self.max_buffered < self.batch_size:
            raise OptionError(
                f"maxBufferedBytes {self.max_buffered} is below batchSizeThreshold "
                f"{self.batch_size}: no batch could ever fill; raise the one or lower the other"
            )
        check_limits(self.soft_limit, self.hard_limit)
        if self.journal is None:
            refuse(self, "needs the option journal, which names the folder", *_OF_JOURNAL)
        if self.journal_max < 3 * self.journal_segment:
            raise OptionError(
                f"journalMaxBytes {self.journal_max} is below three times journalSegmentBytes "
                f"{self.journal_segment}: one file is kept free; raise the one or lower the other"
            )
