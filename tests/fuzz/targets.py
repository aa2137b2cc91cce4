"""The targets of fuzzing: each reads bytes as the library does, behind the right CRC-32s.

A target raises no other error than the library's. Its seeds are objects that writers make, and the
inputs that failed once (`found/KIND/`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
from isal.isal_zlib import crc32
from pyspark.sql.types import StructType

from sparkwal.checkpoints import packing
from sparkwal.checkpoints.accepting import SETTINGS, accepted
from sparkwal.checkpoints.offsets import by_source, input_text, positions
from sparkwal.errors import (
    ConfirmError,
    JournalReadError,
    OptionError,
    SparkWalError,
    TableReadError,
)
from sparkwal.format import (
    arrowfile,
    consumer_record,
    keys,
    lifecycle_record,
    limits,
    merging,
    schema,
    widening,
)
from sparkwal.format.header import (
    CRC_KEY,
    HEADER_KEY,
    SCHEMA_KEY,
    Batch,
    CommitHeader,
    DataHeader,
    Frame,
    Inline,
    LeaderHeader,
    QueryProgress,
    crc_hex,
    to_json,
)
from sparkwal.format.lifecycle_record import MERGE, Target
from sparkwal.journal import files
from sparkwal.journal.journal import Settings
from sparkwal.journal.quarantine import LOST
from sparkwal.journal.scanning import scan_folder
from sparkwal.journal.segment import Header, entry
from sparkwal.lifecycle.delta.transaction_log import DeltaLog
from sparkwal.lifecycle.merging import condition
from sparkwal.lifecycle.merging.keyed import holds
from sparkwal.lifecycle.table import check_history
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol import archive
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.rows import pieces_of, read_pieces
from sparkwal.reading.verification import verify_store
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests import consumers
from tests.chains import changed, made, newest
from tests.fuzz import segments
from tests.journal.disk import MemoryFolder

FOUND = Path(__file__).with_name("found")
SCHEMA = schema.from_arrow(pa.schema([("v", pa.int64()), ("s", pa.string())]))
QUERY = "query"


@dataclass(frozen=True)
class Kind:
    """One target: a reader of bytes, and seeds that writers make."""

    read: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]


def common(position: int) -> dict[str, Any]:
    return {
        "number": keys.slot(position, 1000),
        "position": position,
        "window": 1000,
        "leader_id": "host:1",
        "term": 1,
        "plan_id": "plan",
        "in_flight_limit": 1,
        "timestamp_ms": 1_700_000_000_000,
        "schema_crc32": arrowfile.schema_crc(SCHEMA),
        "log_id": "log",
    }


LEADER = LeaderHeader(**common(0), prev_position=-1, txns={}, reason="cold start", host="host")
COMMIT = CommitHeader(
    **common(1),
    decided=0,
    query_id=QUERY,
    batch_id=0,
    rows=0,
    bytes=0,
    batches=(),
    inline=(),
    txns={QUERY: (0, 1_700_000_000_000)},
    metrics={"put_ms": 1.5},
)
PARTS = replace(
    COMMIT,
    rows=3,
    batches=(Batch(keys.data(1, 1000, 0), 0, 2, 500, 1, (Frame(300, 200, 2, 1),)),),
    inline=(Inline(1, 1, 1, 200, 1),),
    txns_archive="a-0",
)


def front(header: bytes, spark_schema: bytes) -> bytes:
    """An object without rows whose header and schema are these bytes."""
    metadata = {HEADER_KEY: header, CRC_KEY: crc_hex(header), SCHEMA_KEY: spark_schema}
    try:
        columns = schema.to_arrow(schema.read(spark_schema))
    except (ValueError, KeyError):
        columns = schema.to_arrow(SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, columns.with_metadata(metadata)):
        pass
    return bytes(sink.getvalue())


@cache
def sound() -> dict[str, bytes]:
    """The objects of a small log with rows."""
    rows = pa.record_batch({"v": [1, None], "s": ["a", "é"]}, schema.to_arrow(SCHEMA))
    data = DataHeader(
        **common(1) | {"number": keys.data(1, 1000, 0)},
        query_id=QUERY,
        batch_id=0,
        partition=0,
        rows=2,
        stage_attempt=0,
    )
    writer = arrowfile.FileWriter(data, SCHEMA, None)
    body = writer.frame(rows)
    prefix, tail, crc = writer.finish(data)
    body_of_data = prefix + body + tail
    batch = Batch(data.number, 0, 2, len(body_of_data), crc, tuple(writer.frames))
    commit = replace(COMMIT, rows=2, bytes=len(body_of_data), batches=(batch,))
    return {
        keys.key("wal", LEADER.number): arrowfile.encode(LEADER, SCHEMA),
        keys.key("wal", commit.number): arrowfile.encode(commit, SCHEMA),
        keys.key("wal", data.number): body_of_data,
    }


def log_with(objects: Mapping[str, bytes]) -> LogStore:
    store = MemoryStore()
    store.objects.update({**sound(), **objects})
    return LogStore(store, "wal")


def read_all(log: LogStore) -> None:
    """Everything that looks at records: the head, headers, rows, `verify`."""
    options = SourceOptions(path="memory")
    with suppress(SparkWalError):
        value = LogRange(options, "default", log)
        value.refresh()
        if value.live is not None:
            for record in value.records(value.start(), value.end()):
                for piece in pieces_of(log, record):
                    target = schema.to_arrow(record.spark_schema)
                    for _ in read_pieces(log, [piece], target):
                        pass
    verify_store(log, "wal")


def whole_record(data: bytes) -> None:
    """Bytes in the place of a record."""
    read_all(log_with({keys.key("wal", COMMIT.number): data}))


def record_header(data: bytes) -> None:
    """Bytes as the header of a record; its schema follows a zero byte."""
    header, _, spark_schema = data.partition(b"\0")
    body = front(header, spark_schema or SCHEMA.encode())
    read_all(log_with({keys.key("wal", COMMIT.number): body}))


def record_schema(data: bytes) -> None:
    """Bytes as the schema of a record whose header has their CRC-32."""
    with suppress(ValueError, SparkWalError):
        normal = schema.read(data)
        assert schema.read(normal.encode()) == normal
        assert schema.from_arrow(schema.to_arrow(normal)) is not None
        # Spark's reader makes its own types of it.
        StructType.fromJson(json.loads(normal))
        for other in (SCHEMA, normal):
            merging.union_of([(other, "one"), (normal, "other")])
        [*widening.contradictions(schema.columns(SCHEMA), schema.columns(normal))]
        widening.widened(normal, schema.columns(SCHEMA))
    header = to_json(replace(COMMIT, schema_crc32=crc32(data)))
    read_all(log_with({keys.key("wal", COMMIT.number): front(header, data)}))


def frames(data: bytes) -> None:
    """Bytes as the frames of an object, as if their CRC had been right."""
    with suppress(SparkWalError):
        for _ in arrowfile.read_frames(data, SCHEMA, "fuzz"):
            pass


def lifecycle(data: bytes) -> None:
    """Bytes as a lifecycle record, and as what is in one."""
    sink = pa.BufferOutputStream()
    metadata = {HEADER_KEY: data, CRC_KEY: crc_hex(data)}
    with pa.ipc.new_file(sink, pa.schema([]).with_metadata(metadata)):
        pass
    for body in (data, bytes(sink.getvalue())):
        log = log_with({keys.lifecycle_key("wal", keys.MAX): body})
        with suppress(SparkWalError):
            value = newest(log)
            if value is not None:
                again = lifecycle_record.encode(value.record)
                assert lifecycle_record.decode(again, "again") == value.record
        read_all(log)


def consumer(data: bytes) -> None:
    """Bytes as a consumer, and as its first line."""
    for body in (data, data + b"\n" + crc_hex(data) + b"\n"):
        for only in ("default", None):
            with suppress(SparkWalError):
                value = consumer_record.decode(body, "fuzz", only)
                again = consumer_record.encode(value, only)
                assert consumer_record.decode(again, "again", only) == value
        for name in ("daily", "daily.all"):
            with suppress(SparkWalError):
                log = log_with({keys.consumer_key("wal", name): body})
                consumers.consumers_and_ages(log, "log")


def old_queries(data: bytes) -> None:
    """Bytes as the archive that a record names."""
    name = f"a-{crc32(data):08x}"
    header = replace(COMMIT, txns_archive=name)
    log = log_with(
        {
            keys.archive_key("wal", name): data,
            keys.key("wal", header.number): arrowfile.encode(header, SCHEMA),
        }
    )
    with suppress(SparkWalError):
        assert archive.last_batch(lambda: log, header, "another") >= -1
    read_all(log)


def checkpoint(data: bytes) -> None:
    """Bytes as the block of a record, and as what it unpacks to."""
    for block in (data, bytes(pa.compress(data, codec="zstd", asbytes=True))):
        with suppress(SparkWalError):
            value = packing.decode(block, "fuzz")
            assert packing.decode(packing.encode(value), "again") == value
            taken = accepted(value, 7, "fuzz")
            assert taken.keys() <= value.keys()


def plan(data: bytes) -> None:
    """Bytes as Spark's plan in the block of a record, and as lists of files after zero bytes."""
    parts = data.split(b"\0")
    names = ("offsets/7", "sources/0/3", "sources/0/4", "sources/1/9.compact", "offsets/6")
    files = dict(zip(names, parts, strict=False))
    with suppress(SparkWalError):
        taken = accepted(files, 7, "fuzz")
        for name in taken.keys() & {"offsets/7", "offsets/6"}:
            settings = json.loads(taken[name].splitlines()[1]).get("conf", {})
            assert settings.keys() <= SETTINGS, settings
            input_text(taken[name])
        for offset in (by_source(taken["offsets/7"]) or {}).values():
            positions(offset)


