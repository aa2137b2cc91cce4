"""Follows a log, or all logs under a path, for as long as somebody asks for its numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from sparkwal.errors import SparkWalError
from sparkwal.metrics import table
from sparkwal.metrics.prometheus import Prometheus
from sparkwal.metrics.records import LogNumbers
from sparkwal.metrics.table import ALL, Labels, labels_of
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import CONSUMERS, TRIGGERS, SourceOptions, refuse
from sparkwal.reading.rows import PassedOver
from sparkwal.reading.sequencers import all_logs

_logger = logging.getLogger("sparkwal")


class Following:
    """The logs that are followed; one thread uses it.

    Args:
        path, options: as for `sparkwal.Log`; with sequencers="*" all logs under the path.
        backlog: how many of the newest records of each log are counted at the start.
        passed_over: of the name of a log, what gets its damage; by default the logger.

    Attributes:
        labels: labels of what is reported of all of them.
        counted: whose commits are counted here.

    Raises OptionError.
    """

    def __init__(
        self,
        path: str,
        meter: Prometheus,
        *,
        backlog: int = 0,
        passed_over: Callable[[str], PassedOver] | None = None,
        **options: object,
    ) -> None:
        self._options = from_keywords(SourceOptions, path, options)
        refuse(self._options, "is for reading rows", *TRIGGERS, *CONSUMERS, "lease")
        self._meter, self._backlog = meter, backlog
        self._root = open_log(self._options)
        self.labels = labels_of(self._root.url)
        self.counted = Labels(self.labels.log, ALL) if self._options.sequencers else self.labels
        self._logs: dict[str, LogNumbers] = {}
        # What the look before failed with, and this one.
        self._logged: set[str] = set()
        self._failures: set[str] = set()
        self._passed_over = passed_over or (lambda name: lambda error: self._failed(str(error)))

    @property
    def is_there(self) -> bool:
        """Whether a log was there at the last look."""
        return any(log.is_there for log in self._logs.values())

    def wrote(self, query_id: str) -> list[LogNumbers]:
        """The logs that hold commits of this query."""
        return [log for log in self._logs.values() if query_id in log.queries]

    def look(self, *, around: bool = True) -> None:
        """One look at each log. Raises StoreUnavailableError, InvalidLogError, OptionError.

        Args:
            around: at consumers, compaction and new sequencers too.
        """
        if around or not self._logs:
            self._find()
        for log in list(self._logs.values()):
            if around:
                log.look_around()
            else:
                log.look()

    def _find(self) -> None:
        options = self._options
        names = all_logs(self._root) if options.sequencers else [options.sequencer]
        for name in names:
            if name not in self._logs:
                one = replace(options, sequencers=None, sequencer=name)
                self._logs[name] = LogNumbers(
                    one, self._meter, self._backlog, passed_over=self._passed_over(name)
                )
        for name in self._logs.keys() - set(names):
            self._logs.pop(name).end()
        if options.sequencers:
            # A sequencer that comes later is new.
            self._backlog = 2**63

    def try_look(self, *, around: bool = True) -> None:
        """As `look`; what fails is counted, logged once, and tried again."""
        self._failures = set()
        try:
            self.look(around=around)
        except SparkWalError as error:
            self._failed(str(error))
        except Exception as error:
            self._failed(f"{type(error).__name__}: {error}")
        self._logged = self._failures

    def _failed(self, reason: str) -> None:
        self._meter.add(table.FOLLOW_ERRORS, 1, *self.labels)
        known = reason in self._logged | self._failures
        self._failures.add(reason)
        if not known:
            _logger.warning("the numbers of %s are not new: %s", self.labels.log, reason)
