"""How large a log is, and how large its policy allows it to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwal.format import keys
from sparkwal.reading.floor import KEPT_SLOTS


@dataclass(frozen=True)
class Sample:
    """One measurement.

    Attributes:
        seconds: the age of the log.
        bytes, objects: everything under the log's prefix, lifecycle records and consumers too.
        allowed: bytes that the policy lets stay; see `Storage.sample`.
        written: bytes of all objects that were ever seen.
    """

    seconds: float
    bytes: int
    objects: int
    allowed: int
    written: int

    @property
    def ratio(self) -> float:
        return self.bytes / self.allowed if self.allowed else 0.0


@dataclass(frozen=True)
class _Seen:
    size: int
    modified: float
    position: int
    is_slot: bool


class Storage:
    """The objects of one log, by S3's own listing.

    Args:
        s3: a botocore client.
        window: of the log's keys.
        keeps: seconds from a commit to its deletion, by the policy.
    """

    def __init__(self, s3: Any, bucket: str, prefix: str, window: int, keeps: float) -> None:
        self._s3 = s3
        self._bucket = bucket
        self._prefix = prefix
        self._window, self._keeps = window, keeps
        self._seen: dict[str, _Seen] = {}
        self._began = 0.0

    def sample(self, now: float, run_seconds: float, consumer: int) -> Sample:
        """Measure all objects: 1 LIST for a thousand.

        Allowed are the bytes that were written as long ago as the policy keeps them and a run
        lasts, or that the consumer had not yet read; and the slot records that always stay.

        Args:
            now: by the store's clock.
            run_seconds: how long a run of the lifecycle lasts.
            consumer: the position that it had reported when the last collection began, at the
                latest.
        """
        size = count = 0
        pages = self._s3.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self._bucket, Prefix=f"{self._prefix}/"):
            for entry in page.get("Contents", ()):
                size, count = size + entry["Size"], count + 1
                self._note(entry)
        if not self._began:
            self._began = min((each.modified for each in self._seen.values()), default=now)
        since = now - self._keeps - run_seconds
        fresh = (x.position for x in self._seen.values() if x.modified >= since)
        start = min(min(fresh, default=consumer), consumer)
        allowed = sum(
            x.size
            for x in self._seen.values()
            if x.position >= start or (x.is_slot and x.position >= start - KEPT_SLOTS)
        )
        written = sum(x.size for x in self._seen.values())
        return Sample(now - self._began, size, count, allowed, written)

    def _note(self, entry: Any) -> None:
        key, prefix = entry["Key"], keys.batches_prefix(self._prefix)
        number = keys.decode(key.removeprefix(prefix)) if key.startswith(prefix) else None
        if number is not None:
            self._seen[key] = _Seen(
                entry["Size"],
                entry["LastModified"].timestamp(),
                keys.position(number, self._window),
                keys.is_slot(number, self._window),
            )