def journal(data: bytes) -> None:
    """Bytes as the files of a journal, and in notes with the right CRC-32s."""
    note = json.dumps(
        {"crc32": crc32(data), files.CURSOR: data.decode("latin-1")}, ensure_ascii=False
    ).encode()
    for cursor in (data, note):
        folder = MemoryFolder()
        folder.create(files.CURSOR).append([cursor])
        folder.create(files.SENDER).append([cursor.replace(b"cursor", b"sender")])
        folder.create(files.ACCEPTED).append([data])
        folder.create(LOST).append([2 * cursor.replace(b"cursor", b"lost")])
        folder.create(files.segment_name(3)).append([data])
        document = (
            b"SWJRNL1\n",
            len(data).to_bytes(4, "little"),
            crc32(data).to_bytes(4, "little"),
        )
        folder.create(files.segment_name(4)).append([*document, data, data])
        for lost in (True, False):
            with suppress(JournalReadError):
                scan_folder(folder, Settings())
            if lost:
                folder.remove(LOST)


def delete_condition(data: bytes) -> None:
    """Bytes as the condition of a lifecycle record."""
    text = data.decode("latin-1")
    with suppress(OptionError):
        holds(text, ROWS)
    with suppress(ValueError):
        condition.parse(text)


ROWS = pa.table(
    {
        **{"op": ["d", None], "n": [1, None], "gone": [True, None], "f": [1.5, None]},
        "day": pa.array([1, None], pa.date32()),
        "money": pa.array([1, None], pa.decimal128(38, 2)),
        "s": pa.array([{"x": 1}, None]),
    }
)


