"""Recovery of logs of any length: requests, and time."""

from __future__ import annotations

import random
import statistics
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa
from sorted_s3 import serve

from benchmarks.measuring import BUCKET, delayed, spawned
from benchmarks.microbatch import reset, seen
from sparkwal.format import arrowfile, keys, schema
from sparkwal.format.header import HEADER_KEY, CommitHeader, LeaderHeader, crc_hex, to_json
from sparkwal.options.open import open_log
from sparkwal.options.parsing import parse
from sparkwal.options.writing import SinkOptions
from sparkwal.protocol.clock import Clock
from sparkwal.protocol.commit_record import encode_record
from sparkwal.protocol.takeover import Claim, lead
from sparkwal.testing.servers import log_options

# The widest time that a header may hold.
LATEST_MS = (2**63 - 1) // 1000
WINDOW = 1000
QUERY = "1b4e28ba-2fa1-4a4c-9d7e-1f0c5a7c7f55"
SPARK_SCHEMA = schema.from_arrow(
    pa.schema([("timestamp", pa.timestamp("us", tz="UTC")), ("value", pa.int64())])
)


def long_log(prefix: str, commits: int) -> Iterator[tuple[str, bytes]]:
    """Keys and objects of a log that one query wrote, the newest last.

    Every commit holds the same ten inlined rows. Only the header differs, so it is put
    into the space of a widest one, as a writer does (`arrowfile`).
    """
    common: dict[str, Any] = {
        "window": WINDOW,
        "leader_id": "host:4711:815:0123456789ab",
        "term": 1,
        "log_id": uuid.uuid4().hex,
        "in_flight_limit": 1,
        "schema_crc32": arrowfile.schema_crc(SPARK_SCHEMA),
    }
    leader = LeaderHeader(
        number=keys.slot(0, WINDOW),
        position=0,
        plan_id=uuid.uuid4().hex,
        timestamp_ms=1_700_000_000_000,
        prev_position=-1,
        txns={},
        reason="cold start",
        host="host",
        **common,
    )
    yield keys.key(prefix, leader.number), arrowfile.encode(leader, SPARK_SCHEMA)
    arrow = schema.to_arrow(SPARK_SCHEMA)
    rows = pa.RecordBatch.from_pydict(
        {"timestamp": [1_700_000_000_000_000] * 10, "value": list(range(10))}, schema=arrow
    )
    widest, template = encode_record(
        CommitHeader(
            number=keys.slot(commits, WINDOW),
            position=commits,
            plan_id=uuid.uuid4().hex,
            timestamp_ms=LATEST_MS,
            query_id=QUERY,
            batch_id=commits,
            rows=10,
            bytes=0,
            batches=(),
            inline=(),
            txns={QUERY: (commits, LATEST_MS)},
            metrics={"put_ms": 0.0, "tasks": 2},
            **common,
        ),
        [(0, [rows])],
        SPARK_SCHEMA,
        "zstd",
    )
    front = arrowfile.open_front(template, "the template")
    assert front.header == widest
    draft = pa.ipc.open_file(template).schema.metadata[HEADER_KEY]
    for position in range(1, commits + 1):
        now = 1_700_000_000_000 + position
        header = replace(
            widest,
            number=keys.slot(position, WINDOW),
            position=position,
            plan_id=f"{position:032x}",
            batch_id=position - 1,
            timestamp_ms=now,
            txns={QUERY: (position - 1, now)},
        )
        text = to_json(header)
        final = text[:-1] + b" " * (len(draft) - len(text)) + b"}"
        body = template.replace(draft, final).replace(crc_hex(draft), crc_hex(final))
        yield keys.key(prefix, header.number), body


def _serve(sizes: Sequence[int], pipe: Connection) -> None:
    """A process that holds logs of these lengths until the other end closes."""
    from sortedcontainers import SortedDict

    objects: dict[str, bytes] = {}
    for commits in sizes:
        for key, body in long_log(str(commits), commits):
            objects[f"{BUCKET}/{key}"] = body
    with serve(SortedDict(objects)) as url:
        pipe.send((url, len(objects), sum(map(len, objects.values()))))
        pipe.poll(None)


@contextmanager
def long_logs(sizes: Sequence[int]) -> Iterator[tuple[str, int, int]]:
    """(URL of a server that lists from a sorted map, its objects, their bytes)."""
    with spawned(_serve, sizes) as found:
        yield found


def recover(proxy: str, commits: int) -> tuple[float, Counter[str]]:
    """Take over the log of this length; milliseconds and requests."""
    options = parse(SinkOptions, {"path": f"s3://{BUCKET}/{commits}", **log_options(proxy)})
    log = open_log(options)
    claim = Claim(
        leader_id=uuid.uuid4().hex,
        host="host",
        plan_id=uuid.uuid4().hex,
        spark_schema=SPARK_SCHEMA,
        merge_schema=False,
        window=None,
        in_flight_limit=1,
        reason="benchmark",
    )
    reset(proxy)
    begin = time.perf_counter()
    found = lead(log, claim, Clock(), options.plan_ttl_ms)
    taken = (time.perf_counter() - begin) * 1000
    if found.next_position < commits + 2 or found.txns[QUERY][0] != commits - 1:
        raise RuntimeError(f"the log of {commits} commits was not recovered whole")
    return taken, Counter(request["kind"] for request in seen(proxy))


def measure(
    sizes: Sequence[int], latencies: Sequence[int], repeats: int, report: Callable[[str], None]
) -> dict[str, Any]:
    """Recovery of each length in turns, for each added latency."""
    found: list[dict[str, Any]] = []
    began = time.perf_counter()
    with long_logs(sizes) as (server, objects, size):
        report(f"{objects:,} objects, {size / 1e9:.2f} GB, in {time.perf_counter() - began:.0f} s")
        for latency_ms in latencies:
            with delayed(server, latency_ms) as proxy:
                taken: dict[int, list[float]] = defaultdict(list)
                requests: dict[int, set[str]] = defaultdict(set)
                for turn in range(repeats + 1):
                    # Another order each time: the first after a pause pays for it.
                    for commits in random.Random(turn).sample(sizes, len(sizes)):
                        ms, counts = recover(proxy, commits)
                        if turn:  # the first opens connections
                            taken[commits].append(ms)
                            kinds = (f"{n} {kind}" for kind, n in sorted(counts.items()))
                            requests[commits].add(", ".join(kinds))
            for commits in sizes:
                found.append(
                    {
                        "commits": commits,
                        "latency_ms": latency_ms,
                        "ms": round(statistics.median(taken[commits]), 2),
                        "requests": sorted(requests[commits]),
                        "repeats": repeats,
                    }
                )
                report(f"recovery, {found[-1]}")
    return {"objects": objects, "bytes": size, "logs": found}
