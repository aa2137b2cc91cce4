"""Proves from the records that a query's microbatches follow each other in its sources."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sparkwal.checkpoints.history import Input, floor_of, inputs
from sparkwal.checkpoints.offsets import is_of_files, is_of_log, listed_until
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.segments import with_copies
from sparkwal.store.base import LogStore

# Microbatches whose rows differ from their offsets, in a report.
_NAMED = 10
_NOT_CARRIED = "not carried"


@dataclass(frozen=True)
class Break:
    """Two microbatches of a query that do not follow each other, or some that are not proven.

    Records that follow each other and carry nothing for the same reason are one break.

    Attributes:
        kind: "hole", "overlap", "differs", "goes back", "read twice", "no record" or "not carried".
        source: the source, with topic and partition; "" for all.
        before: the position of the earlier record; −1 without one.
        position: the position of the later record.
        before_ms: the time of the earlier record.
        timestamp_ms: the time of the later record.
        expected: the end of the earlier one.
        actual: the begin of the later one.
        until: the position of the last record of the break.
        records: the number of the records that are not proven.
    """

    kind: str
    source: str
    before: int
    position: int
    before_ms: int
    timestamp_ms: int
    expected: Any
    actual: Any
    until: int
    records: int = 1


@dataclass
class QueryAudit:
    """The result of the audit of one query.

    Attributes:
        name: its name, or its id.
        query_id: its id.
        sequencer: the name of its log.
        first: the position of its first record.
        last: the position of its last record.
        microbatches: the number of its records.
        rows: the rows in them.
        begin: the offsets with which the first record begins; None if it carries none.
        end: the offsets after the last record.
        without_record: microbatches that have no record, because they wrote no row.
        watermark_ms: the greatest event-time watermark in its plans; 0 without one.
        counted: the microbatches whose only source is Kafka.
        offsets: the number of Kafka's offsets that they read.
        differing: the positions of the first of them that wrote more or less rows than that.
        differ: the number of them.
        breaks: the breaks, in order.
    """

    name: str
    query_id: str
    sequencer: str
    first: int
    last: int = -1
    microbatches: int = 0
    rows: int = 0
    begin: Mapping[str, Any] | None = None
    end: Mapping[str, Any] | None = None
    without_record: int = 0
    watermark_ms: int = 0
    counted: int = 0
    offsets: int = 0
    differing: list[int] = field(default_factory=list)
    differ: int = 0
    breaks: list[Break] = field(default_factory=list)


def audit_log(
    log: LogStore, sequencer: str, query: str | None = None, *, allow_empty: bool = False
) -> list[QueryAudit]:
    """Check that the microbatches of each query follow each other, source by source.

    It reads the records from the floor on, 1 GET each, and no rows.

    Args:
        log: the log.
        sequencer: its name.
        query: the name or id of one query.
        allow_empty: a microbatch without a record is one without rows. The log cannot
            distinguish it from one whose record was lost before the next record.

    Raises:
        InvalidLogError: a record is damaged or missing.
    """
    log = with_copies(log)
    head = find_head(log)
    if head.live is None:
        return []
    floor = floor_of(log, head)
    audits: dict[str, _Audit] = {}
    for entry in inputs(log, head, floor, head.gap):
        header = entry.header
        if query not in (None, header.query, header.query_id):
            continue
        if header.query_id not in audits:
            # An appender's or a batch's commits have no sources.
            if header.query_id not in header.checkpoints:
                continue
            report = QueryAudit(header.query, header.query_id, sequencer, header.position)
            audits[header.query_id] = _Audit(report, allow_empty=allow_empty)
        audits[header.query_id].add(entry)
    return [audit.report for audit in audits.values()]


class _Audit:
    """The audit of one query."""

    def __init__(self, report: QueryAudit, *, allow_empty: bool) -> None:
        self.report = report
        self._allow_empty = allow_empty
        self._last: Input | None = None
        # By source: the files that were read.
        self._read: dict[str, set[str]] = {}

    def add(self, entry: Input) -> None:
        """Add the next record of the query."""
        report = self.report
        header = entry.header
        report.name = header.query
        report.last = header.position
        report.microbatches += 1
        report.rows += header.rows
        report.watermark_ms = max(report.watermark_ms, entry.watermark_ms)
        if entry.end is None:
            self._not_carried(entry)
        else:
            if self._last is None:
                report.begin = entry.begin
            elif self._last.end is not None:
                self._follow(self._last, entry)
            self._check_itself(entry)
            self._count(entry)
            report.end = entry.end
        self._last = entry

    def _follow(self, last: Input, entry: Input) -> None:
        """Compare the end of a record with the begin of the next."""
        skipped = entry.header.batch_id - last.header.batch_id - 1
        self.report.without_record += skipped
        if entry.begin is None:
            reason = "the offsets before the microbatch"
            self._break(_NOT_CARRIED, "", entry, last.end, reason)
            return
        assert last.end is not None
        for source, expected, actual in _differences(last.end, entry.begin):
            kind = _kind(expected, actual)
            if skipped and kind != "overlap":
                if not self._allow_empty:
                    self._break("no record", source, entry, expected, actual)
            else:
                self._break(kind, source, entry, expected, actual)

    def _check_itself(self, entry: Input) -> None:
        """Check that a microbatch does not go back, and reads no file for the second time."""
        begin, end = entry.begin or {}, entry.end or {}
        for source, before, after in _differences(begin, end):
            if _kind(after, before) == "hole":
                self._break("goes back", source, entry, before, after)
        for source, files in entry.files.items():
            first = listed_until(begin.get(source))
            last = listed_until(end.get(source))
            new = {path for path, number in files.items() if first < number <= last}
            seen = self._read.setdefault(source, set())
            if twice := sorted(new & seen):
                self._break("read twice", source, entry, None, twice[:_NAMED])
            if not seen:
                new |= {path for path, number in files.items() if number <= first}
            seen |= new

    def _count(self, entry: Input) -> None:
        """Compare the rows with the number of Kafka's offsets."""
        end, begin = entry.end or {}, entry.begin or {}
        if len(end) != 1 or not all(map(_is_of_kafka, end.values())):
            return
        (source,) = end
        after, before = _leaves("", end[source]), _leaves("", begin.get(source))
        if not after.keys() <= before.keys():
            return
        count = sum(value - before[name] for name, value in after.items())
        self.report.counted += 1
        self.report.offsets += count
        if count != entry.header.rows:
            self.report.differ += 1
            if len(self.report.differing) < _NAMED:
                self.report.differing.append(entry.position)

    def _not_carried(self, entry: Input) -> None:
        """Add a record that carries no offsets to the break before it, or begin a new one."""
        breaks = self.report.breaks
        before = breaks[-1] if breaks else None
        if (
            before is not None
            and self._last is not None
            and before.kind == _NOT_CARRIED
            and before.until == self._last.position
            and before.actual == entry.reason
        ):
            until, records = entry.position, before.records + 1
            breaks[-1] = replace(before, until=until, records=records)
        else:
            self._break(_NOT_CARRIED, "", entry, None, entry.reason)

    def _break(self, kind: str, source: str, entry: Input, expected: Any, actual: Any) -> None:
        last = self._last.header if self._last else None
        header = entry.header
        self.report.breaks.append(
            Break(
                kind=kind,
                source=source,
                before=last.position if last else -1,
                position=header.position,
                before_ms=last.timestamp_ms if last else 0,
                timestamp_ms=header.timestamp_ms,
                expected=expected,
                actual=actual,
                until=header.position,
            )
        )


