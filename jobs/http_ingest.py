"""Takes rows over HTTP into a log. An answer means that they are durable or on this disk."""

from __future__ import annotations

import support.installed  # noqa: F401

# isort: split
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from sparkwal import Appender
from sparkwal.cli.exit_codes import Failed, Refused
from sparkwal.cli.flags import options, takes_log_options
from sparkwal.cli.output import escape
from sparkwal.errors import OptionError, SparkWalError, StoreUnavailableError
from support.json_rows import parse_schema
from support.session import as_exit, open_log_at

try:
    from support.http_access import Access, access
    from support.http_service import Limits, Server, Tls, serve
except ModuleNotFoundError as error:
    if error.name is None or error.name.startswith(("support", "sparkwal")):
        raise
    raise SystemExit(
        f"{error.name} is not installed; this job needs the extra `http`: "
        "pip install 'sparkwal[http,cli]', or in a clone: pip install '.[http,cli]'"
    ) from None

if TYPE_CHECKING:
    import pyarrow as pa

console = Console(stderr=True)

EPILOG = """
\b
POST /append   Content-Type: application/x-ndjson (JSON lines, also as application/jsonl or
               application/json; or one JSON array of objects), or
               application/vnd.apache.arrow.stream (an Arrow IPC stream). With --token-file also
               Authorization: Bearer TOKEN
  200  {"position": …, "sequence": …, "rows": …}: all of its rows are durable
  202  with --journal: {"sequence": …, "rows": …}: all of its rows are on this machine's disk,
       and will be in the log once, sent by this process or the next with the same --journal
  400  the rows do not fit the schema; nothing was written
  401  the bearer token is missing or wrong
  403  a web page of another origin sent it; see --allow-origin
  408  the body did not arrive within --body-timeout
  413  the body is larger than --max-body, or its rows than --max-rows-bytes
  415  no Content-Type or another one, or another Content-Encoding or charset; nothing was read
  421  the Host header has a name that is not this server's; see --allow-host
  429  more is coming in than --max-pending, or waiting than --log-option maxBufferedBytes, or
       the journal (journalMaxBytes, journalSlots) or its disk is full; see Retry-After
  503  the writer has stopped: another one leads, the store is gone (without --journal), or the
       journal's disk failed. "outcome" says whether these rows may have been written; restart
       this process
GET /metrics   for Prometheus
GET /healthz   200 while rows are accepted; with --journal "store" is "away" while the store does
               not answer, "waiting" is how many appends the log lacks, and "lost" the first and
               last sequence of what was damaged on the disk

\b
With --journal this process needs the store to start; once it listens the store may be away. What
was accepted and is damaged on the disk is reported at each start until it was sent again.

\b
Exit codes:
    0  stopped by SIGTERM or SIGINT; everything accepted is durable, or in the journal
    1  the store was not there at the start, or the writer has stopped; the message says why
    2  wrong usage: an option, a path, a schema, a journal. Nothing was written
"""


@dataclass(frozen=True)
class Address:
    """Where the job listens, and who may send requests there."""

    host: str
    port: int
    access: Access
    tls: Tls | None


def _address(
    host: str,
    port: int,
    allowed: tuple[tuple[str, ...], tuple[str, ...]],
    token_file: Path | None,
    certificate: Path | None,
    key: Path | None,
) -> dict[str, Address]:
    if (certificate is None) != (key is None):
        raise Refused("--tls-certificate and --tls-key: give both of them")
    tls = None if certificate is None or key is None else Tls(certificate, key)
    try:
        if tls is not None:
            tls.check()
        rules = access(host, *allowed, token_file)
    except OptionError as error:
        raise Refused(str(error)) from None
    return {"address": Address(host, port, rules, tls)}


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_takes_address = options(
    lambda host, port, allow_host, allow_origin, token_file, tls_certificate, tls_key: _address(
        host, port, (allow_host, allow_origin), token_file, tls_certificate, tls_key
    ),
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=8080,
        show_default=True,
        help="0 picks a free one and prints it.",
    ),
    click.option(
        "--token-file",
        type=_FILE,
        help="Tokens, one a line; a request needs one as `Authorization: Bearer …`. Required "
        "unless --host is of loopback.",
    ),
    click.option(
        "--allow-host",
        multiple=True,
        metavar="NAME",
        help="A name of this server in Host headers, besides IP addresses, names without a "
        "dot, --host and the machine's name; repeatable.",
    ),
    click.option(
        "--allow-origin",
        multiple=True,
        metavar="ORIGIN",
        help="An origin whose web pages may send rows, for example https://app.example; "
        "repeatable.",
    ),
    click.option("--tls-certificate", type=_FILE, help="PEM: the certificate and its chain."),
    click.option("--tls-key", type=_FILE, help="PEM: its private key."),
)


