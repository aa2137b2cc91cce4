"""Repairs a lost or damaged record from its footer or from a segment, or gives it up."""

import uuid
from contextlib import suppress
from dataclasses import fields, replace
from typing import Unpack

import pyarrow as pa
from isal.isal_zlib import crc32

from sparkwal.errors import InvalidLogError, NewerFormatError, OptionError
from sparkwal.format import arrowfile, keys, schema
from sparkwal.format.header import CommitHeader, LeaderHeader, from_metadata, host_of
from sparkwal.options.keywords import StoreKeywords
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.options.store import StoreOptions
from sparkwal.protocol.commit_record import encode_record
from sparkwal.protocol.liveness import last_live, passed_by
from sparkwal.protocol.recovery import Head, find_head
from sparkwal.protocol.segments import open_blocks, with_copies
from sparkwal.protocol.slots import GLANCE, SlotRecord, TornRecord, copied, read_any, read_slot
from sparkwal.protocol.takeover import put_leader
from sparkwal.protocol.view import LENIENT, LogView
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.pieces import Piece
from sparkwal.reading.rows import pieces_of, read_pieces
from sparkwal.reading.segmenting import delete_damaged
from sparkwal.reading.whole_records import check_whole
from sparkwal.store.base import LogStore, NotFound, sound


def repair(
    path: str, position: int, *, give_up: bool = False, **options: Unpack[StoreKeywords]
) -> bool:
    """Repair the lost or damaged record at a position.

    Its footer holds a copy of its header, and a segment may hold a copy of the record. A damaged
    segment with this position is deleted, if its records are sound. No writer and no maker of
    segments may run meanwhile. The repaired record is first saved under `{path}/repaired/`, so you
    may repeat a repair. A sound record is not touched.

    Args:
        path: s3://bucket/prefix, file:///folder or a folder.
        position: the position that the error names, or the number that is the object's name.
        give_up: put a record without rows at a position whose record is lost, so that readers and
            writers get past it. The rows of the lost record stay lost; all others remain.
        **options: as for `sparkwal.Log`.

    Returns:
        Whether something was repaired. False: record and segment are sound.

    Raises:
        InvalidLogError: no copy has the damaged part: restore the object. With `give_up`: the
            position holds an object, a segment has a copy of its record, or the record before it is
            missing or damaged.
        OptionError: an argument is wrong.
        StoreUnavailableError: the store did not answer.
    """
    if not isinstance(position, int) or position < 0:
        raise OptionError(f"position is {position!r}; a whole number from 0 is expected")
    log = open_log(from_keywords(StoreOptions, path, options), fail_fast=True)
    number = position
    # No log is so long that the name of an object is also a position.
    if position <= keys.last_position(min(keys.WINDOWS)):
        window = find_head(log, damage=LENIENT).window
        number = keys.slot(position, window)
        _check_needed(log, position, window)
    if give_up:
        give_up_record(log, number)
        return True
    is_record_repaired = repair_record(log, number)
    return _repair_segment(log, number) or is_record_repaired


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


def _check_needed(log: LogStore, position: int, window: int) -> None:
    """Check that nobody passes over a record anyway.

    Raises:
        InvalidLogError: the record is torn, and its slot needs no repair.
    """
    slot = read_any(log, position, window, GLANCE, tolerant=True)
    if not isinstance(slot, TornRecord):
        return
    try:
        passed_by(LogView(log, window), slot)
    except InvalidLogError:
        return
    raise InvalidLogError(
        f"{slot.name}: the store kept {slot.size} bytes of a record that nobody acknowledged. It "
        "needs no repair: readers pass over it, and the next writer continues after it"
    )


class _Rebuilt(InvalidLogError):
    """A damaged object whose footer gives its sound bytes, `data`."""

    def __init__(self, data: bytes) -> None:
        super().__init__("the front of the object is damaged")
        self.data = data


