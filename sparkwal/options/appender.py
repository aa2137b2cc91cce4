"""The options of `sparkwal.Appender`."""

from __future__ import annotations

from dataclasses import dataclass

from sparkwal.errors import OptionError
from sparkwal.options.types import duration, one_of, option, size, text, whole
from sparkwal.options.writing import WriterOptions, check_limits


@dataclass(frozen=True)
class AppenderOptions(WriterOptions):
    batch_size: int = option("batchSizeThreshold", size, 2**20, "a batch closes at this size; the append that crosses it is included", "1mb")  # fmt: skip  # noqa: E501
    batch_timeout_ms: int = option("batchTimeoutMs", duration, 1, "a batch closes at this age of its first append, unless nothing is in flight: then it goes at once", "1ms")  # fmt: skip  # noqa: E501
    max_buffered: int = option("maxBufferedBytes", size, 64 * 2**20, "memory of accepted rows that wait to be sent, what it costs to keep each append included; beyond it append blocks, or raises BackPressureError", "64mb")  # fmt: skip  # noqa: E501
    soft_limit: int | None = option("softLimitBytes", size, None, "emit the event size_limit when about this much of the log, as stored, is neither in a table nor below its floor")  # fmt: skip  # noqa: E501
    hard_limit: int | None = option("hardLimitBytes", size, None, "at about this much append blocks, or raises BackPressureError, until compaction has caught up; what was accepted before is written still")  # fmt: skip  # noqa: E501
    journal: str | None = option("journal", text, None, "a folder on a local disk: an append returns once its rows are there, and they reach the log whatever becomes of the store or this process")  # fmt: skip  # noqa: E501
    journal_sync: str = option("journalSync", one_of("always", "interval", "none"), "always", "when an append returns: always = its rows are on the disk; interval, none = a loss of power may take the last ones back, the end of the process does not")  # fmt: skip  # noqa: E501
    journal_interval_ms: int = option("journalSyncInterval", duration, 100, "with journalSync=interval: how often the disk is made to have everything", "100ms")  # fmt: skip  # noqa: E501
    journal_segment: int = option("journalSegmentBytes", size, 64 * 2**20, "size of one file of the journal; an append must fit into one", "64mb")  # fmt: skip  # noqa: E501
    journal_max: int = option("journalMaxBytes", size, 2**30, "of all files of the journal, one of which it keeps free; beyond it append blocks, or raises BackPressureError", "1gb")  # fmt: skip  # noqa: E501
    journal_slots: int | None = option("journalSlots", whole, None, "appends that may wait in the journal; a journal that is there keeps its own", "1048576")  # fmt: skip  # noqa: E501
    journal_sent_up_to: int | None = option("journalSentUpTo", whole, None, "confirms, for one opening, that the journal sent what the log has of this producer up to this sequence; only where an error asks for it, because nothing proves it")  # fmt: skip  # noqa: E501

    def check(self) -> None:
        super().check()
        if self.max_buffered < self.batch_size:
            raise OptionError(
                f"maxBufferedBytes {self.max_buffered} is below batchSizeThreshold "
                f"{self.batch_size}: no batch could ever fill; raise the one or lower the other"
            )
        check_limits(self.soft_limit, self.hard_limit)
        if self.journal_segment < 2**16 or self.journal_segment > 2**31:
            raise OptionError(
                f"journalSegmentBytes {self.journal_segment}; 64kb … 2gb are possible"
            )
        if self.journal_max < 3 * self.journal_segment:
            raise OptionError(
                f"journalMaxBytes {self.journal_max} is below three times journalSegmentBytes "
                f"{self.journal_segment}: one file is kept free; raise the one or lower the other"
            )
        if self.journal_slots is not None and not 1 <= self.journal_slots <= 2**30:
            raise OptionError(f"journalSlots {self.journal_slots}; 1 … 1073741824 are possible")
        if self.journal_interval_ms < 1:
            raise OptionError("journalSyncInterval 0; a time of at least 1ms is expected")
