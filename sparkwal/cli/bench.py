"""`sparkwal bench`: how fast a log on this store is, from here: appends to a log of its own as fast
as they are acknowledged, read back, and deleted."""

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
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import click
import pyarrow as pa
from rich.console import Console

from sparkwal.appender.appender import Appender
from sparkwal.console.exit_codes import Failed, Refused
from sparkwal.console.options import as_json, takes_log
from sparkwal.console.output import facts, print_json, requests_text
from sparkwal.errors import SparkWalError
from sparkwal.events import Event, Retried
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.options.store import StoreOptions
from sparkwal.options.writing import AppenderOptions
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
    """A store that counts what is asked of it, without retries, by kinds of requests."""

    def __init__(self, store: Store) -> None:
        self._store, self._lock = store, threading.Lock()
        self.requests: Counter[str] = Counter()

    def count(self, kind: str) -> None:
        with self._lock:
            self.requests[kind] += 1

    def log(self, prefix: str) -> LogStore:
        return LogStore(cast(Store, self), prefix)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in _KINDS:
            return found

        def counted(*arguments: Any, **named: Any) -> Any:
            self.count(_KINDS[name])
            return found(*arguments, **named)

        return counted


def milliseconds(ordered: Sequence[float], share: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 3)


@dataclass
class Bench:
    """A log of its own that is written, read and deleted, and what was measured so far; latencies
    are seconds from append to acknowledgement."""

    path: str
    options: Mapping[str, str]
    row_bytes: int = 100
    rows_per_append: int = 100
    latencies: array[float] = field(default_factory=lambda: array("d"))
    retries: int = 0
    seconds: float = 0.0
    requests: Counter[str] = field(default_factory=Counter)
    read_seconds: float = 0.0
    read_requests: Counter[str] = field(default_factory=Counter)

    def summary(self) -> dict[str, Any]:
        """Times in milliseconds, sizes in MB of rows as they came in."""
        appends, ordered = len(self.latencies), sorted(self.latencies)
        rows, spent = appends * self.rows_per_append, dollars(self.requests)
        seconds, megabytes = max(self.seconds, 1e-9), rows * self.row_bytes / 1e6
        return {
            "seconds": round(self.seconds, 2), "appends": appends, "rows": rows,
            "puts_per_s": round(self.requests["PUT"] / seconds, 1),
            "appends_per_s": round(appends / seconds, 1),
            "rows_per_s": round(rows / seconds, 1), "mb_per_s": round(megabytes / seconds, 3),
            **{
                f"{name}_ms": milliseconds(ordered, share) if ordered else None
                for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
            },
            "retries": self.retries, "requests": dict(self.requests),
            "dollars_per_million_appends": round(spent / appends * 1e6, 4) if appends else None,
            "dollars_per_million_rows": round(spent / rows * 1e6, 4) if rows else None,
            "read": {
                "seconds": round(self.read_seconds, 2),
                "rows_per_s": round(rows / self.read_seconds, 1),
                "mb_per_s": round(megabytes / self.read_seconds, 3),
                "requests": dict(self.read_requests),
            },
        }  # fmt: skip

    def open(self, fail_fast: bool = False) -> LogStore:
        """As its appender does."""
        return open_log(
            from_keywords(AppenderOptions, self.path, self.options), fail_fast=fail_fast
        )

    def append(self, seconds: float, in_flight: int, tick: Callable[[float], None]) -> None:
        """`in_flight` appends wait for their acknowledgement at once; `tick` gets the seconds so
        far, now and then. Raises why the appender stopped."""
        log = self.open(fail_fast=True)
        counting = Counting(log.store)

        def heard(event: Event) -> None:
            if isinstance(event, Retried):
                self.retries += 1
                counting.count(event.operation.upper())

        given: dict[str, Any] = {**self.options, "producer_id": "bench", "on_event": heard}
        wal = Appender(counting.log(log.prefix), SCHEMA, **given)
        # Opening is no append.
        opening = counting.requests.copy()
        free = threading.Semaphore(in_flight)
        began = ticked = time.perf_counter()
        number = 0
        try:
            while (now := time.perf_counter()) - began < seconds and wal.error is None:
                if now - ticked > 0.25:
                    ticked = now
                    tick(now - began)
                if free.acquire(timeout=0.25):
                    self._append(wal, number, free)
                    number += 1
            wal.flush()
            self.seconds = time.perf_counter() - began
            self.requests = counting.requests - opening
        finally:
            with suppress(SparkWalError, TimeoutError):
                wal.close(_DRAIN_SECONDS)

    def _append(self, wal: Appender, number: int, free: threading.Semaphore) -> None:
        count, width = self.rows_per_append, self.row_bytes - _NUMBER_BYTES
        # Random: what compresses to nothing would be no measure.
        payload = pa.Array.from_buffers(
            pa.binary(width), count, [None, pa.py_buffer(os.urandom(count * width))]
        )
        numbers = pa.repeat(pa.scalar(number, pa.int64()), count)
        rows = pa.RecordBatch.from_arrays([numbers, payload.cast(pa.binary())], schema=SCHEMA)
        began = time.perf_counter()

        def acknowledged() -> None:
            if wal.error is None:
                self.latencies.append(time.perf_counter() - began)
            free.release()

        wal.append(rows).when_done(acknowledged)

    def read(self) -> None:
        """Read all of it back. Raises Failed where it is not what was acknowledged."""
        # The appender's own options are none of reading.
        names = {each.metadata["name"].lower() for each in fields(StoreOptions)}
        store = {k: v for k, v in self.options.items() if k.lower() in names}
        options = from_keywords(SourceOptions, self.path, store)
        log = open_log(options, fail_fast=True)
        counting = Counting(log.store)
        began = time.perf_counter()
        found = LogRange(options, options.sequencer, counting.log(log.prefix))
        found.look()
        rows = sum(batch.num_rows for batch in found.scan(found.start(), found.gap, SCHEMA))
        self.read_seconds = time.perf_counter() - began
        self.read_requests = counting.requests
        written = len(self.latencies) * self.rows_per_append
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
        log = self.open()
        assert "_bench-" in log.prefix
        inside = f"{log.prefix}/"
        for upload in log.store.unfinished(inside).uploads:
            log.store.discard(upload)
        while keys := [entry.key for entry in log.store.list(inside).entries]:
            log.store.delete_many(keys)


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


