"""Logs that this state of the library makes without Spark. Each function returns what it wrote."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

import sparkwal
from sparkwal.errors import SparkWalError, StoreUnavailableError
from sparkwal.format import keys
from sparkwal.protocol import archive
from sparkwal.store.base import Transient
from sparkwal.store.local import LocalStore
from tests.lifecycle.lakes import Lake
from tests.stored.place import LOG, PLACE, age

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
Row = dict[str, Any]
Expected = dict[str, Any]


def row(number: int) -> Row:
    return {"id": number, "v": f"v{number}"}


def rows(*numbers: int) -> list[Row]:
    return [row(number) for number in numbers]


def append(numbers: range, producer: str = "p", **options: Any) -> list[Row]:
    """One commit for each number."""
    with sparkwal.Appender(str(LOG), SCHEMA, producer_id=producer, **options) as wal:
        for number in numbers:
            wal.append([row(number)]).result()
    return rows(*numbers)


def expected(*of_logs: tuple[str, list[Row]], **more: Any) -> Expected:
    """What a stored log must give: its rows in the log's order, by sequencer."""
    return {"logs": [{"sequencer": name, "rows": rows} for name, rows in of_logs], **more}


class Disk:
    """Makes the local disk slow or lossy at some positions."""

    def __init__(self) -> None:
        self.held: dict[int, threading.Event] = {}
        self.torn: dict[int, int] = {}

    def _position(self, key: str) -> int | None:
        number = key.rpartition("/")[2]
        if "batches/" not in key or not number.isdecimal():
            return None
        return (keys.MAX - int(number)) // 1000

    @contextmanager
    def installed(self) -> Iterator[None]:
        put = LocalStore.put_if_absent

        def slow_put(store: LocalStore, key: str, body: bytes) -> bool:
            position = self._position(key)
            if position in self.held:
                self.held.pop(position).wait()
            if position in self.torn:
                put(store, key, body[: self.torn.pop(position)])
                raise Transient("the connection broke off")
            return put(store, key, body)

        LocalStore.put_if_absent = slow_put  # type: ignore[method-assign]
        try:
            yield
        finally:
            LocalStore.put_if_absent = put  # type: ignore[method-assign]


def _wait_for(position: int) -> None:
    file = LOG / keys.key("", keys.slot(position, 1000))
    while not file.exists():
        time.sleep(0.01)


def takeovers() -> Expected:
    """Dead records of a fenced appender with four requests in flight, and seals after it."""
    disk = Disk()
    with disk.installed():
        former = sparkwal.Appender(str(LOG), SCHEMA, producer_id="a", maxInFlightRequests=4)
        for number in (1, 2):
            former.append(rows(number)).result()
        release = threading.Event()
        disk.held = {3: release, 4: release}
        for number in (3, 4, 5, 6):
            former.append(rows(number))
            time.sleep(0.1)
        for position in (5, 6):
            _wait_for(position)
        append(range(10, 13), "b", maxInFlightRequests=2)
        release.set()
        with suppress(SparkWalError):
            former.close()
    # Its seals end the log.
    append(range(0), "c", maxInFlightRequests=8)
    append(range(0), "d")
    return expected(
        ("default", rows(1, 2, 10, 11, 12)), last_sequence={"a": 1, "b": 2}, dead=[5, 6]
    )


def torn() -> Expected:
    """Torn records: one in the middle of the log, one at its end."""
    disk = Disk()
    with disk.installed():
        for number, position in ((1, 2), (3, 5)):
            wal = sparkwal.Appender(
                str(LOG), SCHEMA, producer_id="a", maxRetryAttempts=1, maxInFlightRequests=1
            )
            wal.append(rows(number)).result()
            disk.torn = {position: 700}
            wal.append(rows(90 + number))
            with suppress(SparkWalError):
                wal.close()
            assert not disk.torn
    return expected(("default", rows(1, 3)), last_sequence={"a": 1})


def archived() -> Expected:
    """Transactions in an archive. Its limits are lowered: else the log needs a thousand writers."""
    most, kept = archive.MOST, archive.KEPT
    archive.MOST, archive.KEPT = 4, 2
    try:
        for number in range(8):
            append(range(number, number + 1), f"p{number}")
    finally:
        archive.MOST, archive.KEPT = most, kept
    return expected(
        ("default", rows(*range(8))), last_sequence={f"p{number}": 0 for number in range(8)}
    )


def widened() -> Expected:
    """A schema that grows: a wider type, a new column, a new field."""
    narrow = pa.schema([("id", pa.int32()), ("s", pa.struct([("a", pa.float32())]))])
    wide = pa.schema(
        [
            ("id", pa.int64()),
            ("s", pa.struct([("a", pa.float64())])),
            ("new", pa.list_(pa.string())),
        ]
    )
    before = [{"id": 1, "s": {"a": 0.5}}, {"id": 2, "s": None}]
    after = [{"id": 2**40, "s": {"a": 0.1}, "new": ["x", None]}, {"id": 3, "s": None, "new": None}]
    for schema, given in ((narrow, before), (wide, after)):
        with sparkwal.Appender(str(LOG), schema, producer_id="p", mergeSchema=True) as wal:
            wal.append(given)
    return expected(("default", [{**each, "new": None} for each in before] + after))


