"""Checks a whole log: every record, every object, every row count, every CRC."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Set
from dataclasses import dataclass, field, replace
from typing import Unpack

from isal.isal_zlib import crc32

from sparkwal.errors import InvalidLogError, escape
from sparkwal.format import arrowfile, keys, schema
from sparkwal.format.header import ANONYMOUS, CommitHeader, QueryProgress, SlotHeader
from sparkwal.options.keywords import VerifyKeywords
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.store import StoreOptions
from sparkwal.options.types import boolean, option
from sparkwal.protocol.archive import read_archive
from sparkwal.protocol.records import Judge
from sparkwal.protocol.recovery import Head, find_head
from sparkwal.protocol.segments import with_copies
from sparkwal.protocol.slots import SlotRecord, TornRecord, copied
from sparkwal.protocol.view import LENIENT, DamagePolicy, LogView, Slot
from sparkwal.reading.floor import Floor, ends_before
from sparkwal.reading.rows import pieces_of, read_pieces, split
from sparkwal.reading.segmenting import CheckedSegments, check_segments
from sparkwal.reading.sequencers import no_log_at
from sparkwal.reading.whole_records import CutFooter, checked_slots
from sparkwal.store.base import LogStore, NotFound, all_entries, sound
from sparkwal.store.parallel import run_parallel

# The most objects of other programs that a report names.
_SHOWN = 5
# The (batch_id, time) of a query without a transaction.
_NEVER = (-1, 0)


@dataclass
class Report:
    """The result of `verify`.

    Attributes:
        path: the log's path.
        head: the last position that holds a record; −1 in an empty log.
        floor: the first position that was checked. Collection may delete the objects below it, so
            nothing there is a problem.
        commits: the number of commits.
        leaders: the number of leader records.
        dead: the number of dead records: late records of a former leader, never acknowledged.
        torn: a sentence for each record of which the store has only a part, and which was not
            acknowledged: the log continues after it, or the next writer continues there. And for
            each record that is cut off after its rows, and counts.
        rows: the rows of all commits.
        bytes: the bytes of all commits, as stored.
        orphans: keys of data objects that no record names: the tasks of an abandoned microbatch
            wrote them. They cost storage and do no harm.
        foreign: keys of objects in the folder of the records that are another program's, such as
            the marker of a folder or `.DS_Store`. They are no part of the log, and do no harm.
        under_way: keys of objects after the head: a running microbatch may be writing them.
        problems: every violation of the protocol; empty in a sound log.
    """

    path: str
    head: int = -1
    floor: int = 0
    commits: int = 0
    leaders: int = 0
    dead: int = 0
    rows: int = 0
    bytes: int = 0
    orphans: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    under_way: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the log is sound."""
        return not self.problems

    def __str__(self) -> str:
        # The name of an object may hold line ends, and what looks like another line.
        return "\n".join(map(escape, self._lines()))

    def _lines(self) -> list[str]:
        if self.head < 0 and self.problems:
            return self.problems
        positions = f"positions {self.floor}…{self.head}"
        if self.floor > self.head >= 0:
            positions = f"no position above its floor, {self.floor}"
        text = (
            f"{self.path}: {positions}, {self.commits} commits, {self.leaders} leader records, "
            f"{self.dead} dead, {self.rows} rows, {self.bytes} bytes, {len(self.orphans)} orphans"
        )
        text = text if self.problems else f"{text}: sound"
        return [text, *self._of_others(), *self.torn, *self.problems]

    def _of_others(self) -> list[str]:
        if not self.foreign:
            return []
        shown = ", ".join(self.foreign[:_SHOWN])
        more = len(self.foreign) - _SHOWN
        return [f"no part of the log: {shown}" + (f" and {more} more objects" if more > 0 else "")]


@dataclass(frozen=True)
class VerifyOptions(StoreOptions):
    """The options of `verify`."""

    fast: bool = option(
        "fast",
        boolean,
        False,
        "trust the CRC-32s of segments, and do not read the records that they copy",
    )


