"""Putting a damaged record right from what its object still says at its other end."""

from __future__ import annotations

import pyarrow as pa

from sparkwal.errors import InvalidLogError
from sparkwal.format import arrowfile, keys
from sparkwal.format.header import CommitHeader, from_metadata
from sparkwal.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.store import StoreOptions
from sparkwal.protocol.log_store import LogStore
from sparkwal.store.base import NotFound


def repair(path: str, number: int, **options: object) -> None:
    """Replace the damaged record `number` of a log by what its own footer says of it.

    No writer may run. The object is first saved under `{path}/repaired/`, so that a
    repair that breaks off can be run again.

    Args:
        path, options: where the log is, as for `sparkwal.Log`.
        number: the object's name, as the error tells it.

    Raises InvalidLogError, and changes nothing, where the footer is damaged too or the
    rows are: restore the object then. StoreUnavailableError, OptionError.
    """
    settings = from_keywords(StoreOptions, path, options)
    repair_record(open_log(settings, fail_fast=True), number)


def repair_record(log: LogStore, number: int) -> None:
    """As `repair`, of a store that is already open."""
    key = log.key(number)
    saved = keys.join_key(log.prefix, "repaired", keys.encode(number))
    try:
        sound = rebuilt(log.store.get(key), log.where(number))
    except NotFound:
        try:
            # An earlier repair ended between its delete and its PUT.
            sound = log.store.get(saved)
        except NotFound:
            raise InvalidLogError(f"{log.where(number)}: there is no such object") from None
    log.store.put_if_absent(saved, sound)
    log.store.delete(key)
    log.store.put_if_absent(key, sound)
    log.store.delete(saved)


def rebuilt(data: bytes, where: str) -> bytes:
    """The bytes of a slot record whose front is damaged, its front made again from its footer.

    Raises InvalidLogError where that makes no sound record.
    """
    try:
        schema = pa.ipc.open_file(data).schema
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InvalidLogError(f"{where}: its footer cannot be read either: {error}") from None
    from_metadata(schema.metadata, where)
    front: bytes = arrowfile.MAGIC + schema.serialize().to_pybytes()
    sound = front + data[len(front) :]
    opened = arrowfile.open_front(sound, where)
    if isinstance(opened.header, CommitHeader):
        offset = opened.body
        for part in opened.header.inline:
            arrowfile.check_crc(sound[offset : offset + part.bytes], part.crc32, where)
            offset += part.bytes
    arrowfile.check_footer(sound, where)
    return sound
