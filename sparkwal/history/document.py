"""What a report tells, as numbers: the page shows it, and carries it for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from sparkwal.format.header import host_of
from sparkwal.history.cost import UNTOLD, lines, projection, total, whole_read
from sparkwal.history.looking import Looked
from sparkwal.history.prices import OF, Prices
from sparkwal.history.series import Bucket

FORMAT = 1


def document(
    looked: Looked, prices: Prices, made_ms: int, consumers: Sequence[Any] = ()
) -> dict[str, Any]:
    """All of a report. Times are milliseconds since 1970, costs dollars; no number is NaN.

    Args:
        consumers: `lifecycle.consumers.ConsumerInfo` of this log.
    """
    history = looked.history
    every = lines(history.series, looked.held, looked.since_ms, looked.until_ms, prices)
    month = projection([looked], prices)
    return {
        "format": FORMAT,
        "made_ms": made_ms,
        "log": _log(looked),
        "range": {
            "start": looked.start, "end": history.after,
            "since_ms": looked.since_ms, "until_ms": looked.until_ms,
        },
        "damage": looked.damage or None,
        "totals": _totals(history.total),
        "series": {
            "width_ms": history.series.width_ms,
            "buckets": [_bucket(bucket, prices) for bucket in history.series],
        },
        "interval_ms": history.intervals.told(),
        "terms": {
            "count": history.term_count,
            "newest": [asdict(term) for term in reversed(history.terms)],
        },
        "pauses": [asdict(pause) for pause in history.pauses],
        "dead": {"count": history.total.dead, "first": [list(run) for run in history.dead]},
        "consumers": [asdict(each) for each in consumers],
        "lifecycle": _lifecycle(looked),
        "stored": {"bytes": looked.stored, "objects": looked.objects},
        "cost": {
            "prices": {"of": OF, "currency": "USD", **asdict(prices)},
            "total": asdict(total(every, looked.since_ms, looked.until_ms)),
            "month": asdict(month) if month else None,
            "whole_read": asdict(whole_read([looked], prices)),
            "not_told": list(UNTOLD),
            "lines": [
                {"start_ms": line.start_ms, "end_ms": line.end_ms, "stored": line.stored,
                 "request_cost": line.request_cost, "storage_cost": line.storage_cost}
                for line in every
            ],
        },
        "schema": list(columns(looked.spark_schema)),
    }  # fmt: skip


def _log(looked: Looked) -> dict[str, Any]:
    head, last = looked.head, looked.history.last_commit
    return {
        "url": looked.url, "sequencer": looked.sequencer, "log_id": head.log_id,
        "next_position": looked.gap, "floor": looked.floor, "term": head.term,
        "leader_id": head.leader_id,
        "host": host_of(head),
        "window": head.window, "last_ms": head.timestamp_ms,
        "last_commit_ms": last.timestamp_ms if last else None,
        "first_ms": looked.history.first.timestamp_ms if looked.history.first else None,
    }  # fmt: skip


def _totals(bucket: Bucket) -> dict[str, Any]:
    return {
        "commits": bucket.commits, "rows": bucket.rows, "bytes": bucket.bytes,
        "leaders": bucket.leaders, "dead": bucket.dead, "put_ms": bucket.put_ms.told(),
        "commit_bytes": bucket.sizes.told(), "most_in_flight": bucket.in_flight,
        "requests": dict(bucket.requests),
    }  # fmt: skip


def _bucket(bucket: Bucket, prices: Prices) -> dict[str, Any]:
    put, sizes = bucket.put_ms.told(), bucket.sizes.told()
    return {
        "start_ms": bucket.start_ms, "commits": bucket.commits, "rows": bucket.rows,
        "bytes": bucket.bytes, "leaders": bucket.leaders, "dead": bucket.dead,
        "put_p50": put["p50"], "put_p99": put["p99"],
        "size_p50": sizes["p50"], "size_p99": sizes["p99"],
        "in_flight": bucket.in_flight, "stored": bucket.stored, "objects": bucket.objects,
        "requests": dict(bucket.requests), "request_cost": prices.of(bucket.requests),
    }  # fmt: skip


def _lifecycle(looked: Looked) -> dict[str, Any] | None:
    chain = looked.chain
    if chain is None:
        return None
    target = chain.target
    return {
        "kind": chain.kind, "k": chain.k, "cut": chain.cut, "to": chain.to, "floor": chain.floor,
        "is_open": chain.is_open, "table": target.table if target else None,
        "mode": target.mode if target else None, "keys": list(target.keys) if target else [],
        "table_version": chain.table_version if target else None,
        "timestamp_ms": chain.timestamp_ms, "host": chain.host, "gc_grace_ms": chain.gc_grace_ms,
    }  # fmt: skip


def columns(spark_schema: str) -> Iterator[dict[str, Any]]:
    """The columns of a Spark schema and what they are made of, outer ones first."""
    yield from _fields(json.loads(spark_schema)["fields"], 0)


def _fields(fields: Sequence[dict[str, Any]], depth: int) -> Iterator[dict[str, Any]]:
    for each in fields:
        yield from _column(each["name"], each["type"], each["nullable"], depth)


def _column(name: str, kind: Any, nullable: bool, depth: int) -> Iterator[dict[str, Any]]:
    plain = kind if isinstance(kind, str) else kind.get("type", "")
    yield {"name": name, "type": plain, "nullable": nullable, "depth": depth}
    if isinstance(kind, str):
        return
    if plain == "struct":
        yield from _fields(kind["fields"], depth + 1)
    elif plain == "array":
        yield from _column("element", kind["elementType"], kind["containsNull"], depth + 1)
    elif plain == "map":
        yield from _column("key", kind["keyType"], False, depth + 1)
        yield from _column("value", kind["valueType"], kind["valueContainsNull"], depth + 1)