class OneCommit:
    """The log of a table: a single version, a checkpoint, and a note that names its version."""

    def __init__(self, commit: bytes, checkpoint: bytes, note: bytes) -> None:
        name = f"{0:020d}.checkpoint.{'0' * 36}.json"
        named = {f"{0:020d}.json": commit, name: checkpoint, "_last_checkpoint": note}
        self._files = {name: body for name, body in named.items() if body}

    def sizes(self, start: int) -> Mapping[str, int]:
        after = f"{start:020d}"
        return {name: len(body) for name, body in self._files.items() if name > after}

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if name in self._files:
            return self._files[name]
        raise FileNotFoundError(name)


def table(data: bytes) -> None:
    """Bytes as the first version of a table; its checkpoint and the note follow zero bytes."""
    commit, checkpoint, note = (data.split(b"\0") + [b"", b""])[:3]
    value = DeltaLog(OneCommit(commit, checkpoint, note), "table")
    for _ in range(2):
        with suppress(TableReadError, ConfirmError, OptionError):
            value.update()
            for since in (-1, 0):
                state = value.snapshot("log", since, 0)
                check_history(CONFIRMED.promise, state)


def _headers() -> list[bytes]:
    return [*map(to_json, (LEADER, COMMIT, PARTS)), to_json(COMMIT) + b"\0" + SCHEMA.encode()]


def _in_metadata(body: bytes) -> bytes:
    value: bytes = pa.ipc.open_file(body).schema.metadata[HEADER_KEY]
    return value


TARGET = Target("s3://b/t", MERGE, ("v",), "v", "s = 'd'", ("s",), (), (("a", "b"),))
CONFIRMED = made(
    **{"kind": "intent", "number": keys.MAX, "log_id": "log", "sequencer": "default"},
    **{"floor": 0, "cut": 0, "to": 2, "k": 1, "gc_grace_ms": 1, "table_id": "t"},
    target=TARGET,
)


def _lifecycles() -> list[bytes]:
    plain = made(
        kind="floor",
        number=keys.MAX,
        log_id="log",
        sequencer="default",
        floor=1,
        cut=1,
        to=1,
        gc_grace_ms=1,
    )
    intent = changed(plain, "intent", k=1, to=2, target=TARGET, table_id="t")
    bodies = [lifecycle_record.encode(record) for record in (plain.record, intent)]
    return [*bodies, *map(_in_metadata, bodies)]