def repair_record(log: LogStore, number: int) -> bool:
    """Do `repair` for one object of an open log. Returns False if it is sound."""
    key, name = log.key(number), log.locate(number)
    saved = _saved_key(log, number)
    head = find_head(log, damage=LENIENT)

    def check() -> None:
        data = log.store.get(key)
        try:
            repaired = rebuilt(data, name)
        except InvalidLogError:
            # It names the damage better, and a record counts without its footer.
            _check_rows(log, number, head.window, data)
            raise
        _check_rows(log, number, head.window, repaired)
        if repaired != data:
            raise _Rebuilt(repaired)

    try:
        sound(key, check, check)
        return False
    except _Rebuilt as damaged:
        repaired = damaged.data
    except NotFound:
        try:
            # An earlier repair ended between its delete and its PUT.
            repaired = log.store.get(saved)
            _check_rows(log, number, head.window, repaired)
        except NotFound:
            missing = InvalidLogError(f"{name}: there is no such object, and no segment has it")
            repaired = _from_segment(log, head, number, missing)
    except NewerFormatError:
        raise
    except InvalidLogError as damage:
        repaired = _from_segment(log, head, number, damage)
    log.store.put_if_absent(saved, repaired)
    log.store.delete(key)
    log.store.put_if_absent(key, repaired)
    log.store.delete(saved)
    return True


def _saved_key(log: LogStore, number: int) -> str:
    return keys.join_key(log.prefix, "repaired", keys.encode(number))


def _check_rows(log: LogStore, number: int, window: int, data: bytes) -> None:
    """Check what the header of an object does not cover.

    Raises:
        InvalidLogError: the checkpoint or the rows in it are damaged.
    """
    position = keys.position(number, window)
    if keys.is_slot(number, window):
        check_whole(log, position, window, data)
        return
    record = read_slot(log, position, window, tolerant=True)
    header = record.header if record is not None else None
    for batch in header.batches if isinstance(header, CommitHeader) else ():
        if batch.number == number and crc32(data) != batch.crc32:
            raise InvalidLogError(
                f"{log.locate(number)}: its rows are damaged. Restore the object; if a segment has "
                "them, readers of a thousand positions take them from there"
            )


def _from_segment(log: LogStore, head: Head, number: int, fault: InvalidLogError) -> bytes:
    """The bytes of a record that a trusted segment has.

    Raises:
        InvalidLogError: `fault`, if there is none; or the segment lacks a part of the record.
    """
    if head.live is None or not keys.is_slot(number, head.window):
        raise fault
    log_id, position = head.live.header.log_id, keys.position(number, head.window)
    copy = copied(with_copies(log), position, head.window, log_id)
    if copy is None:
        raise fault
    return _encoded(log, copy)


def _encoded(log: LogStore, copy: SlotRecord) -> bytes:
    """Encode a record that a segment has, with the bytes that it had if Arrow still makes them.

    Raises:
        InvalidLogError: the segment lacks a part of the record.
    """
    header, spark_schema = copy.header, copy.spark_schema
    name = log.locate(header.number, header.window)
    if copy.declared > copy.size:
        raise InvalidLogError(
            f"{name}: a segment has this record, but not the files of the checkpoint in it. "
            "Restore the object"
        )
    if not isinstance(header, CommitHeader) or not header.inline:
        return arrowfile.encode(header, spark_schema)
    pieces = [piece for piece in pieces_of(log, copy) if piece.inlined]
    if any(piece.copied is None for piece in pieces):
        raise InvalidLogError(
            f"{name}: a segment has this record, but not all rows in it: a part of more than 1 MiB "
            "is not copied. Restore the object"
        )
    inlined = [(part.partition, _rows(log, pieces, part.partition, copy)) for part in header.inline]
    without = replace(header, inline=(), bytes=sum(batch.bytes for batch in header.batches))
    for codec in ("zstd", "lz4", None):
        encoded, data = encode_record(without, inlined, spark_schema, codec)
        if encoded == header:
            break
    return data


def _rows(
    log: LogStore, pieces: list[Piece], partition: int, copy: SlotRecord
) -> list[pa.RecordBatch]:
    """The rows of one partition of a record, from its segment, in the types of the record."""
    [piece] = [piece for piece in pieces if piece.partition == partition]
    assert piece.copied is not None
    own = schema.to_arrow(copy.spark_schema)
    # A later record of the block may have made a column wider.
    stored = schema.to_arrow(piece.copied.segment.spark_schema)
    target = pa.schema([stored.field(column) for column in own.names])
    rows = pa.Table.from_batches(read_pieces(log, [piece], target), target).cast(own)
    # Arrow writes bytes of the rows beside a slice too, so make a copy that has its own buffers.
    copied = rows.take(pa.array(range(rows.num_rows))).combine_chunks()
    batches: list[pa.RecordBatch] = copied.to_batches()
    return batches