def verify(path: str, **options: Unpack[VerifyKeywords]) -> Report:
    """Read a whole log and check every byte, also while others write.

    It costs a GET for each object, and a LIST for every thousand.

    Args:
        path: s3://bucket/prefix, file:///folder or a folder.
        **options: the options of the store, as for `sparkwal.Log`. With `fast=True` a sound segment
            stands for the records that it copies: about 4 GETs for a thousand of them. Damage of
            such a record is not noticed; a missing one is.

    Returns:
        A report. Damage is in its `problems` and raises no error.

    Raises:
        OptionError: an option or the path is wrong.
        StoreUnavailableError: the store did not answer.
    """
    settings = from_keywords(VerifyOptions, path, options)
    log = open_log(settings, fail_fast=True)
    report = verify_store(log, settings.log_path, fast=settings.fast)
    if report.ok and report.head < 0:
        # A path with a typo must not pass for a sound log.
        report.problems.append(no_log_at(log))
    return report


def verify_store(
    log: LogStore,
    path: str,
    done: Callable[[int, int], None] | None = None,
    *,
    fast: bool = False,
) -> Report:
    """Do `verify` in an open log.

    Args:
        log: the open log.
        path: names the log in the report.
        done: called with the number of positions that are checked, and of all positions.
        fast: see `VerifyOptions`.

    Returns:
        The report.
    """
    report = Report(path)
    head = _head(log, report)
    if head is None or head.live is None:
        report.torn += map(_waiting, head.torn if head else ())
        return report
    # List the objects after finding the head, so that the list holds all records before it.
    listed = {e.key: e.size for e in all_entries(log.store, keys.batches_prefix(log.prefix))}
    window = head.window
    report.head = _end(log, head, listed)
    floor = Floor(log, head.live.header.log_id)
    try:
        report.floor = floor.current()
    except InvalidLogError as error:
        report.problems.append(str(error))
        return report
    if report.floor > head.gap:
        report.problems.append(str(ends_before(log.url, head.gap, report.floor)))
    named, chain = set[str](), _Chain(log, window, report)
    has_blocks = report.head + 1 >= keys.BLOCK
    segments = CheckedSegments()
    if fast and has_blocks:
        segments = check_segments(log, with_records=False)
    span = range(report.floor, report.head + 1)
    add = report.problems.append
    for position, record in checked_slots(log, head.live, span, listed, segments.sound, add):
        named.add(log.key(keys.slot(position, window)))
        before = len(report.problems)
        if isinstance(record, CutFooter):
            report.torn.append(str(record))
            record = record.record
        if record is None:
            report.dead += 1
        elif isinstance(record, str):
            report.problems.append(_with_advice(log, position, record, window))
        else:
            for live in chain.add(record):
                if isinstance(live.header, CommitHeader):
                    named |= check_commit(log, live, report)
                    report.problems += _missing_copied(log, live, listed)
        if floor.current() > position:
            # The position was collected while it was read, and a free slot may hold any object.
            del report.problems[before:]
        if done is not None:
            done(position + 1 - report.floor, report.head + 1 - report.floor)
    chain.end(head)
    _add_others(report, floor, window, listed.keys() - named)
    if has_blocks and not fast:
        segments = check_segments(log, with_records=True)
    report.problems += segments.problems
    # The head is read twice, and may be reported twice.
    report.problems = list(dict.fromkeys(report.problems))
    return report


def _add_others(report: Report, floor: Floor, window: int, others: Set[str]) -> None:
    """Add the objects that no record names to the report."""
    prefix = keys.batches_prefix(floor.log.prefix)
    for key in sorted(others):
        name = key.removeprefix(prefix)
        number = keys.listed(name)
        if keys.is_foreign(name):
            report.foreign.append(key)
        elif number is None:
            report.problems.append(f"{key}: {keys.SUPERFLUOUS}")
        elif keys.position(number, window) < floor.current():
            continue
        elif keys.position(number, window) > report.head:
            report.under_way.append(key)
        else:
            report.orphans.append(key)


def _head(log: LogStore, report: Report) -> Head | None:
    try:
        return find_head(log, thorough=True)
    except InvalidLogError as error:
        report.problems.append(str(error))
    try:
        return find_head(log, damage=LENIENT)
    except InvalidLogError:
        # No record is intact.
        return None


