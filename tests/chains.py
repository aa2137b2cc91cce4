"""The chain of a path as tests see it: one log with its table, and records that they put."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from sparkwal.format.lifecycle_record import (
    ChainRecord,
    LogInChain,
    Promise,
    TableInChain,
    Target,
)
from sparkwal.protocol import chain
from sparkwal.protocol.clock import Clock
from sparkwal.store.base import LogStore

_OF_LOG = {field.name for field in fields(LogInChain)} - {"table"}
_OF_TABLE = {field.name for field in fields(TableInChain)}
_OF_RECORD = {field.name for field in fields(ChainRecord)}


@dataclass(frozen=True)
class Seen:
    """One log in a record. Its attributes are those of the log, of its table and of the record."""

    record: ChainRecord
    sequencer: str = "default"

    @property
    def log(self) -> LogInChain:
        return self.record.logs[self.sequencer]

    @property
    def target(self) -> Target | None:
        return self.record.target_of(self.sequencer)

    @property
    def promise(self) -> Promise:
        """That of the table, which it has."""
        promise = self.record.promise(self.log.table)
        assert promise is not None
        return promise

    @property
    def txn_id(self) -> str:
        return self.app_id or self.log.log_id

    @property
    def is_open(self) -> bool:
        return self.target is not None and self.promise.is_open

    def __getattr__(self, name: str) -> Any:
        if name in _OF_LOG:
            return getattr(self.log, name)
        if name in _OF_TABLE:
            return getattr(self.record.tables.get(self.log.table) or _TABLE, name)
        if name in _OF_RECORD:
            return getattr(self.record, name)
        raise AttributeError(name)


# What a log without a table has of one.
_TABLE = TableInChain(Target(""), "", 0)


def newest(log: LogStore, log_id: str | None = None) -> Seen | None:
    """The log in the newest record of its chain, or None if the chain does not have it."""
    record = chain.newest_record(log)
    return Seen(record, log.name) if record and record.log(log.name, log_id) else None


def beginning(
    log_id: str, sequencer: str, gc_grace_ms: int, record: ChainRecord | None = None
) -> Seen:
    """A log that the chain does not have, as its first record begins with it."""
    record = record or ChainRecord(gc_grace_ms=gc_grace_ms)
    return Seen(replace(record, logs={**record.logs, sequencer: LogInChain(log_id)}), sequencer)


def with_target(seen: Seen, target: Target) -> Seen:
    """A log without a table as one that its next intent gives a table."""
    log = seen.log
    start = max(log.cut, log.floor)
    log = replace(log, cut=start, to=start)
    if target.table in seen.record.tables:
        log = replace(log, table=target.table)
    logs = {**seen.record.logs, seen.sequencer: log}
    return Seen(replace(seen.record, logs=logs), seen.sequencer)


def made(
    kind: str = "",
    log_id: str = "log",
    sequencer: str = "default",
    gc_grace_ms: int = 0,
    **changes: Any,
) -> Seen:
    """A log in a record that was not put."""
    begun = beginning(log_id, sequencer, gc_grace_ms)
    return Seen(changed(begun, kind, **changes), sequencer)


def changed(seen: Seen, kind: str, **changes: Any) -> ChainRecord:
    """The record after that of `seen`, with changes of the log, its table and the record."""
    record = seen.record
    target = changes.pop("target", None) or seen.target
    logs, tables = dict(record.logs), dict(record.tables)
    of_log = {name: changes.pop(name) for name in _OF_LOG & {*changes}}
    of_table = {name: changes.pop(name) for name in _OF_TABLE & {*changes}}
    log = logs[seen.sequencer]
    if target is not None:
        table = tables.get(target.table, TableInChain(target, log.log_id, 0))
        tables[target.table] = replace(table, target=target, **of_table)
        log = replace(log, table=target.table)
    logs[seen.sequencer] = replace(log, **of_log)
    return replace(record, kind=kind, logs=logs, tables=tables, **changes)


def put_next(
    log: LogStore, seen: Seen, kind: str, clock: Clock, host: str, **changes: Any
) -> Seen | None:
    """Put the record after that of `seen`, with `changes`.

    Returns:
        The log in the record, or None if another process has put one there.
    """
    record = chain.put_record(log, changed(seen, kind, **changes), clock, host)
    return Seen(record, seen.sequencer) if record else None
