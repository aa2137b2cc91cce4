"""Rows over HTTP into a log: an answer means durable."""

from __future__ import annotations

import support.installed  # noqa: F401

# isort: split
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from sparkwal import Appender
from sparkwal.errors import SparkWalError
from support.json_rows import parse_schema
from support.session import Failed, Refused, as_exit, log_head, takes_log_options

try:
    from support.http_service import Bounds, Server, serve
except ModuleNotFoundError as error:
    if error.name is None or error.name.startswith(("support", "sparkwal")):
        raise
    raise SystemExit(
        f"{error.name} is not installed; this job needs the extra `http`: "
        "pip install 'sparkwal[http,jobs]', or in a clone: pip install '.[http,jobs]'"
    ) from None

if TYPE_CHECKING:
    import pyarrow as pa

console = Console(stderr=True)

EPILOG = """
\b
POST /append   Content-Type: application/x-ndjson (JSON lines, also as application/jsonl or
               application/json), or application/vnd.apache.arrow.stream (an Arrow IPC stream)
  200  {"position": …, "sequence": …, "rows": …}: all of its rows are durable
  400  the rows do not fit the schema; nothing was written
  413  the body is larger than --max-body, or its rows than --max-rows-bytes
  415  another Content-Type, Content-Encoding or charset; nothing was read
  429  more is coming in than --max-pending, or waiting than --log-option maxBufferedBytes;
       see Retry-After
  503  the writer has stopped: another one leads, or the store is gone. "outcome" tells
       whether these rows may have been written; restart this process
GET /metrics   for Prometheus
GET /healthz   200 while rows are accepted

\b
Exit codes:
    0  stopped by SIGTERM or SIGINT, everything accepted is durable
    1  the writer has stopped; the message says why
    2  wrong usage: an option, a path, a schema. Nothing was written
"""  # noqa: E501


@click.command(epilog=EPILOG)
@click.option("--log", required=True, help="s3://bucket/prefix, file:///folder or a folder.")
@click.option(
    "--schema", "schema_text",
    help="`id long, name string, at timestamp`, Spark's schema JSON, or @FILE with one of them. "
    "Not needed where the log exists.",
)  # fmt: skip
@click.option(
    "--producer-id", default=socket.gethostname, show_default="the host's name",
    help="Names this writer over restarts.",
)  # fmt: skip
@takes_log_options("appender", "batchTimeoutMs=5")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True,
              help="0 picks a free one and prints it.")  # fmt: skip
@click.option("--max-body", type=click.IntRange(1), default=16 * 2**20, show_default=True,
              help="Bytes of one request.")  # fmt: skip
@click.option("--max-rows-bytes", type=click.IntRange(1), default=64 * 2**20, show_default=True,
              help="Bytes of its rows as Arrow, without compression.")  # fmt: skip
@click.option("--max-pending", type=click.IntRange(1), default=64 * 2**20, show_default=True,
              help="Bytes of all requests that are being received and parsed.")  # fmt: skip
@click.option(
    "--drain-timeout", type=click.FloatRange(1), default=60.0, show_default=True,
    help="Seconds that a signal waits for requests under way.",
)  # fmt: skip
def main(
    log: str,
    schema_text: str | None,
    producer_id: str,
    given: dict[str, Any],
    host: str,
    port: int,
    max_body: int,
    max_rows_bytes: int,
    max_pending: int,
    drain_timeout: float,
) -> None:
    """Take rows over HTTP and append them to a log.

    One process leads one log; several logs or sequencers take one process each. A client
    without an answer cannot know whether its rows are there: use an appender in the
    client where rows must be written exactly once.

    \b
    python jobs/http_ingest.py --log s3://bucket/wal --schema 'id long, name string'
    """
    if max_pending < max_body:
        raise Refused("--max-pending is below --max-body: no body of that size would get in")
    try:
        # First: taking the log over only to find the port taken would fence another for nothing.
        listener = socket.create_server((host, port), backlog=512)
    except OSError as error:
        raise Refused(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    with listener:
        try:
            arrow_schema = _schema(log, schema_text, given)
            wal = Appender(log, arrow_schema, producer_id=producer_id, **given)
        except (SparkWalError, OSError) as error:
            raise as_exit(error) from None
        bounds = Bounds(max_body, max_rows_bytes, max_pending)
        try:
            serve(Server(wal, arrow_schema, bounds), listener, drain_timeout, console)
        finally:
            try:
                wal.close()
            except SparkWalError as error:
                raise as_exit(error) from None
    if wal.error is not None:
        raise Failed(str(wal.error))
    console.print(f"stopped; sequence {wal.last_sequence} is durable", highlight=False)


def _schema(log: str, text: str | None, options: dict[str, str]) -> pa.Schema:
    # Also where the columns are given: a bucket that is missing is told before it is written to.
    head = log_head(log, options)
    if text is not None:
        if text.startswith("@"):
            try:
                text = Path(text[1:]).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise Refused(f"--schema {text}: {error}") from None
        return parse_schema(text)
    if head is None:
        raise Refused(f"there is no log at {log} yet: give its columns with --schema")
    return head.schema


if __name__ == "__main__":
    main()
