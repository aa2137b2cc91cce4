"""One header of each kind, with fixed values, and objects made of them."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa

from sparkwal.format import arrowfile, keys, schema
from sparkwal.format.header import Batch, CommitHeader, DataHeader, Header, Inline, LeaderHeader

SPARK_SCHEMA = schema.normalize(
    json.dumps(
        {
            "type": "struct",
            "fields": [
                {"name": "id", "type": "long", "nullable": False, "metadata": {}},
                {"name": "namé", "type": "string", "nullable": True, "metadata": {}},
            ],
        }
    )
)
WINDOW = 1000
POSITION = 7
DECIDED = 4  # in what `golden` gives
COMMON = {
    "log_id": "ffeeddccbbaa99887766554433221100",
    "position": POSITION,
    "window": WINDOW,
    "leader_id": "host:12:345:abc",
    "term": 3,
    "plan_id": "00112233445566778899aabbccddeeff",
    "in_flight_limit": 1,
    "timestamp_ms": 1_760_000_000_123,
    "schema_crc32": arrowfile.schema_crc(SPARK_SCHEMA),
}
TXNS = {"q-1": (41, 1_760_000_000_000), "nächtlich": (20260131, 1_750_000_000_000)}

LEADER = LeaderHeader(
    number=keys.slot(POSITION, WINDOW),
    **COMMON,
    prev_position=6,
    txns=TXNS,
    reason="cold start",
    host="host",
)
COMMIT = CommitHeader(
    number=keys.slot(POSITION, WINDOW),
    **COMMON,
    query_id="q-1",
    batch_id=42,
    rows=6,
    bytes=900,
    batches=(
        Batch(
            keys.data(POSITION, WINDOW, 0),
            0,
            4,
            600,
            2**32 - 1,
            ((432, 80, 3, 17), (512, 72, 1, 18)),
        ),
        Batch(keys.data(POSITION, WINDOW, 5), 5, 2, 300, 0, ((432, 64, 2, 19),)),
    ),
    inline=(),
    txns=TXNS,
    metrics={"put_ms": 12.5, "tasks": 2},
)
DATA = DataHeader(
    number=keys.data(POSITION, WINDOW, 5),
    **COMMON,
    query_id="q-1",
    batch_id=42,
    partition=5,
    rows=3,
    stage_attempt=1,
)

ROWS = pa.record_batch(
    {"id": pa.array([1, None, -(2**63)], pa.int64()), "namé": pa.array(["a", "𝄞", None])},
    schema=schema.to_arrow(SPARK_SCHEMA),
)


def plain(header: Header) -> bytes:
    """A whole object without rows."""
    return arrowfile.encode(header, SPARK_SCHEMA)


def with_rows(header: Header, draft: Header) -> bytes:
    """A whole object with ROWS as its one frame, uncompressed."""
    writer = arrowfile.FileWriter(draft, SPARK_SCHEMA, None)
    frame = writer.frame(ROWS)
    if isinstance(header, CommitHeader):
        header = replace(header, inline=(Inline(3, 3, 1, len(frame), writer.frames[0][3]),))
    prefix, tail, _ = writer.finish(header)
    return prefix + frame + tail


def golden() -> dict[str, bytes]:
    """Every kind of object; the same bytes every time."""
    widest = Inline(3, 3, 2**63 - 1, 2**63 - 1, 2**32 - 1)
    leader, commit, data = (replace(each, decided=DECIDED) for each in (LEADER, COMMIT, DATA))
    return {
        "leader": plain(leader),
        "commit_batches": plain(commit),
        "commit_inline": with_rows(
            replace(commit, rows=3, batches=()),
            replace(commit, rows=3, batches=(), inline=(widest,)),
        ),
        "data": with_rows(data, replace(data, rows=2**63 - 1)),
    }