def _end(log: LogStore, head: Head, listed: Container[str]) -> int:
    """The last position. A damaged end belongs to the log, although the head is before it."""
    position = head.position
    while not head.torn and log.key(keys.slot(position + 1, head.window)) in listed:
        position += 1
    return position


def _with_advice(log: LogStore, position: int, problem: object, window: int) -> str:
    """The problem with a record, and how to put the record back if a segment has a copy."""
    copy = copied(with_copies(log), position, window)
    if copy is None:
        return str(problem)
    if copy.declared > copy.size:
        return (
            f"{problem}. A segment has a copy of the record, which readers use, but not the files "
            "of the checkpoint in it: restore the object"
        )
    return (
        f"{problem}. A segment has a copy of the record, which readers use: sparkwal repair "
        f"{log.url} {position} puts it back"
    )


def _waiting(torn: TornRecord) -> str:
    return (
        f"{torn.name}: torn, {torn.size} bytes. It was not acknowledged, and the next writer "
        "continues after it"
    )


class _Chain:
    """Counts the live records, and checks the rules that hold from one to the next."""

    def __init__(self, log: LogStore, window: int, report: Report) -> None:
        self._log = log
        self._window = window
        self._report = report
        self._judge = Judge(LogView(log, window, damage=DamagePolicy(report=self._cut_off)), None)
        # The last live record, perhaps one below the floor.
        self._live: SlotRecord | None = None
        self._archives: dict[str, QueryProgress | None] = {}

    def _cut_off(self, torn: InvalidLogError) -> None:
        if torn.position is not None and torn.position >= self._report.floor:
            problem = _with_advice(self._log, torn.position, torn, self._window)
            self._report.problems.append(problem)

    def add(self, slot: Slot) -> list[SlotRecord]:
        """Count the record of the next slot, and compare it with the live one before.

        Returns:
            The records that are live by now and were not returned before.
        """
        report = self._report
        passed = len(self._judge.run.passed) if self._judge.run is not None else 0
        live = [
            record for record in self._judge.add(slot) if record.header.position >= report.floor
        ]
        run = self._judge.run
        assert run is not None
        if isinstance(slot, TornRecord):
            return live
        report.torn += (
            f"{torn.name}: torn, {torn.size} bytes. It was not acknowledged, and the log "
            f"continues at position {slot.header.position}"
            for torn in run.passed[passed:]
            if torn.position >= report.floor
        )
        report.dead += 1
        if self._live is None and not live:
            self._live = run.live
        for record in live:
            self._count(record)
        return live

    def _count(self, record: SlotRecord) -> None:
        header, report = record.header, self._report
        report.dead -= 1
        if isinstance(header, CommitHeader):
            report.commits += 1
            report.rows += header.rows
            report.bytes += header.bytes
        else:
            report.leaders += 1
        if self._live is not None:
            problems = self._against(header, self._live.header)
            report.problems += (f"position {header.position}: {problem}" for problem in problems)
        self._live = record

    def end(self, head: Head) -> None:
        """Report the torn records that no leader passed over."""
        waiting = self._judge.run.torn if self._judge.run is not None else ()
        by_position = {torn.position: torn for torn in (*waiting, *head.torn)}
        self._report.torn += map(_waiting, by_position.values())

    def _against(self, header: SlotHeader, last: SlotHeader) -> Iterator[str]:
        if header.log_id != last.log_id:
            yield f"it belongs to another log, {header.log_id}"
        if header.timestamp_ms < last.timestamp_ms:
            yield "its timestamp goes back"
        for query, (batch, _) in last.txns.items():
            memory = self._memory(header, query)
            if query.startswith(ANONYMOUS) or memory is None:
                continue
            if memory.txns.get(query, _NEVER)[0] < batch:
                yield f"it forgets that {query} reached {batch}"
        for query, entry in last.checkpoints.items():
            memory = self._memory(header, query)
            new = entry if memory is None else memory.checkpoints.get(query)
            if new is None or new.position < entry.position:
                yield f"it forgets the position of the checkpoint of {query}"
        if isinstance(header, CommitHeader):
            if last.txns.get(header.query_id, _NEVER)[0] >= header.batch_id:
                yield f"microbatch {header.batch_id} of {header.query_id} is doubled"
            if header.txns.get(header.query_id, _NEVER)[0] != header.batch_id:
                yield "its transactions leave out its own"
            if header.term != last.term:
                yield "a new term without a leader record"

    def _memory(self, header: SlotHeader, query: str) -> SlotHeader | QueryProgress | None:
        """What holds a query: the record or its archive, or None if the archive is unreadable."""
        name = header.txns_archive
        if query in header.txns or not name:
            return header
        if name not in self._archives:
            self._archives[name] = None
            try:
                self._archives[name] = read_archive(self._log, name)
            except InvalidLogError as error:
                self._report.problems.append(str(error))
        return self._archives[name]


