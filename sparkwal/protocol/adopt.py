"""An object that is already at this task's key: another attempt's, or another writer's."""

from __future__ import annotations

import io
import zlib

import pyarrow as pa

from sparkwal import events
from sparkwal.errors import (
    FencedError,
    InvalidLogError,
    RecomputedError,
    StoreUnavailableError,
)
from sparkwal.format import arrowfile, schema
from sparkwal.format.content import Content
from sparkwal.format.header import Batch, DataHeader, Frame
from sparkwal.protocol.leadership import fenced
from sparkwal.protocol.slots import read_front, read_slot
from sparkwal.store.base import PART_SIZE, NotFound
from sparkwal.store.log_store import LogStore


def adopt(log: LogStore, ours: DataHeader, content: Content | None) -> Batch:
    """The object that stands at our key, if an attempt of this very task wrote it.

    The first attempt wins, so that a retried or speculative task, and a PUT whose reply was lost,
    all end with the same object. Another writer's object means that we are fenced. `content` is of
    our own rows; None if it is not known any more.

    Raises FencedError, RecomputedError, StoreUnavailableError, InvalidLogError.
    """
    where = log.where(ours.number, ours.window)
    try:
        _, opened = read_front(log, ours.number, ours.window)
    except NotFound:
        # An upload whose Complete got lost may have vanished with its parts.
        raise StoreUnavailableError(
            f"{where} was not stored, though the store said its key was taken; nothing was "
            "acknowledged. Run again with the same checkpoint"
        ) from None
    header = opened.header
    if header.plan_id != ours.plan_id or not isinstance(header, DataHeader):
        leader = read_slot(log, ours.position, ours.window)
        if leader is not None:
            raise fenced(log, leader)
        raise FencedError(
            f"another writer, {header.leader_id} (term {header.term}), holds {where}. Nothing of "
            "this microbatch was committed. Stop one of the two; a restart with the same "
            "checkpoint takes the log over again"
        )
    batch, stored = measure(log, header, opened)
    # A recomputed stage may distribute its rows otherwise. Beside the other partitions' new
    # objects, an old one would lose some rows and double others.
    if header.stage_attempt != ours.stage_attempt and stored != content:
        raise _recomputed(where, content)
    events.emit(events.Adopted(key=log.key(header.number), partition=ours.partition))
    return batch


def _recomputed(where: str, content: Content | None) -> RecomputedError:
    if content is None:
        found = "stored its rows, and this one does not know whether its own are the same: "
        found += "Spark's next attempt can"
    else:
        found = "stored other rows than this one computed"
    return RecomputedError(
        f"{where}: an earlier attempt of this task {found}. This run of the "
        "microbatch commits nothing. Restart with the same checkpoint: it is written anew, in a "
        "window of its own"
    )


class _Tape(io.RawIOBase):
    """Reads an object in ranges and keeps what was read since `cut`."""

    def __init__(self, log: LogStore, number: int) -> None:
        self._store, self._key, self._offset = log.store, log.key(number), 0
        self._ahead = b""
        self._kept: list[bytes] = []

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while len(self._ahead) < size:
            more = self._store.get_range(
                self._key, self._offset, max(PART_SIZE, size - len(self._ahead))
            )
            if not more:
                break
            self._offset += len(more)
            self._ahead += more
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        self._kept.append(data)
        return data

    def cut(self) -> bytes:
        data = b"".join(self._kept)
        self._kept.clear()
        return data


def measure(log: LogStore, header: DataHeader, opened: arrowfile.Opened) -> tuple[Batch, Content]:
    """The commit record's entry for an object and its rows' content, measured one part at a time.
    Raises NotFound, InvalidLogError."""
    tape = _Tape(log, header.number)
    tape.read(opened.body)
    crc = zlib.crc32(tape.cut())
    arrow = schema.to_arrow(opened.spark_schema)
    found: list[Frame] = []
    offset, rows, content = opened.body, 0, Content()
    for message in pa.ipc.MessageReader.open_stream(tape):
        batch = pa.ipc.read_record_batch(message, arrow)
        content += Content.of([batch])
        data = tape.cut()
        found.append(Frame(offset, len(data), batch.num_rows, zlib.crc32(data)))
        crc = zlib.crc32(data, crc)
        offset += len(data)
        rows += batch.num_rows
    while tape.read(PART_SIZE):
        pass
    tail = tape.cut()
    if rows != header.rows:
        raise InvalidLogError(
            f"{log.where(header.number)}: {rows} rows in the frames, {header.rows} in the header"
        )
    return (
        Batch(
            number=header.number,
            partition=header.partition,
            rows=rows,
            bytes=offset + len(tail),
            crc32=zlib.crc32(tail, crc),
            frames=tuple(found),
        ),
        content,
    )
