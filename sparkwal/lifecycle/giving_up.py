"""Gives a range of several logs up if one of them cannot be read: it stops no other log."""

from collections.abc import Iterable
from contextlib import suppress

from sparkwal import events
from sparkwal.errors import ReadError, SparkWalError
from sparkwal.format import schema
from sparkwal.format.lifecycle_record import LifecycleRecord, OpenRange
from sparkwal.lifecycle.compaction import CONFLICTS, Chain, Range, confirm_table, finish_range
from sparkwal.lifecycle.table import Table, TableConflict
from sparkwal.protocol.records import live_records
from sparkwal.protocol.recovery import find_head
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
        log = root.sequencer(part.sequencer)
        try:
            window = find_head(log).window
            for record in live_records(log, window, part.cut, part.to, log_id=part.log_id):
                columns = schema.to_arrow(record.spark_schema)
                for _ in read_pieces(root.store, pieces_of(log, record), columns):
                    pass
        except SparkWalError as error:
            return part.sequencer, error
        return part.sequencer, None

    checked = run_parallel(root.store, check, ranges)
    return {name: error for name, error in checked if error is not None}


def finish_or_give_up(
    chain: Chain, intent: LifecycleRecord, table: Table, *, has_others: bool
) -> tuple[LifecycleRecord, dict[str, Range], dict[str, SparkWalError]]:
    """Finish the open range, or give it up if a log in it cannot be read.

    Args:
        chain: puts the record.
        intent: the newest record, with the open range.
        table: the table.
        has_others: other logs wait for the table. A single log waits until it is repaired.

    Returns:
        As `finish_range`, and the errors of the logs that cannot be read.

    Raises:
        CompactionError: as `finish_range`.
        MovedOn: another process changed the lifecycle first.
    """
    try:
        return *finish_range(chain, intent, table), {}
    except ReadError as error:
        bad = unreadable(chain.log.root, intent.ranges)
        if not bad or not (has_others or intent.others):
            raise
        events.emit(events.CompactionSuspended(chain.log.root.url, error.stage, str(error)))
        return *_give_up(chain, intent, table), bad


def _give_up(
    chain: Chain, intent: LifecycleRecord, table: Table
) -> tuple[LifecycleRecord, dict[str, Range]]:
    """Burn the open range in the table and publish that, unless the table has its rows already.

    The table decides between this and a slow writer of the same range: the first commit wins.

    Returns:
        As `finish_range`.

    Raises:
        CompactionError: as `finish_range`.
        MovedOn: another process changed the lifecycle first.
    """
    for _ in range(CONFLICTS):
        if confirm_table(chain.log, intent, table).k == intent.k:
            break
        # SAFETY(burn-in-table) §10: a range is given up only after its transaction is in the table
        with suppress(TableConflict):
            table.burn(intent)
    return finish_range(chain, intent, table)
