"""Appends to a log of its own as fast as they are acknowledged, read back, and deleted."""

from __future__ import annotations

import os
import shutil
import threading
import time
import uuid
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import click
import pyarrow as pa

from sparkwal.appender.appender import Appender, appender_over
from sparkwal.console.exit_codes import Failed
from sparkwal.errors import SparkWalError
from sparkwal.events import Retried
from sparkwal.events.emitting import Event
from sparkwal.options.appender import AppenderOptions
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.options.store import StoreOptions
from sparkwal.reading.log_range import LogRange
from sparkwal.sql.prices import dollars
from sparkwal.store.base import Store
from sparkwal.store.log_store import LogStore
from sparkwal.store.path import folder, is_local

SCHEMA = pa.schema([("append", pa.int64()), ("payload", pa.binary())])
_NUMBER_BYTES = 8
# Appends that wait when a signal comes are given so long: a PUT that arrives after the delete
# would stay.
_DRAIN_SECONDS = 20.0
_DELETES = 100

_KINDS = {
    "put_if_absent": "PUT", "put": "PUT", "get": "GET", "get_range": "GET", "age_ms": "HEAD",
    "list": "LIST", "unfinished": "LIST", "delete": "DELETE", "delete_many": "DELETE",
}  # fmt: skip


class Counting:
    """A store that counts what is asked of it, by kinds of requests.

    Attributes:
        requests: so far, without retries.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._lock = store, threading.Lock()
        self.requests: Counter[str] = Counter()

    def count(self, kind: str) -> None:
        """One request more."""
        with self._lock:
            self.requests[kind] += 1

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in _KINDS:
            return found

        def counted(*arguments: Any, **named: Any) -> Any:
            self.count(_KINDS[name])
            return found(*arguments, **named)

        return counted


@dataclass
class Figures:
    """What was measured so far; `latencies` in seconds, from append to acknowledgement."""

    row_bytes: int
    rows_per_append: int
    latencies: array[float] = field(default_factory=lambda: array("d"))
    retries: int = 0
    seconds: float = 0.0
    requests: Mapping[str, int] = field(default_factory=dict)
    read_seconds: float = 0.0
    read_requests: Mapping[str, int] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """For programs and tables; times in milliseconds, sizes in MB of rows as they came in."""
        appends = len(self.latencies)
        rows = appends * self.rows_per_append
        ordered = sorted(self.latencies[:appends])
        spent = dollars(self.requests)
        seconds, megabytes = max(self.seconds, 1e-9), rows * self.row_bytes / 1e6
        found: dict[str, Any] = {
            "seconds": round(self.seconds, 2),
            "appends": appends,
            "rows": rows,
            "puts_per_s": round(self.requests.get("PUT", 0) / seconds, 1),
            "appends_per_s": round(appends / seconds, 1),
            "rows_per_s": round(rows / seconds, 1),
            "mb_per_s": round(megabytes / seconds, 3),
            **{
                f"{name}_ms": milliseconds(ordered, share) if ordered else None
                for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
            },
            "retries": self.retries,
            "requests": dict(self.requests),
            "dollars_per_million_appends": round(spent / appends * 1e6, 4) if appends else None,
            "dollars_per_million_rows": round(spent / rows * 1e6, 4) if rows else None,
        }
        if self.read_seconds:
            found["read"] = {
                "seconds": round(self.read_seconds, 2),
                "rows_per_s": round(rows / self.read_seconds, 1),
                "mb_per_s": round(megabytes / self.read_seconds, 3),
                "requests": dict(self.read_requests),
            }
        return found


def milliseconds(ordered: Sequence[float], share: float) -> float:
    """The quantile of these seconds."""
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 3)


def fresh_path(path: str) -> str:
    """A path under `path` that nobody else has. Raises OptionError."""
    from_keywords(StoreOptions, path, {})
    return f"{path.rstrip('/')}/_bench-{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True)
class Bench:
    """A log of its own that is written, read and deleted.

    Attributes:
        path: from `fresh_path`.
        options: of the appender; those of the store serve reading too.
    """

    path: str
    options: Mapping[str, str]

    def check(self) -> None:
        """Before anything is written. Raises OptionError."""
        open_log(from_keywords(AppenderOptions, self.path, self.options))

    def append(
        self, figures: Figures, seconds: float, in_flight: int, tick: Callable[[], None]
    ) -> None:
        """Append for so many seconds; `in_flight` appends wait for their acknowledgement at once.

        Raises why the appender stopped.
        """
        settings = from_keywords(AppenderOptions, self.path, self.options)
        log = open_log(settings, fail_fast=True)
        counting = Counting(log.store)

        def heard(event: Event) -> None:
            if isinstance(event, Retried):
                figures.retries += 1
                counting.count(event.operation.upper())

        given: dict[str, Any] = dict(self.options)
        counted = LogStore(cast(Store, counting), log.prefix)
        wal = appender_over(counted, SCHEMA, producer_id="bench", on_event=heard, **given)
        # Opening is no append.
        opening = counting.requests.copy()
        figures.requests = requests = Counter[str]()
        free = threading.Semaphore(in_flight)
        began = time.perf_counter()

        def update() -> None:
            figures.seconds = time.perf_counter() - began
            requests.update(counting.requests - opening - requests)

        try:
            number = 0
            ticked = began
            while (now := time.perf_counter()) - began < seconds and wal.error is None:
                if now - ticked > 0.25:
                    ticked = now
                    update()
                    tick()
                if free.acquire(timeout=0.25):
                    _append(wal, figures, number, free)
                    number += 1
            wal.flush()
            update()
        finally:
            with suppress(SparkWalError, TimeoutError):
                wal.close(_DRAIN_SECONDS)

    def read(self, figures: Figures) -> None:
        """Read all of it back. Raises Failed where it is not what was acknowledged."""
        store = {k: v for k, v in self.options.items() if k.lower() in _STORE_OPTIONS}
        options = from_keywords(SourceOptions, self.path, store)
        log = open_log(options, fail_fast=True)
        counting = Counting(log.store)
        began = time.perf_counter()
        found = LogRange(options, options.sequencer, LogStore(cast(Store, counting), log.prefix))
        found.look()
        rows = sum(batch.num_rows for batch in found.scan(found.start(), found.gap, SCHEMA))
        figures.read_seconds = time.perf_counter() - began
        figures.read_requests = counting.requests.copy()
        written = len(figures.latencies) * figures.rows_per_append
        if rows != written:
            raise Failed(f"{written} rows were acknowledged, and {rows} were read back")

    def delete(self) -> None:
        """Remove what is under the path. Nobody else writes there: its name was drawn."""
        if is_local(self.path):
            # Where a second Ctrl-C ended the drain, appends still write meanwhile.
            for _ in range(_DELETES):
                shutil.rmtree(folder(self.path), ignore_errors=True)
                if not Path(folder(self.path)).exists():
                    return
                time.sleep(0.05)
            raise Failed("something still writes there")
        log = open_log(from_keywords(AppenderOptions, self.path, self.options))
        assert "_bench-" in log.prefix
        inside = f"{log.prefix}/"
        for upload in log.store.unfinished(inside).uploads:
            log.store.discard(upload)
        while keys := [entry.key for entry in log.store.list(inside).entries]:
            log.store.delete_many(keys)


# Those that reading has too.
_STORE_OPTIONS = {
    spec.metadata["name"].lower()
    for name, spec in SourceOptions.__dataclass_fields__.items()
    if name in AppenderOptions.__dataclass_fields__
} - {"path"}


def _append(wal: Appender, figures: Figures, number: int, free: threading.Semaphore) -> None:
    rows = _rows(number, figures.rows_per_append, figures.row_bytes)
    began = time.perf_counter()
    ticket = wal.append(rows)

    def acknowledged() -> None:
        if wal.error is None:
            figures.latencies.append(time.perf_counter() - began)
        free.release()

    ticket.when_done(acknowledged)


def _rows(number: int, rows: int, row_bytes: int) -> pa.RecordBatch:
    # Random: what compresses to nothing would be no measure.
    width = max(row_bytes - _NUMBER_BYTES, 0)
    offsets = array("i", range(0, (rows + 1) * width, width) if width else [0] * (rows + 1))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(os.urandom(rows * width))]
    payload = pa.Array.from_buffers(pa.binary(), rows, buffers)
    numbers = pa.repeat(pa.scalar(number, pa.int64()), rows)
    return pa.RecordBatch.from_arrays([numbers, payload], schema=SCHEMA)


@contextmanager
def deleted_after(bench: Bench, keep: bool) -> Iterator[None]:
    """Whatever ends it, also Ctrl-C, `bench` is deleted then; not where it is kept."""
    there = not is_local(bench.path) or Path(folder(bench.path)).parent.exists()
    try:
        yield
    finally:
        if not keep:
            try:
                bench.delete()
            except BaseException:
                click.echo(f"not all of {bench.path} is deleted: delete it yourself", err=True)
                raise
            if not there:
                with suppress(OSError):
                    Path(folder(bench.path)).parent.rmdir()
