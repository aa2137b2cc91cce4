"""An S3 server on this machine, behind a proxy that counts, delays and breaks requests."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparkwal.testing.proxy import S3Proxy
from sparkwal.testing.servers import ACCESS_KEY, REGION, SECRET_KEY, make_bucket, start_ministack


@contextmanager
def counted_store(latency_ms: float) -> Iterator[tuple[str, S3Proxy]]:
    """The server's URL, and the proxy through which this process and its children reach it."""
    # The notebook shows the events that matter.
    logging.getLogger("sparkwal").addHandler(logging.NullHandler())
    jobs, conf = (str(Path("..", name).resolve()) for name in ("jobs", "conf"))
    with start_ministack() as server, S3Proxy(server.url, latency_ms=latency_ms) as proxy:
        make_bucket(server.url, "bucket")
        os.environ |= {
            "AWS_ENDPOINT_URL": proxy.url,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_CONF_DIR": conf,
            "PYTHONPATH": os.pathsep.join([jobs, os.environ.get("PYTHONPATH", "")]),
        }
        yield server.url, proxy
