"""Gives an open range up: if a log in it cannot be read and others wait, or if a user wants it."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from sparkwal import events
from sparkwal.errors import ReadError, SparkWalError
from sparkwal.format import schema
from sparkwal.format.lifecycle_record import ChainRecord, OpenRange
from sparkwal.lifecycle.compaction import (
    CONFLICTS,
    Range,
    busy,
    confirm_table,
    promise_to,
    publish_range,
    write_range,
)
from sparkwal.lifecycle.table import Table, TableConflict, TableState, is_burned
from sparkwal.protocol.chain import Chain
from sparkwal.protocol.records import live_records
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.segments import with_copies
from sparkwal.reading.rows import pieces_of, read_pieces
from sparkwal.store.base import LogStore
from sparkwal.store.parallel import run_parallel


def unreadable(root: LogStore, ranges: Iterable[OpenRange]) -> dict[str, SparkWalError]:
    """Read all rows of ranges, side by side.

    Args:
        root: the log at the path.
        ranges: the ranges, one for each log.

    Returns:
        The errors of the logs that cannot be read, by name.
    """

    def check(part: OpenRange) -> tuple[str, SparkWalError | None]:
        log = with_copies(root.sequencer(part.sequencer))
        try:
            window = find_head(log).window
            for record in live_records(log, window, part.cut, part.to, log_id=part.log_id):
                columns = schema.to_arrow(record.spark_schema)
                for _ in read_pieces(log, pieces_of(log, record), columns):
                    pass
        except SparkWalError as error:
            return part.sequencer, error
        return part.sequencer, None

    checked = run_parallel(root.store, check, ranges)
    return {name: error for name, error in checked if error is not None}


def finish_or_give_up(
    chain: Chain, record: ChainRecord, table: Table, *, has_others: bool
) -> tuple[ChainRecord, dict[str, Range], dict[str, SparkWalError]]:
    """Finish the open range, or give it up if a log in it cannot be read.

    Args:
        chain: puts the record.
        record: the newest record, with the open range.
        table: the table.
        has_others: other logs wait for the table. A single log waits until it is repaired.

    Returns:
        As `publish_range`, and the errors of the logs that cannot be read.

    Raises:
        CompactionError: as `write_range` and `publish_range`.
        MovedOn: another process changed the lifecycle first.
    """
    promise = promise_to(record, table)
    try:
        snapshot = write_range(chain, record, table)
    except ReadError as error:
        bad = unreadable(chain.log.root, promise.ranges)
        if not bad or not (has_others or len(promise.ranges) > 1):
            raise
        events.emit(events.CompactionSuspended(chain.log.root.url, error.stage, str(error)))
        snapshot = _burn(chain, record, table)
    else:
        # If the process that burned the range died, only its rows show why.
        bad = unreadable(chain.log.root, promise.ranges) if is_burned(promise, snapshot) else {}
    # SAFETY(unreadable-marked) §10: a record that gives a range up marks the logs that cannot be
    # read
    return *publish_range(chain, record, table, snapshot, bad), bad


@dataclass(frozen=True)
class ClosedRange:
    """A range that was open, and that a user wanted to give up.

    Attributes:
        k: its number.
        table: the URL of the table to which it was promised.
        parts: its positions of each log.
        is_written: the table holds its rows, so the range is done. Otherwise it was given up.
        table_version: the table's version after it.
    """

    k: int
    table: str
    parts: tuple[OpenRange, ...]
    is_written: bool
    table_version: int


def give_up_open_range(chain: Chain, record: ChainRecord, table: Table) -> ClosedRange:
    """Give the open range up, unless the table has its rows.

    Args:
        chain: puts the record.
        record: the newest record, with the open range.
        table: the table.

    Raises:
        CompactionError: as `write_range` and `publish_range`.
        MovedOn: another process changed the lifecycle first.
    """
    promise = promise_to(record, table)
    snapshot = _burn(chain, record, table)
    _, written = publish_range(chain, record, table, snapshot)
    url = table.target.table
    return ClosedRange(promise.table.k, url, promise.ranges, bool(written), snapshot.version)


def _burn(chain: Chain, record: ChainRecord, table: Table) -> TableState:
    """Burn the open range in the table, unless the table has its rows already.

    The table decides between this and a slow writer of the same range: the first commit wins.

    Returns:
        The newest snapshot, which has the transaction of the range.

    Raises:
        CompactionError: as `write_range` and `publish_range`.
        MovedOn: another process changed the lifecycle first.
    """
    promise = promise_to(record, table)
    for _ in range(CONFLICTS + 1):
        if (snapshot := confirm_table(chain, record, table)).k == promise.table.k:
            return snapshot
        # SAFETY(burn-in-table) §10: a range is given up only after its transaction is in the table
        with suppress(TableConflict), chain.unless_moved_on(record):
            table.burn(promise)
    raise busy(table)
