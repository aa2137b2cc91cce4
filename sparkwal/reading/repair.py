"""Repairs a damaged record from the copy of its header in its footer, or gives up a lost record."""

import uuid
from dataclasses import fields
from typing import Unpack

import pyarrow as pa

from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format import arrowfile, keys
from sparkwal.format.header import CommitHeader, LeaderHeader, from_metadata, host_of
from sparkwal.options.keywords import StoreKeywords
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.options.store import StoreOptions
from sparkwal.protocol.liveness import passed_by
from sparkwal.protocol.recovery import find_head, last_live
from sparkwal.protocol.slots import GLANCE, SlotRecord, TornRecord, read_any, read_slot
from sparkwal.protocol.takeover import put_leader
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.segmenting import delete_damaged
from sparkwal.store.base import LogStore, NotFound


def repair(
    path: str, position: int, *, give_up: bool = False, **options: Unpack[StoreKeywords]
) -> None:
    """Repair the damaged record at a position: its footer holds a copy of its header.

    A damaged segment with this position is deleted. No writer and no maker of segments may run
    meanwhile. The damaged object is first saved under `{path}/repaired/`, so you may repeat a
    repair.

    Args:
        path: s3://bucket/prefix, file:///folder or a folder.
        position: the position that the error names, or the number that is the object's name.
        give_up: put a record without rows at a position whose record is lost, so that readers and
            writers get past it. The rows of the lost record stay lost; all others remain.
        **options: as for `sparkwal.Log`.

    Raises:
        InvalidLogError: the footer or the rows are damaged too: restore the object. With `give_up`:
            the position holds an object, or the record before it is missing or damaged.
        OptionError: an argument is wrong.
        StoreUnavailableError: the store did not answer.
    """
    if not isinstance(position, int) or position < 0:
        raise OptionError(f"position is {position!r}; a whole number from 0 is expected")
    log = open_log(from_keywords(StoreOptions, path, options), fail_fast=True)
    number = position
    # No log is so long that the name of an object is also a position.
    if position <= keys.last_position(min(keys.WINDOWS)):
        window = find_head(log, tolerant=True).window
        number = keys.slot(position, window)
        _check_needed(log, position, window)
    if give_up:
        give_up_record(log, number)
    elif not _repair_segment(log, number) or not _is_whole(log, number):
        repair_record(log, number)


