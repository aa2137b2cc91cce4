"""kill -9 of a real process that appends over HTTP, replies being lost all the while."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from sparkwal import Appender, Log, verify
from sparkwal.testing.proxy import Fault, S3Proxy
from tests.logs import SCHEMA, rows

ROWS = 400

CHILD = Path(__file__).with_name("reporting_writer.py")


def test_resending_from_the_last_sequence_is_exactly_once(
    s3_proxy: S3Proxy, s3_path: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    path, options = s3_path
    s3_proxy.faults = [
        Fault("lost_reply", kind="PUT", key_contains="batches/", probability=0.1),
        Fault("error", kind="PUT", key_contains="batches/", probability=0.1, status=503),
        Fault("delay", kind="PUT", key_contains="batches/", probability=0.2, seconds=0.05),
    ]
    acknowledged = -1
    for run in range(4):
        # Each life has a share of the rows, and the first three cannot end by themselves.
        share, hold = ROWS * (run + 1) // 4, "hold" if run < 3 else "end"
        child = subprocess.Popen(
            [sys.executable, CHILD, path, s3_proxy.url, str(share), hold],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        for reported, line in enumerate(child.stdout, 1):
            acknowledged = max(acknowledged, int(line))
            # In the middle of its work, except in the last round.
            if run < 3 and reported == 3 + run:
                child.send_signal(signal.SIGKILL)
        assert child.wait() == (0 if run == 3 else -signal.SIGKILL)
        # Every acknowledged row is in the log.
        assert (Log(path, **options).to_pandas()["v"] >= 0).sum() >= acknowledged + 1
    assert list(Log(path, **options).to_pandas()["v"]) == list(range(ROWS))
    report = verify(path, **options)
    assert report.ok, str(report)
    assert s3_proxy.injected["lost_reply"] > 0
    with Appender(path, SCHEMA, producer_id="child", **options) as wal:
        assert wal.last_sequence == ROWS - 1
        wal.append(rows(ROWS)).result()
