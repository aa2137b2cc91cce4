"""A new appender takes over from a busy leader at any pace, over real HTTP."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

import sparkwal
from sparkwal.errors import FencedError, OutcomeUnknownError
from sparkwal.testing.servers import log_options, make_bucket, s3_client

SCHEMA = pa.schema([("writer", pa.int64()), ("v", pa.int64())])
NEWCOMERS = 2


@contextmanager
def slow_proxy(upstream: str, latency_ms: int) -> Iterator[str]:
    """A proxy in a separate process, so that the pace is realistic."""
    command = [sys.executable, "-m", "sparkwal.testing.proxy", "--upstream", upstream]
    with subprocess.Popen(
        [*command, "--latency-ms", str(latency_ms)], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            yield process.stderr.readline().strip()
        finally:
            process.terminate()


class BusyAppender:
    """An appender whose user appends for as long as it may."""

    def __init__(self, path: str, writer: int, options: dict[str, Any]) -> None:
        self.writer = writer
        self.wal = sparkwal.Appender(
            path,
            SCHEMA,
            producer_id=f"writer-{writer}",
            maxInFlightRequests=50,
            batchSizeThreshold=1,
            maxBufferedBytes=20_000,
            **options,
        )
        self.tickets: list[sparkwal.Ticket] = []
        self.ended: Future[None] = Future()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            while True:
                row = {"writer": self.writer, "v": len(self.tickets)}
                self.tickets.append(self.wal.append([row]))
        except BaseException as error:
            self.ended.set_exception(error)

    def wait_busy(self) -> None:
        while len(self.tickets) < 100:
            assert not self.ended.done() or self.ended.result() is None
            time.sleep(0.01)
        self.tickets[99].result(60)

    def acknowledged(self) -> list[int]:
        """The sequences that were acknowledged; the others have an unknown outcome."""
        with pytest.raises(FencedError):
            self.ended.result(60)
        durable = []
        for value, ticket in enumerate(self.tickets):
            try:
                ticket.result(60)
                durable.append(value)
            except (FencedError, OutcomeUnknownError):
                pass
        return durable


def test_every_newcomer_takes_over_from_a_busy_appender(ministack_url: str) -> None:
    make_bucket(ministack_url, "busy")
    path = "s3://busy/log"
    acknowledged: dict[int, list[int]] = {}
    with slow_proxy(ministack_url, 20) as url:
        options = log_options(url)
        leads = BusyAppender(path, 0, options)
        for writer in range(1, NEWCOMERS + 1):
            leads.wait_busy()
            newcomer = BusyAppender(path, writer, options)
            acknowledged[leads.writer] = leads.acknowledged()
            leads = newcomer
        leads.wait_busy()
        with sparkwal.Appender(path, SCHEMA, producer_id="last", **options):
            acknowledged[leads.writer] = leads.acknowledged()
    client = s3_client(ministack_url)
    # The writer that asked has taken its request back.
    assert "Contents" not in client.list_objects_v2(Bucket="busy", Prefix="log/handover/")
    client.close()
    table = sparkwal.Log(path, **log_options(ministack_url)).scan().read_all()
    rows = list(zip(table["writer"].to_pylist(), table["v"].to_pylist(), strict=True))
    for writer, values in acknowledged.items():
        stored = [v for who, v in rows if who == writer]
        assert stored[: len(values)] == values == list(range(len(values)))
        # After the last one acknowledged there may be a record whose answer was late.
        assert stored == list(range(len(stored)))
    assert [who for who, _ in rows] == sorted(who for who, _ in rows)