def _repair_segment(log: LogStore, number: int) -> bool:
    """Delete the segment of a record's block if it is damaged. Return whether it was deleted."""
    seen = LogRange(SourceOptions(path=log.url), keys.ROOT, log)
    try:
        seen.refresh()
    except InvalidLogError:
        # The records at the end are repaired first.
        return False
    if seen.live is None or not keys.is_slot(number, seen.window):
        return False
    return delete_damaged(seen, keys.position(number, seen.window) // keys.BLOCK)


def _is_whole(log: LogStore, number: int) -> bool:
    """Whether a record is there and sound."""
    try:
        data = log.store.get(log.key(number))
        return rebuilt(data, log.locate(number)) == data
    except (InvalidLogError, NotFound):
        return False


def _check_needed(log: LogStore, position: int, window: int) -> None:
    """Check that nobody passes over a record anyway.

    Raises:
        InvalidLogError: the record is torn, and its slot needs no repair.
    """
    slot = read_any(log, position, window, GLANCE, tolerant=True)
    if not isinstance(slot, TornRecord):
        return
    try:
        passed_by(log, slot, window)
    except InvalidLogError:
        return
    raise InvalidLogError(
        f"{slot.name}: the store kept {slot.size} bytes of a record that nobody acknowledged. It "
        "needs no repair: readers pass over it, and the next writer continues after it"
    )


def repair_record(log: LogStore, number: int) -> None:
    """Do `repair` in an open log."""
    key = log.key(number)
    saved = keys.join_key(log.prefix, "repaired", keys.encode(number))
    try:
        sound = rebuilt(log.store.get(key), log.locate(number))
    except NotFound:
        try:
            # An earlier repair ended between its delete and its PUT.
            sound = log.store.get(saved)
        except NotFound:
            raise InvalidLogError(f"{log.locate(number)}: there is no such object") from None
    log.store.put_if_absent(saved, sound)
    log.store.delete(key)
    log.store.put_if_absent(key, sound)
    log.store.delete(saved)


def give_up_record(log: LogStore, number: int) -> None:
    """Do `repair` with `give_up` in an open log: 1 conditional PUT."""
    name = log.locate(number)
    head = find_head(log, tolerant=True)
    position = keys.position(number, head.window)
    if not keys.is_slot(number, head.window) or not position > 0:
        raise InvalidLogError(
            f"{name} is not a record that can be given up: the first record of a log has no "
            "predecessor, and an object with rows belongs to a record"
        )
    if position > head.position:
        raise InvalidLogError(f"{name}: the log ends before it, so no record is lost")
    record = read_slot(log, position - 1, head.window)
    if record is None:
        raise InvalidLogError(
            f"{name}: the record before it, {log.locate(keys.slot(position - 1, head.window))}, is "
            "missing too: begin with that one"
        )
    before = last_live(log, record)
    last = vars(before.header)
    # The fields that leader records and commit records share.
    shared = {field.name: last[field.name] for field in fields(LeaderHeader) if field.name in last}
    # Use the lost record's term. A higher one would kill acknowledged commits after it, and a lower
    # one would revive dead ones.
    shared["term"] += _takeover(log, before, position)
    shared |= {"number": number, "position": position, "plan_id": uuid.uuid4().hex}
    shared |= {
        "decided": position - 1,
        "prev_position": position - 1,
        "host": host_of(before.header),
    }
    shared["schema_crc32"] = arrowfile.schema_crc(before.spark_schema)
    header = LeaderHeader(**{**shared, "reason": "the record that was here is given up"})
    if position - position % keys.BLOCK + keys.BLOCK <= head.position:
        # Its witness knew the lost record, so readers would still use it.
        log.store.delete(keys.segment_key(log.prefix, position // keys.BLOCK, head.window))
    if not put_leader(log, header, before.spark_schema):
        raise InvalidLogError(f"{name} exists: delete it first to give it up")


def _takeover(log: LogStore, before: SlotRecord, position: int) -> bool:
    """Whether the lost record was the leader record of the next term.

    The records after it then lie within the slots that the leader before it could still reach. They
    are the seals of that term, or dead records followed by the next leader record.
    """
    term, window = before.header.term, before.header.window
    for later in range(position + 1, position + before.header.in_flight_limit + 1):
        record = read_slot(log, later, window)
        if record is not None and record.header.term > term:
            header = record.header
            if isinstance(header, LeaderHeader) and header.prev_position != position - 1:
                # It is the takeover after the lost one.
                return header.term > term + 1
            return True
    return False


def rebuilt(data: bytes, name: str) -> bytes:
    """Recreate the damaged front of a slot record from its footer.

    Args:
        data: the object's bytes.
        name: the object's name, for errors.

    Returns:
        The bytes of the sound record.

    Raises:
        InvalidLogError: the footer or the rows are damaged too.
    """
    try:
        schema = pa.ipc.open_file(data).schema
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InvalidLogError(f"{name}: its footer cannot be read either: {error}") from None
    from_metadata(schema.metadata, name)
    front: bytes = arrowfile.MAGIC + schema.serialize().to_pybytes()
    sound = front + data[len(front) :]
    opened = arrowfile.open_front(sound, name)
    if isinstance(opened.header, CommitHeader):
        offset = opened.body
        for part in opened.header.inline:
            arrowfile.check_crc(sound[offset : offset + part.bytes], part.crc32, name)
            offset += part.bytes
    arrowfile.check_footer(sound, name)
    return sound