def _check_not_copied(log: LogStore, head: Head, position: int) -> None:
    """Check that nothing has a copy of a lost record.

    Raises:
        InvalidLogError: a segment has it, or an interrupted repair.
    """
    number = keys.slot(position, head.window)
    name = log.locate(number, head.window)
    advice = f"sparkwal repair {log.url} {position} puts it back"
    with suppress(NotFound):
        log.store.get_range(_saved_key(log, number), 0, 1)
        raise InvalidLogError(f"{name}: an interrupted repair saved this record: {advice}")
    assert head.live is not None
    block = position // keys.BLOCK
    for _, opened in open_blocks(log, head.window, [block]):
        if isinstance(opened, NewerFormatError):
            raise opened
        if isinstance(opened, InvalidLogError):
            continue
        with suppress(InvalidLogError):
            opened.decode()
        is_own = opened.segment.header.log_id == head.live.header.log_id
        if is_own and any(opened.records(position, position + 1)):
            raise InvalidLogError(
                f"{name}: the segment {opened.segment.location} has this record and its rows, so "
                f"it is not lost: {advice}. If it cannot, copy the rows, delete that segment, and "
                "give the record up"
            )


def _check_no_object(log: LogStore, number: int, *, is_newest: bool) -> None:
    """Check that a record which is to be given up has no object.

    Raises:
        InvalidLogError: it has one. Only if the object is damaged, the advice is to delete it.
    """
    key, name = log.key(number), log.locate(number)

    def check() -> None:
        _check_front(log.store.get(key), name)

    try:
        sound(key, check, check)
    except NotFound:
        return
    except NewerFormatError:
        raise
    except InvalidLogError as damage:
        advice = "restore it, or delete it first to give it up"
        if is_newest:
            advice = (
                "restore it, or delete it and start the writer, whose leader record takes its place"
            )
        raise InvalidLogError(f"{damage}. The record is damaged: {advice}") from None
    raise InvalidLogError(
        f"{name}: its record and the rows in it are intact, so there is nothing to give up. Do not "
        "delete it"
    )


def give_up_record(log: LogStore, number: int) -> None:
    """Do `repair` with `give_up` in an open log: 1 conditional PUT."""
    name = log.locate(number)
    head = find_head(log, damage=LENIENT)
    position = keys.position(number, head.window)
    if not keys.is_slot(number, head.window) or not position > 0:
        raise InvalidLogError(
            f"{name} is not a record that can be given up: the first record of a log has no "
            "predecessor, and an object with rows belongs to a record"
        )
    _check_no_object(log, number, is_newest=position > head.position)
    if position > head.position:
        raise InvalidLogError(f"{name}: the log ends before it, so no record is lost")
    _check_not_copied(log, head, position)
    record = read_slot(log, position - 1, head.window)
    if record is None:
        raise InvalidLogError(
            f"{name}: the record before it, {log.locate(keys.slot(position - 1, head.window))}, is "
            "missing too: begin with that one"
        )
    before = last_live(LogView(log, head.window), record)
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
    if position - position % keys.BLOCK + keys.BLOCK <= head.gap:
        # Its witness knew the lost record, so readers would still use it.
        log.store.delete(keys.segment_key(log.prefix, position // keys.BLOCK, head.window))
    if not put_leader(log, header, before.spark_schema):
        raise InvalidLogError(
            f"{name} was written meanwhile: stop all writers, and run the command again if the "
            "record is still lost"
        )


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
    repaired = front + data[len(front) :]
    _check_front(repaired, name)
    arrowfile.check_footer(repaired, name)
    return repaired


def _check_front(data: bytes, name: str) -> None:
    """Check the header of a record and the rows in it: all that readers of the log take from it."""
    opened = arrowfile.open_front(data, name)
    if isinstance(opened.header, CommitHeader):
        offset = opened.body
        for part in opened.header.inline:
            arrowfile.check_crc(data[offset : offset + part.bytes], part.crc32, name)
            offset += part.bytes
