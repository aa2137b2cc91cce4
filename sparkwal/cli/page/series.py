"""The buckets of a report as the curves of its charts: one value for each slot of time."""

from __future__ import annotations

from typing import Any

from sparkwal.cli.page.charts import Curve, Time

# What a bucket that nothing was written in says.
_NOTHING = {"put_p50": None, "put_p99": None, "size_p50": None, "size_p99": None}


def dense(document: dict[str, Any]) -> tuple[Time, dict[str, list[Curve]]]:
    """The slots of time, and the curves of each chart by its key."""
    buckets, width = document["series"]["buckets"], document["series"]["width_ms"]
    start = buckets[0]["start_ms"] if buckets else document["range"]["since_ms"]
    slots = (buckets[-1]["start_ms"] - start) // width + 1 if buckets else 1
    time = Time(start, width, slots)
    by_slot = {(bucket["start_ms"] - start) // width: bucket for bucket in buckets}

    def curve(name: str, field: str, look: str) -> Curve:
        missing = _NOTHING.get(field, 0)
        values = [by_slot[x][field] if x in by_slot else missing for x in range(slots)]
        return Curve(name, values, look)

    return time, {
        "commits": [curve("commits", "commits", "a")],
        "rows": [curve("rows", "rows", "c")],
        "bytes": [curve("bytes", "bytes", "d")],
        "latency": [curve("p50", "put_p50", "a"), curve("p99", "put_p99", "b")],
        "sizes": [curve("p50", "size_p50", "c"), curve("p99", "size_p99", "d")],
        "in_flight": [curve("records under way", "in_flight", "b")],
        "cost": [curve("requests", "request_cost", "a"), _storage(document, time)],
    }


def _storage(document: dict[str, Any], time: Time) -> Curve:
    """What storing cost in each slot: a line of the cost may be as long as many."""
    values = [0.0] * time.slots
    for line in document["cost"]["lines"]:
        lasted = line["end_ms"] - line["start_ms"]
        first = (line["start_ms"] - time.start_ms) // time.width_ms
        last = (max(line["end_ms"] - 1, line["start_ms"]) - time.start_ms) // time.width_ms
        for slot in range(max(first, 0), min(last, time.slots - 1) + 1):
            begin = time.start_ms + slot * time.width_ms
            inside = min(line["end_ms"], begin + time.width_ms) - max(line["start_ms"], begin)
            values[slot] += line["storage_cost"] * inside / lasted if lasted else 0
    return Curve("storage", values, "b")