@click.command()
@takes_log
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True,
              help="How long it appends.")  # fmt: skip
@click.option("--row-bytes", type=click.IntRange(8, 2**20), default=100, show_default=True,
              help="Of each row; random, so that nothing compresses.")  # fmt: skip
@click.option("--rows-per-append", type=click.IntRange(1, 10**6), default=100, show_default=True,
              help="Rows of each append.")  # fmt: skip
@click.option("--in-flight", type=click.IntRange(1, 1000), default=50, show_default=True,
              help="Appends that wait for their acknowledgement at once, and PUTs.")  # fmt: skip
@click.option("--keep", is_flag=True, help="Do not delete the log at the end.")
@as_json
def command(
    path: str, given: dict[str, str], seconds: float, row_bytes: int, rows_per_append: int,
    in_flight: int, keep: bool, as_json: bool,
) -> None:  # fmt: skip
    """This command WRITES: to a new log PATH/_bench-…, which it deletes at the end, also after
    Ctrl-C. Logs that are there are not touched. The first line shows its path: delete it
    yourself where this process was killed. With --json that is a line of its own, {"path": …},
    and the figures are the last line.

    \b
    sparkwal bench s3://bucket/any --seconds 30 --rows-per-append 1000
    """
    if "sequencer" in {name.lower() for name in given}:
        raise Refused("the bench makes a log of its own: leave --sequencer out")
    if rows_per_append * row_bytes > 2**26:
        raise Refused("--rows-per-append × --row-bytes is above 64 MB: lower one of them")
    options = {"maxInFlightRequests": str(in_flight), **given}
    from_keywords(StoreOptions, path, {})
    name = f"_bench-{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:12]}"
    bench = Bench(f"{path.rstrip('/')}/{name}", options, row_bytes, rows_per_append)
    bench.open()  # raises OptionError before anything is written
    end = "it stays" if keep else "deleted at the end; after a kill delete it yourself"
    if as_json:
        print_json({"path": bench.path, "kept": keep})
    else:
        click.echo(f"writes to {bench.path} ({end})", err=True)

    def so_far(spent: float) -> None:
        appends = len(bench.latencies)
        status.update(f"{appends:,} appends, {appends / spent:,.1f} a second")

    with (
        deleted_after(bench, keep),
        Console(stderr=True, quiet=as_json).status("appending") as status,
    ):
        bench.append(seconds, in_flight, so_far)
        status.update("reading back")
        bench.read()
    if as_json:
        print_json({"path": bench.path, "kept": keep, **bench.summary()})
    else:
        facts(_rows(bench.summary()))


def _rows(summary: dict[str, Any]) -> dict[str, str]:
    rows = {
        "appends": f"{summary['appends']:,} in {summary['seconds']:.1f} s",
        "appends a second": f"{summary['appends_per_s']:,.1f}",
        "rows": f"{summary['rows_per_s']:,.0f}/s, {summary['mb_per_s']:,.2f} MB/s",
        "PUTs": f"{summary['puts_per_s']:,.1f}/s",
        "acknowledged after": " ".join(
            f"{name} {summary[f'{name}_ms']:,.1f} ms"
            for name in ("p50", "p99", "max") if summary[f"{name}_ms"] is not None
        ),
        "retries": f"{summary['retries']:,}",
        "requests": requests_text(summary["requests"]),
    }  # fmt: skip
    if summary["appends"]:
        rows["a million appends"] = f"${summary['dollars_per_million_appends']:,.2f} of requests"
        rows["a million rows"] = f"${summary['dollars_per_million_rows']:,.4f}"
    read = summary["read"]
    rows["read back"] = (
        f"{read['rows_per_s']:,.0f} rows/s, {read['mb_per_s']:,.2f} MB/s, "
        f"in {read['seconds']:.1f} s"
    )
    return rows
