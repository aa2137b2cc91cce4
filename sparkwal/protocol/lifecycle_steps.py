"""The steps of the chain, as pure functions from the newest record to the next one (PROTOCOL §10).

`promised` and `promised_again` open a range of a table, `done` and `burned` close it. `with_table`,
`with_target`, `moved` and `with_logs` change what they name. `chain.Chain.put` gives the next
record its number, its id and its time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sparkwal.format.lifecycle_record import (
    BURNED,
    DONE,
    FLOOR,
    INTENT,
    ChainRecord,
    LogInChain,
    OpenRange,
    TableInChain,
    Target,
)


def promised(
    record: ChainRecord,
    table: TableInChain,
    ranges: Sequence[OpenRange],
    gc_grace_ms: int,
    *,
    aside: bool = False,
) -> ChainRecord:
    """Promise ranges of logs to a table, as its next range.

    Args:
        record: the newest record, without an open range of the table.
        table: the table as it was confirmed last; for the first promise its `k` is 0.
        ranges: one for each log.
        gc_grace_ms: the grace, if it is longer than that of the chain.
        aside: the rows that the table refuses step aside. Then it is the range of one log.
    """
    url, k = table.target.table, table.k + 1
    logs = dict(record.logs)
    for range_ in ranges:
        log = logs.get(range_.sequencer, LogInChain(range_.log_id))
        # SAFETY(aside-until-done) §10: rows of a log step aside from each range until one is done
        of_range = k if aside or log.aside else 0
        assert len(ranges) == 1 or not of_range
        logs[range_.sequencer] = replace(
            log, cut=range_.cut, to=range_.to, table=url, aside=of_range
        )
    tables = {**record.tables, url: replace(table, k=k)}
    grace_ms = longer_grace(record, gc_grace_ms)
    return replace(record, kind=INTENT, logs=logs, tables=tables, gc_grace_ms=grace_ms)


def promised_again(record: ChainRecord, table: TableInChain, sequencer: str) -> ChainRecord:
    """Promise the refused rows of a log to its table once more, as the table's next range.

    Args:
        record: the newest record, without an open range of the table.
        table: the table as it was confirmed last. It has refused rows.
        sequencer: the name of the log.
    """
    url, k = table.target.table, table.k + 1
    log = record.logs[sequencer]
    assert log.table == url and table.refused is not None
    logs = {**record.logs, sequencer: replace(log, again=k)}
    tables = {**record.tables, url: replace(table, k=k)}
    return replace(record, kind=INTENT, logs=logs, tables=tables)


def done(record: ChainRecord, table: TableInChain, rows_aside: int = 0) -> ChainRecord:
    """Close the open range of a table, which holds it.

    Args:
        record: the newest record, with the open range.
        table: the table, as it was confirmed after the write.
        rows_aside: the number of rows that stepped aside from the range.
    """
    url = table.target.table
    logs = {
        name: replace(
            log,
            # SAFETY(done-closes-all) §10: a range that is done is done for each log that it takes
            cut=log.to,
            unreadable=0,
            refused_ms=0,
            tried_ms=0,
            aside=0,
            rows_aside=log.rows_aside + rows_aside,
        )
        if log.is_open and log.table == url
        else log
        for name, log in record.logs.items()
    }
    for name, log in record.logs.items():
        if log.again and log.table == url:
            # `aside` stays: the next range of positions removes what is left of one given up.
            # SAFETY(taken-when-done) §10: refused rows that are written again count no more once
            # the range is done
            logs[name] = replace(log, again=0, taken=table.k, rows_aside=rows_aside)
    return replace(record, kind=DONE, logs=logs, tables={**record.tables, url: table})


def burned(
    record: ChainRecord,
    table: TableInChain,
    *,
    unreadable: Iterable[str],
    refused: Iterable[str],
    now_ms: int,
) -> ChainRecord:
    """Give the open range of a table up: the table has its transaction and none of its rows.

    Args:
        record: the newest record, with the open range.
        table: the table, as it was confirmed after the burn.
        unreadable: the logs of the range that cannot be read. The record marks them.
        refused: the log of the range, if the table refused its rows. The record marks it.
        now_ms: the present time.
    """
    url = table.target.table
    logs = {
        # SAFETY(burned-again-waits) §10: refused rows wait as before if the range that writes them
        # again is given up
        name: replace(log, to=log.cut, again=0) if log.table == url else log
        for name, log in record.logs.items()
    }
    for name in unreadable:
        logs[name] = replace(logs[name], unreadable=table.k)
    for name in refused:
        if record.logs[name].again:
            # Its positions were not refused.
            continue
        first_ms = logs[name].refused_ms or now_ms
        logs[name] = replace(logs[name], refused_ms=first_ms, tried_ms=now_ms)
    return replace(record, kind=BURNED, logs=logs, tables={**record.tables, url: table})


def with_table(record: ChainRecord, table: TableInChain) -> ChainRecord:
    """Take a table as it is now: a newer version, or one that a person restored.

    Args:
        record: the newest record.
        table: the table. With a higher `k` its open range is promised again under that number.
    """
    url = table.target.table
    is_open = any(log.is_open and log.table == url for log in record.logs.values())
    is_again = is_open and table.k != record.tables[url].k
    kind = INTENT if is_again else FLOOR
    return replace(record, kind=kind, tables={**record.tables, url: table})


def with_target(record: ChainRecord, target: Target) -> ChainRecord:
    """Change the way rows reach a table, from its next range on.

    Args:
        record: the newest record, without an open range of the table.
        target: the table, and the new way.
    """
    url = target.table
    logs = {
        name: replace(log, refused_ms=0, tried_ms=0) if log.table == url else log
        for name, log in record.logs.items()
    }
    tables = {**record.tables, url: replace(record.tables[url], target=target)}
    return replace(record, kind=FLOOR, logs=logs, tables=tables)


def moved(record: ChainRecord, former: str, target: Target) -> ChainRecord:
    """Give a table another place, for all logs that it takes.

    Args:
        record: the newest record.
        former: the table's former URL.
        target: the same target with the new URL, which no other table of the record has.
    """
    url = target.table
    logs = {
        name: replace(log, table=url) if log.table == former else log
        for name, log in record.logs.items()
    }
    others = {other: table for other, table in record.tables.items() if other != former}
    tables = {**others, url: replace(record.tables[former], target=target)}
    return replace(record, logs=logs, tables=tables)


def with_logs(record: ChainRecord, logs: Mapping[str, LogInChain], gc_grace_ms: int) -> ChainRecord:
    """Change logs: move their floors, or note below which positions no row is left.

    Args:
        record: the newest record.
        logs: the new states of these logs, by name.
        gc_grace_ms: the grace, if it is longer than that of the chain.
    """
    grace_ms = longer_grace(record, gc_grace_ms)
    return replace(record, kind=FLOOR, logs={**record.logs, **logs}, gc_grace_ms=grace_ms)


def longer_grace(record: ChainRecord, gc_grace_ms: int) -> int:
    """The grace from now on. Readers of an earlier record rely on the one in it."""
    return max(gc_grace_ms, record.gc_grace_ms)
