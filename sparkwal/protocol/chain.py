"""The chain of lifecycle records. Each is derived from the one before (PROTOCOL §10)."""

import uuid
from dataclasses import replace
from typing import Any

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys, limits
from sparkwal.format.lifecycle_record import LifecycleRecord, decode, encode
from sparkwal.protocol.clock import Clock
from sparkwal.store.base import LogStore, NotFound, get_whole


def look(log: LogStore, log_id: str | None = None) -> LifecycleRecord | None:
    """Read the newest record of the chain, or None without one: 1 LIST, and 1 GET if there is a
    record.

    With `log_id`, a chain that an earlier log left at this path counts as none.

    Raises:
        InvalidLogError: a record is damaged.
    """
    prefix = keys.lifecycle_prefix(log.prefix)
    # Some tools create an object with the prefix itself as its name, to mark a folder: skip it.
    while entries := log.store.list(prefix, 1, prefix).entries:
        key = entries[0].key
        number = keys.listed(key.removeprefix(prefix))
        name = f"{log.store.url}/{key}"
        if number is None:
            raise InvalidLogError(
                f"{name}: this is no name of a lifecycle record; move it away. (It may belong to "
                "another log, which began inside this one)"
            )
        try:
            record = decode(get_whole(log.store, key, limits.LIFECYCLE_RECORD), name)
        except NotFound:
            # The log is being deleted.
            continue
        if record.number != number:
            raise InvalidLogError(f"{name}: the record holds number {record.number}")
        # SAFETY(chain-log-id) §10: the chain of another log_id counts as no chain
        return record if log_id in (None, record.log_id) else None
    return None


def _check_readable(data: bytes, record: LifecycleRecord, where: str) -> None:
    """Raises InvalidLogError for a record that readers refuse: the chain would end with it."""
    try:
        if keys.listed(keys.encode(record.number)) is None or decode(data, where) != record:
            raise InvalidLogError(f"{where}: the record reads back as another")
    except InvalidLogError as error:
        raise InvalidLogError(
            f"{error}. No reader would take this record, so it was not written. Look at the record "
            "before it: no compaction makes one from which none can follow"
        ) from None


def beginning(log_id: str, sequencer: str, gc_grace_ms: int) -> LifecycleRecord:
    """The state of a log without a chain. `put_next` derives the first record from it."""
    return LifecycleRecord(log_id=log_id, sequencer=sequencer, gc_grace_ms=gc_grace_ms)


def put_next(
    log: LogStore, head: LifecycleRecord, kind: str, clock: Clock, host: str, **changes: Any
) -> LifecycleRecord | None:
    """Put the record after `head`, with `changes` in its fields: 1 conditional PUT.

    Returns:
        The record, or None if another process has put one there: then look and decide again.
    """
    record = replace(
        head,
        kind=kind,
        # SAFETY(next-of-its-base) §10: a lifecycle record goes to the number after its base's
        number=head.number - 1,
        record_id=uuid.uuid4().hex,
        timestamp_ms=max(clock.now_ms(), head.timestamp_ms),
        host=host,
        **changes,
    )
    key = keys.lifecycle_key(log.prefix, record.number)
    data = encode(record)
    _check_readable(data, record, f"{log.store.url}/{key}")
    if log.store.put_if_absent(key, data):
        return record
    # The number is taken, perhaps by our own PUT whose reply was lost.
    try:
        stored = log.store.get_range(key, 0, len(data) + 1)
    except NotFound:
        return None
    # SAFETY(chain-read-back) §10: a refused lifecycle record counts only if its bytes are there
    return record if stored == data else None