def _consumers() -> list[bytes]:
    value = consumers.consumer("daily", {"a": 7}, "log")
    lease = replace(value, expires_ms=9)
    forms = product((value, lease), ("a", None))
    bodies = [consumer_record.encode(item, only) for item, only in forms]
    return [*bodies, *(body.partition(b"\n")[0] for body in bodies)]


def _archives() -> list[bytes]:
    progress = QueryProgress({"other": (3, 1), "q": (-1, 0)}, {})
    return [archive.encode(progress)]


PLAN = b'v1\n{"batchWatermarkMs":0,"conf":{"spark.sql.shuffle.partitions":"2"}}\n{"logOffset":3}'
LIST = b'v1\n{"path":"s3a://b/f","timestamp":1,"batchId":3}'
FILES = {
    "offsets/7": PLAN,
    "offsets/6": PLAN.replace(b"3", b"2"),
    "commits/6": b'v1\n{"nextBatchWatermarkMs":0}',
    "sources/0/3": LIST,
    "sources/0/9.compact": b"\xff\\u20ac",
}


def _blocks() -> list[bytes]:
    block = packing.encode(FILES)
    return [block, bytes(limits.inflate(block, 2**20))]


def _journals() -> list[bytes]:
    header = Header(4, "log", "p", 10, 0, 7, b"schema", 1)
    content = b"content"
    parts = entry(0, content, crc32(content), 7)
    segment = header.encode() + b"".join(map(bytes, parts))
    notes = (
        '{"log_id":"log","producer":"p","sequence":3,"first_segment":3,"next_segment":5}',
        '{"whose":"w","leader_id":"l","sequence":3}',
        '["log","p",[{"name":"quarantine/00000000000000000003.wal","first":1,"last":2,'
        '"files":["quarantine/00000000000000000003.wal"],"reason":"r","unknown":0}]]',
    )
    return [segment, *(item.encode() for item in notes)]


def _conditions() -> list[bytes]:
    return [
        b"op = 'd' and not (n in (1, 2) or gone)",
        b"coalesce(`op`, 'x') like 'd%' or f is not null",
        b"n <=> null and s.x >= -1.5e3",
    ]


def _tables() -> list[bytes]:
    actions = (
        {
            "commitInfo": {
                "timestamp": 1,
                "operation": "WRITE",
                "operationParameters": {"mode": "Append"},
                "operationMetrics": {"numOutputRows": "3"},
                "userMetadata": '{"log_id":"log","k":1,"cut":0,"to":2}',
            }
        },
        {
            "metaData": {
                "id": "t",
                "schemaString": SCHEMA,
                "partitionColumns": [],
                "configuration": {},
            }
        },
        {"txn": {"appId": "log", "version": 1}},
        {"remove": {"path": "a", "deletionTimestamp": 1, "deletionVector": {"offset": 1}}},
    )
    text = "\n".join(map(json.dumps, actions)).encode()
    return [text, b"\0".join([text, text, b'{"version":0}'])]


def _rows() -> list[bytes]:
    body = sound()[keys.key("wal", keys.data(1, 1000, 0))]
    opened = arrowfile.open_front(body, "seed")
    assert isinstance(opened.header, DataHeader)
    return [body[opened.body :], *_compressed()]


def _compressed() -> Iterator[bytes]:
    rows = pa.record_batch({"v": [1, None], "s": ["a", "é" * 99]}, schema.to_arrow(SCHEMA))
    for codec in ("zstd", "lz4"):
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=codec)
        with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
            # The schema comes with the first batch.
            writer.write_batch(rows)
            begin = sink.tell()
            writer.write_batch(rows)
            end = sink.tell()
        frame = bytes(sink.getvalue())[begin:end]
        assert [*arrowfile.read_frames(frame, SCHEMA, "seed")] == [rows]
        yield frame


KINDS: dict[str, Kind] = {
    "record": Kind(whole_record, lambda: [*sound().values()]),
    "header": Kind(record_header, _headers),
    "schema": Kind(record_schema, lambda: [SCHEMA.encode()]),
    "frames": Kind(frames, _rows),
    "lifecycle": Kind(lifecycle, _lifecycles),
    "consumer": Kind(consumer, _consumers),
    "archive": Kind(old_queries, _archives),
    "checkpoint": Kind(checkpoint, _blocks),
    "plan": Kind(plan, lambda: [PLAN, b"\0".join([PLAN, LIST, LIST, LIST, PLAN])]),
    "journal": Kind(journal, _journals),
    "condition": Kind(delete_condition, _conditions),
    "table": Kind(table, _tables),
    "segment": Kind(segments.read, segments.seeds),
}


def earlier_failures(kind: str) -> list[Path]:
    """The files of inputs that failed once."""
    return sorted((FOUND / kind).glob("*"))
