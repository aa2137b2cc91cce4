"""What a look at a made-up log finds, without the log."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from headers import SPARK_SCHEMA
from history.headers_of import commit, leader

from sparkwal.format.header import SlotHeader
from sparkwal.format.lifecycle import DONE, LifecycleRecord, Target
from sparkwal.history.folding import History
from sparkwal.history.looking import Looked
from sparkwal.history.series import DAY, HOUR, holding
from sparkwal.lifecycle.consumers import ConsumerInfo
from sparkwal.protocol.chain import beginning

NOW = 1_760_000_000_000


def looked(
    records: Sequence[SlotHeader], until_ms: int, start: int = 0, **others: object
) -> Looked:
    """These records, each object as large as its commit says."""
    history = History(start, None, until_ms - DAY)
    for header in records:
        history.add(header)
    head = records[-1]
    found = Looked(
        sequencer="default", url="s3://bucket/events/orders", start=start, end=head.position + 1,
        head=head, spark_schema=SPARK_SCHEMA, gap=head.position + 1, floor=start,
        since_ms=records[0].timestamp_ms, until_ms=until_ms, history=history, chain=None, held=0,
        stored=0, objects=0,
    )  # fmt: skip
    buckets = list(history.series)
    stored = 0
    for header in records:
        size = 2400 + getattr(header, "bytes", 0)
        stored += size
        for bucket in (holding(buckets, header.position), history.total):
            assert bucket is not None
            bucket.stored, bucket.objects = bucket.stored + size, bucket.objects + 1
        if header.timestamp_ms >= until_ms - DAY:
            history.recent.stored += size
    return replace(found, stored=stored, objects=len(records), **others)  # type: ignore[arg-type]


def many(count: int, seed: int = 7) -> list[SlotHeader]:
    """A life of a log: days and nights, restarts, takeovers, an outage, dead positions."""
    draw = random.Random(seed)
    found: list[SlotHeader] = [leader(0, NOW, 1, "cold start", "driver-a.internal")]
    position, time, term = 1, NOW, 1
    step = 14 * DAY / count
    for number in range(count):
        hour = time % DAY / HOUR
        busy = 0.35 + (1 - abs(hour - 13) / 12)
        time += round(step * draw.expovariate(1) / busy)
        if number == count // 3:
            time += 9 * HOUR
        if draw.random() < 14 / count or number == count // 3:
            term += 1
            host = draw.choice(["driver-a.internal", "driver-b.internal", "10.2.7.19"])
            position += draw.choice([0, 0, 3])
            reason = draw.choice(["cold start", "appender"])
            found.append(leader(position, time, term, reason, host))
            position += 1
        rows = round(draw.lognormvariate(6.2, 0.8) * busy)
        slow = 3 if count // 2 < number < count * 0.56 else 1
        found.append(
            commit(position, time, rows, rows * 91, term=term,
                   put_ms=draw.lognormvariate(3.6, 0.5) * slow, objects=(rows * 91,))
        )  # fmt: skip
        position += 1
    return found


def lifecycle(cut: int, floor: int) -> LifecycleRecord:
    """A log with a table, of which a part was collected."""
    return replace(
        beginning("f" * 32, "default", DAY), kind=DONE, number=2**64 - 90, k=29, cut=cut, to=cut,
        floor=floor, target=Target("s3a://lake/orders", "merge", ("order_id",)), table_version=31,
        timestamp_ms=NOW + 14 * DAY, host="compactor-0",
    )  # fmt: skip


def consumer(name: str, position: int, lag: int, live: bool = True) -> ConsumerInfo:
    return ConsumerInfo(
        name=name, sequencer="default", position=position, lag=lag, lag_ms=lag * 31_000,
        age_ms=42_000, host="reader-3.internal", expires_ms=None, of_this_log=True, live=live,
    )  # fmt: skip
