"""The chain of lifecycle records: each is made from the one before (PROTOCOL §10)."""

import uuid
from dataclasses import replace
from typing import Any

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.format.lifecycle_record import LifecycleRecord, decode, encode
from sparkwal.protocol.clock import Clock
from sparkwal.store.base import LogStore, NotFound


def look(log: LogStore, log_id: str | None = None) -> LifecycleRecord | None:
    """The newest record of the chain, or None: 1 LIST, and 1 GET if there is one. With `log_id`, a
    chain that an earlier log left at this path counts as none. Raises InvalidLogError."""
    prefix = keys.lifecycle_prefix(log.prefix)
    # List after the prefix itself: some tools create an object there to stand for a folder.
    while entries := log.store.list(prefix, 1, prefix).entries:
        key = entries[0].key
        number = keys.listed(key.removeprefix(prefix))
        where = f"{log.store.url}/{key}"
        if number is None:
            raise InvalidLogError(
                f"{where}: no name of a lifecycle record; move it away. (It may be of another log, "
                "which began inside this one)"
            )
        try:
            found = decode(log.store.get(key), where)
        except NotFound:
            continue  # the whole log is being deleted
        if found.number != number:
            raise InvalidLogError(f"{where}: the record says number {found.number}")
        # SAFETY(chain-log-id) §10: the chain of another log_id counts as no chain
        return found if log_id in (None, found.log_id) else None
    return None


def beginning(log_id: str, sequencer: str, gc_grace_ms: int) -> LifecycleRecord:
    """The state of a log without a chain; `put_next` makes the first record from it."""
    return LifecycleRecord(log_id=log_id, sequencer=sequencer, gc_grace_ms=gc_grace_ms)


def put_next(
    log: LogStore, head: LifecycleRecord, kind: str, clock: Clock, host: str, **changes: Any
) -> LifecycleRecord | None:
    """Put the record after `head`, with `changes` in its fields: 1 conditional PUT. Returns it, or
    None if another process's is there: look again and decide anew. Raises InvalidLogError."""
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
    if log.store.put_if_absent(key, data):
        return record
    # The number is taken, perhaps by our own PUT whose reply was lost.
    try:
        found = log.store.get(key)
    except NotFound:
        return None
    # SAFETY(chain-read-back) §10: a refused lifecycle record counts only if its bytes are there
    return record if found == data else None