def sequencers() -> Expected:
    """Several logs under one path."""
    return expected(
        ("default", append(range(3))),
        ("a", append(range(10, 13), sequencer="a")),
        ("b-2", append(range(20, 22), sequencer="b-2", windowSize=10_000)),
    )


def segments() -> Expected:
    """A block of a thousand positions and its segment."""
    written = append(range(1_003))
    sparkwal.Lifecycle(str(LOG), retainSeconds=10**9).run_once()
    assert len([*(LOG / "segments").iterdir()]) == 1
    return expected(("default", written))


def collected() -> Expected:
    """A log without a table that lost its first records, and the rows below its floor."""
    written = append(range(1_050))
    for _ in range(2):
        life = sparkwal.Lifecycle(
            str(LOG), retainBytes=30_000, gcGrace="1h", makeSegments=False, consumerExpiry="30d"
        )
        run = life.run_once()
        age(LOG, 3)
    assert run.collection is not None and 1_000 < run.floor < 1_050
    assert len([*(LOG / "batches").iterdir()]) < 1_050
    # Position 0 is a leader record.
    return expected(("default", written[run.floor - 1 :]), floor=run.floor)


def journal() -> Expected:
    """A journal with entries that its log lacks."""
    written = _in_child(_leave_entries)
    return expected(("default", written[:2]), journal=written[2:], last_sequence={"p": 1})


def quarantined() -> Expected:
    """A journal that lost an entry to damage, and reports it."""
    written = _in_child(_leave_entries)
    (segment,) = (PLACE / "journal").glob("*.wal")
    damaged = bytearray(segment.read_bytes())
    damaged[damaged.index(b"v5")] ^= 1
    segment.write_bytes(damaged)
    wal = _with_journal()
    lost = wal.lost
    wal.close()
    assert len(lost) and [*(PLACE / "journal" / "quarantine").iterdir()]
    kept = written[: lost.start]
    return expected(("default", kept), lost=[lost.start, lost.stop])


def _with_journal() -> sparkwal.Appender:
    return sparkwal.Appender(
        str(LOG),
        SCHEMA,
        producer_id="p",
        journal=str(PLACE / "journal"),
        journalSegmentBytes="64kb",
        journalMaxBytes="1mb",
        journalSlots=16,
    )


def _leave_entries() -> None:
    """Append while the store is away, and end as a killed process does."""
    wal = _with_journal()
    for number in (1, 2):
        wal.append(rows(number)).result()

    def away(*_: object, **__: object) -> bool:
        raise StoreUnavailableError("the disk is away")

    LocalStore.put_if_absent = away  # type: ignore[method-assign]
    for number in (3, 4, 5, 6, 7):
        wal.append(rows(number))
    os._exit(9)


def _in_child(work: Any) -> list[Row]:
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
    assert child.exitcode == 9
    return rows(*range(1, 8))


def leases() -> Expected:
    """A read in the middle of a log, which holds a lease, and the cursor of a replay."""
    written = append(range(5))
    replay = sparkwal.Log(str(LOG)).replay()
    seen = [next(replay) for _ in range(2)]
    # It is closed when the log is stored, and the lease must be there then.
    _open_reads.append(sparkwal.Log(str(LOG), lease="3650d").scan(start=2))
    replayed = sum(batch.num_rows for entry in seen for batch in entry.rows)
    return expected(("default", written), cursor=replay.cursor, replayed=replayed, held=2)


_open_reads: list[pa.RecordBatchReader] = []


def lake() -> Expected:
    """Two logs with one table: floors that moved, and a range that is open."""
    logs = {name: Lake(PLACE, sequencer=name) for name in ("a", "b")}
    for number, of_log in enumerate(logs.values()):
        of_log.append(rows(10 * number, 10 * number + 1))
        of_log.compact()
        of_log.floor(2)
        of_log.append(rows(10 * number + 2))
    logs["b"].compact("intent")
    return {"current": {"a": rows(0, 1, 2), "b": rows(10, 11, 12)}}


def keyed() -> Expected:
    """A log with a table by keys, and a deleted key whose sequence is kept."""
    schema = pa.schema([*SCHEMA, ("seq", pa.int64()), ("gone", pa.bool_())])
    of_log = Lake(PLACE, "id", sequence_by="seq", delete_when="gone", tombstone_horizon_ms=10**12)

    def change(number: int, v: str, seq: int, gone: bool = False) -> Row:
        return {"id": number, "v": v, "seq": seq, "gone": gone}

    of_log.append([change(1, "a", 1), change(2, "b", 1), change(3, "c", 1)], schema=schema)
    of_log.compact()
    of_log.append([change(1, "", 5, gone=True), change(2, "b2", 2)], schema=schema)
    of_log.compact()
    # Older than the delete of its key.
    of_log.append([change(1, "late", 4), change(4, "d", 1)], schema=schema)
    last = [change(2, "b2", 2), change(3, "c", 1), change(4, "d", 1)]
    return {"current": {"default": last}}