def complete_until(audits: list[QueryAudit]) -> int | None:
    """The least of the greatest watermarks of the logs, or None if a log lacks one."""
    greatest: dict[str, int] = {}
    for audit in audits:
        greatest[audit.sequencer] = max(greatest.get(audit.sequencer, 0), audit.watermark_ms)
    return min(greatest.values(), default=0) or None


def _differences(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """(source, value, value) of each part in which two offsets differ."""
    for source in sorted({*first, *second}):
        one, other = first.get(source), second.get(source)
        if one == other:
            continue
        if not (_has_order(one) and _has_order(other)):
            yield source, one, other
            continue
        parts, others = _leaves(source, one), _leaves(source, other)
        for name in sorted({*parts, *others}):
            if parts.get(name) != others.get(name):
                yield name, parts.get(name), others.get(name)


def _kind(expected: Any, actual: Any) -> str:
    """How an offset differs from the one that was expected."""
    if isinstance(expected, int) and isinstance(actual, int):
        return "hole" if actual > expected else "overlap"
    return "differs"


def _has_order(offset: Any) -> bool:
    """Whether a later offset of the source has greater numbers."""
    return (
        isinstance(offset, int) or _is_of_kafka(offset) or is_of_files(offset) or is_of_log(offset)
    )


def _is_of_kafka(offset: Any) -> bool:
    """Whether this is {topic: {partition: number}}."""
    return (
        isinstance(offset, dict)
        and bool(offset)
        and all(
            isinstance(parts, dict) and all(isinstance(number, int) for number in parts.values())
            for parts in offset.values()
        )
    )


def _leaves(name: str, offset: Any) -> dict[str, Any]:
    """The values inside of an offset, by the names on the way to them."""
    if not isinstance(offset, dict):
        return {} if offset is None else {name: offset}
    parts: dict[str, Any] = {}
    for key, value in offset.items():
        parts |= _leaves(f"{name}/{key}" if name else key, value)
    return parts
