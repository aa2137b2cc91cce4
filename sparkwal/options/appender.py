"""The options of `sparkwal.Appender`."""

from __future__ import annotations

from dataclasses import dataclass

from sparkwal.errors import OptionError
from sparkwal.options.limits import check_limits
from sparkwal.options.types import duration, option, size
from sparkwal.options.writing import WriterOptions


@dataclass(frozen=True)
class AppenderOptions(WriterOptions):
    """Options of `sparkwal.Appender`."""

    batch_size: int = option("batchSizeThreshold", size, 2**20, "a batch closes at this size; the append that crosses it is included", "1mb")  # fmt: skip  # noqa: E501
    batch_timeout_ms: int = option("batchTimeoutMs", duration, 1, "a batch closes at this age of its first append, unless nothing is in flight: then it goes at once", "1ms")  # fmt: skip  # noqa: E501
    max_buffered: int = option("maxBufferedBytes", size, 64 * 2**20, "memory of accepted rows that wait to be sent, what it costs to keep each append included; beyond it append blocks, or raises BackPressureError", "64mb")  # fmt: skip  # noqa: E501
    soft_limit: int | None = option("softLimitBytes", size, None, "the event size_limit tells when about this much of the log, as stored, is neither in a table nor below its floor")  # fmt: skip  # noqa: E501
    hard_limit: int | None = option("hardLimitBytes", size, None, "at about this much append blocks, or raises BackPressureError, until compaction has caught up; what was accepted before is written still")  # fmt: skip  # noqa: E501

    def check(self) -> None:
        super().check()
        if self.max_buffered < self.batch_size:
            raise OptionError(
                f"maxBufferedBytes {self.max_buffered} is below batchSizeThreshold "
                f"{self.batch_size}: no batch could ever fill; raise the one or lower the other"
            )
        check_limits(self.soft_limit, self.hard_limit)