def _limits(
    max_body: int, max_rows_bytes: int, max_pending: int, body_timeout: float
) -> dict[str, Limits]:
    if max_pending < max_body:
        raise Refused("--max-pending is below --max-body: no body of that size would get in")
    return {"limits": Limits(max_body, max_rows_bytes, max_pending, body_timeout)}


_takes_limits = options(
    _limits,
    click.option(
        "--max-body",
        type=click.IntRange(1),
        default=16 * 2**20,
        show_default=True,
        help="Bytes of one request.",
    ),
    click.option(
        "--max-rows-bytes",
        type=click.IntRange(1),
        default=64 * 2**20,
        show_default=True,
        help="Bytes of its rows as Arrow, without compression.",
    ),
    click.option(
        "--max-pending",
        type=click.IntRange(1),
        default=64 * 2**20,
        show_default=True,
        help="Bytes of all requests that are being received and parsed.",
    ),
    click.option(
        "--body-timeout",
        type=click.FloatRange(0.1),
        default=30.0,
        show_default=True,
        help="Seconds in which a body must arrive.",
    ),
)


@click.command(epilog=EPILOG)
@click.option("--log", required=True, help="s3://bucket/prefix, file:///folder or a folder.")
@click.option(
    "--schema",
    "schema_text",
    help="`id long, name string, at timestamp`, Spark's schema JSON, or @FILE with one of them. "
    "Not needed where the log exists.",
)
@click.option(
    "--producer-id",
    default=socket.gethostname,
    show_default="the host's name",
    help="Names this writer over restarts.",
)
@click.option(
    "--journal",
    metavar="DIR",
    help="A folder on a local disk, of this process alone: rows are answered once they are there, "
    "also while the store is away. It must outlive a container; --producer-id must stay the same.",
)
@takes_log_options("appender", "batchTimeoutMs=5")
@_takes_address
@_takes_limits
@click.option(
    "--drain-timeout",
    type=click.FloatRange(1),
    default=60.0,
    show_default=True,
    help="Seconds that a signal waits for requests under way, and then as long for the log to take "
    "what the journal has; the rest stays there.",
)
def main(
    log: str,
    schema_text: str | None,
    producer_id: str,
    journal: str | None,
    log_options: dict[str, Any],
    address: Address,
    limits: Limits,
    drain_timeout: float,
) -> None:
    """Take rows over HTTP and append them to a log.

    One process leads one log; several logs or sequencers take one process each. A client
    without an answer cannot know whether its rows are there: use an appender in the
    client where rows must be written exactly once.

    \b
    python jobs/http_ingest.py --log s3://bucket/wal --schema 'id long, name string'
    """
    if journal is not None:
        log_options = {**log_options, "journal": journal}
    try:
        # First: a takeover, only to find the port taken, would fence a writer for nothing.
        listener = socket.create_server((address.host, address.port), backlog=512)
    except OSError as error:
        raise Refused(
            f"cannot listen on {address.host}:{address.port}: {error.strerror or error}"
        ) from None
    with listener:
        try:
            arrow_schema = _schema(log, schema_text, log_options)
            wal = Appender(log, arrow_schema, producer_id=producer_id, **log_options)
        except (SparkWalError, OSError) as error:
            failed = as_exit(error)
            if journal is not None and isinstance(error, StoreUnavailableError):
                raise Failed(
                    f"{failed.message}. What was accepted stays in the journal {journal}: start "
                    "again once the store answers"
                ) from None
            raise failed from None
        if lost := wal.lost:
            named = f"{len(lost)} appends, sequences {lost[0]}…{lost[-1]},"
            if any(incident.unknown for incident in wal.incidents()):
                named = f"An unknown number of appends, from sequence {lost[0]} on,"
            console.print(
                f"[bold]{named} were answered with 202 and are damaged in the journal: send their "
                "rows again, in this order. What is left of them is in its quarantine/",
                highlight=False,
            )
        server = Server(wal, arrow_schema, limits, address.access)
        try:
            serve(server, listener, drain_timeout, console, address.tls)
        finally:
            stopped = wal.error
            try:
                wal.close(drain_timeout if wal.has_journal else None)
            except TimeoutError:
                pass  # the journal keeps it
            except SparkWalError as error:
                raise as_exit(error) from None
    if not wal.has_journal:
        stopped = wal.error
    if stopped is not None:
        raise Failed(escape(str(stopped), keep="\n"))
    waiting = wal.unacknowledged
    durable = wal.last_sequence - waiting
    console.print(
        ("stopped; " + (f"sequence {durable} is durable" if durable >= 0 else "nothing is durable"))
        + (f", {waiting} after it in the journal for the next start" if waiting else ""),
        highlight=False,
    )


def _schema(log: str, text: str | None, options: dict[str, str]) -> pa.Schema:
    # Look even if the columns are given: this reports a missing bucket before the first write.
    head = open_log_at(log, options).head()
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