def _missing_copied(log: LogStore, record: SlotRecord, listed: Container[str]) -> Iterator[str]:
    """A line for each missing object of a commit whose rows a segment has."""
    header = record.header
    assert isinstance(header, CommitHeader)
    for batch in header.batches:
        key = log.key(batch.number)
        if batch.partition in record.copied and key not in listed:
            name = f"{key} (position {header.position}, partition {batch.partition})"
            yield f"{name}: missing, though its commit record names it"


def check_commit(log: LogStore, record: SlotRecord, report: Report) -> set[str]:
    """Check every object that a commit names, and return their keys."""
    # The objects are checked, not their copies.
    log = log.without_copies
    header = record.header
    assert isinstance(header, CommitHeader)
    if header.erased:
        report.problems.append(
            f"{log.locate(header.number, header.window)}: its rows were erased, and it is not "
            "below the floor: lifecycle/ was deleted or restored from an older copy"
        )
        return {log.key(batch.number) for batch in header.batches}
    pieces = [piece for piece in pieces_of(log, record) if piece.copied is None]
    inlined = [piece for piece in pieces if piece.inlined]
    target = schema.to_arrow(record.spark_schema)
    damage: list[InvalidLogError] = []
    list(read_pieces(log, inlined, target, on_damage=damage.append))
    report.problems += (
        _with_advice(log, header.position, error, header.window) for error in damage
    )
    # The segment that the record comes from has checked rows of the others.
    batches = [batch for batch in header.batches if batch.partition not in record.copied]
    objects = [replace(header, batches=(batch,), inline=()) for batch in batches]
    problems = run_parallel(
        log.store, lambda of_object: _check_object(log, record, of_object), objects
    )
    report.problems += filter(None, problems)
    return {log.key(batch.number) for batch in header.batches}


def _check_object(log: LogStore, record: SlotRecord, header: CommitHeader) -> str | None:
    """The problem with the only object that the header names, or None."""
    [batch] = header.batches
    key = log.key(batch.number)
    name = f"{key} (position {header.position}, partition {batch.partition})"
    frames = split(pieces_of(log, replace(record, header=header)))

    def read() -> bytes:
        data = log.store.get(key)
        stored = arrowfile.open_front(data, name).header
        if len(data) != batch.bytes or crc32(data) != batch.crc32:
            raise InvalidLogError(f"{name}: its bytes are not those that were committed")
        plan = header.plan_id, header.log_id, batch.number
        if (stored.plan_id, stored.log_id, stored.number) != plan:
            raise InvalidLogError(
                f"{name}: it was written under another plan than its commit record"
            )
        return data

    try:
        data = sound(key, read, read)
        frames = [replace(x, data=data[x.offset : x.offset + x.length]) for x in frames]
        for _ in read_pieces(log, frames, schema.to_arrow(record.spark_schema)):
            pass
        arrowfile.check_footer(data, name)
    except NotFound:
        return f"{name}: missing, though its commit record names it"
    except InvalidLogError as error:
        return str(error)
    if (rows := sum(frame.rows for frame in frames)) != batch.rows:
        return f"{name}: {rows} rows in its frames, {batch.rows} in the record"
    return None
