"""Receives rows over HTTP and appends them to a log."""

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
from sparkwal.errors import OptionError, SparkWalError, StoreUnavailableError
from support.json_rows import parse_schema
from support.session import exit_for, open_log_at

try:
    from support.http_access import Access, access
    from support.http_protocol import Listener, places
    from support.http_service import Limits, Server, Tls, serve
except ModuleNotFoundError as error:
    if error.name is None or error.name.startswith(("support", "sparkwal")):
        raise
    raise SystemExit(
        f"{error.name} is not installed; this job needs the extra `http`: "
        "pip install '.[http,cli]' in a clone of sparkwal"
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
  200  {"position": …, "sequence": …, "rows": …}: all rows are durable
  202  with --journal: {"sequence": …, "rows": …}: all rows are on this machine's disk. This
       process, or the next one with the same --journal, writes them to the log, once
  400  the rows do not fit the schema; the server wrote none of them
  401  the bearer token is missing or wrong
  403  a web page of another origin sent the request; see --allow-origin
  408  the body did not arrive within --body-timeout
  413  the body is larger than --max-body, or its rows than --max-rows-bytes
  415  an unsupported or missing Content-Type, Content-Encoding or charset; the server did not
       read the body
  421  the Host header has a name that is not this server's; see --allow-host
  429  more bytes arrive than --max-pending, or wait than --log-option maxBufferedBytes, or the
       journal (journalMaxBytes, journalSlots) or its disk is full; see Retry-After
  503  the writer has stopped: another one leads, the store does not answer (without --journal),
       or the journal's disk failed. See "outcome": may these rows be in the log? Restart this
       process
GET /metrics   for Prometheus
GET /healthz   200 while the server accepts rows, also without a token. With it, and with
               --journal, "store" is "away" while the store does not answer, "waiting" is the
               number of appends that the log lacks, and "lost" is the first and last sequence of
               appends that were damaged on the disk

\b
With --journal this process needs the store to start; after the start, the store may fail. Accepted
appends that are damaged on the disk are reported at each start until they are sent again.

\b
Exit codes:
    0  stopped by SIGTERM or SIGINT; every accepted row is durable, or in the journal
    1  the store did not answer at the start, or the writer has stopped; see the message
    2  wrong usage: an option, a path, a schema or a journal. It wrote nothing
"""


@dataclass(frozen=True)
class Writer:
    """The flags of the appender.

    Attributes:
        schema: the text of --schema, or None.
        producer_id: the name of this writer.
        journal: the folder of the journal, or None.
    """

    schema: str | None
    producer_id: str
    journal: str | None


@dataclass(frozen=True)
class Address:
    """The address of the server, and the rules for requests to it."""

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
        help="The port; 0 picks a free port and prints it.",
    ),
    click.option(
        "--token-file",
        type=_FILE,
        help="Tokens, one a line; a request needs one as `Authorization: Bearer …`. Required "
        "unless --host is a loopback address.",
    ),
    click.option(
        "--allow-host",
        multiple=True,
        metavar="NAME",
        help="A name that Host headers may have, besides IP addresses, names without a dot, "
        "--host and the machine's name; repeatable.",
    ),
    click.option(
        "--allow-origin",
        multiple=True,
        metavar="ORIGIN",
        help="An origin whose web pages may send rows, for example https://app.example; "
        "repeatable.",
    ),
    click.option(
        "--tls-certificate", type=_FILE, help="A PEM file: the certificate and its chain."
    ),
    click.option("--tls-key", type=_FILE, help="A PEM file: the private key."),
)


def _limits(
    max_body: int,
    max_rows_bytes: int,
    max_pending: int,
    body_timeout: float,
    max_connections: int,
) -> dict[str, Limits]:
    if max_pending < max_body:
        raise Refused("--max-pending is below --max-body, so a body of that size never fits")
    limits = Limits(max_body, max_rows_bytes, max_pending, body_timeout, places(max_connections))
    return {"limits": limits}


_takes_limits = options(
    _limits,
    click.option(
        "--max-body",
        type=click.IntRange(1),
        default=16 * 2**20,
        show_default=True,
        help="The most bytes of one request.",
    ),
    click.option(
        "--max-rows-bytes",
        type=click.IntRange(1),
        default=64 * 2**20,
        show_default=True,
        help="The most bytes of its rows as Arrow, without compression.",
    ),
    click.option(
        "--max-pending",
        type=click.IntRange(1),
        default=64 * 2**20,
        show_default=True,
        help="The most bytes of all requests that the server receives or parses.",
    ),
    click.option(
        "--body-timeout",
        type=click.FloatRange(0.1),
        default=30.0,
        show_default=True,
        help="Seconds in which a body must arrive.",
    ),
    click.option(
        "--max-connections",
        type=click.IntRange(1),
        default=1000,
        show_default=True,
        help="The most connections, and at most half of the files that this process may open "
        "(ulimit -n). Beyond, the oldest connection ends on which no request was accepted.",
    ),
)
_takes_writer = options(
    lambda schema_text, producer_id, journal: {"writer": Writer(schema_text, producer_id, journal)},
    click.option(
        "--schema",
        "schema_text",
        help="`id long, name string, at timestamp`, Spark's schema JSON, or @FILE with one of "
        "them. Not needed if the log exists.",
    ),
    click.option(
        "--producer-id",
        default=socket.gethostname,
        show_default="the host's name",
        help="The name of this writer, the same after a restart.",
    ),
    click.option(
        "--journal",
        metavar="DIR",
        help="A folder on a local disk, for this process only: the server answers once the rows "
        "are there, also while the store does not answer. The folder must outlive a container; "
        "--producer-id must stay the same.",
    ),
)


@click.command(epilog=EPILOG)
@click.option("--log", required=True, help="s3://bucket/prefix, file:///folder or a folder.")
@_takes_writer
@takes_log_options("appender", "batchTimeoutMs=5")
@_takes_address
@_takes_limits
@click.option(
    "--drain-timeout",
    type=click.FloatRange(1),
    default=60.0,
    show_default=True,
    help="Seconds for which a signal waits for running requests, and then again for the log to "
    "take the appends of the journal; the other appends stay in the journal.",
)
def main(
    log: str,
    writer: Writer,
    log_options: dict[str, Any],
    address: Address,
    limits: Limits,
    drain_timeout: float,
) -> None:
    """Receive rows over HTTP and append them to a log.

    One process leads one log; run a process for each log or sequencer. A client without a response
    does not know whether its rows are in the log: if rows must be written exactly once, use an
    appender in the client.

    \b
    python jobs/http_ingest.py --log s3://bucket/wal --schema 'id long, name string'
    """
    if writer.journal is not None:
        log_options = {**log_options, "journal": writer.journal}
    try:
        # Before the takeover: if the port is in use, the present writer must not be fenced.
        listener = Listener(socket.create_server((address.host, address.port)), limits.connections)
    except OSError as error:
        raise Refused(
            f"cannot listen on {address.host}:{address.port}: {error.strerror or error}"
        ) from None
    with listener:
        try:
            arrow_schema = _schema(log, writer.schema, log_options)
            wal = Appender(log, arrow_schema, producer_id=writer.producer_id, **log_options)
        except (SparkWalError, OSError) as error:
            failed = exit_for(error)
            if writer.journal is not None and isinstance(error, StoreUnavailableError):
                raise Failed(
                    f"{failed.message}. Accepted rows stay in the journal {writer.journal}: start "
                    "again once the store answers"
                ) from None
            raise failed from None
        if lost := wal.lost:
            damaged = f"{len(lost)} appends, sequences {lost[0]}…{lost[-1]},"
            if any(incident.unknown for incident in wal.incidents()):
                damaged = f"An unknown number of appends, from sequence {lost[0]} on,"
            console.print(
                f"[bold]{damaged} were answered with 202 and are damaged in the journal: send "
                "their rows again, in this order. Their remains are in its quarantine/",
                highlight=False,
            )
        server = Server(wal, arrow_schema, limits, address.access, listener)
        try:
            serve(server, listener, drain_timeout, console, address.tls)
        finally:
            stopped = wal.error
            try:
                wal.close(drain_timeout if wal.has_journal else None)
            except TimeoutError:
                pass  # the journal keeps the appends
            except SparkWalError as error:
                raise exit_for(error) from None
    if not wal.has_journal:
        stopped = wal.error
    if stopped is not None:
        raise Failed(str(stopped))
    waiting = wal.unacknowledged
    durable = wal.last_sequence - waiting
    console.print(
        ("stopped; " + (f"sequence {durable} is durable" if durable >= 0 else "nothing is durable"))
        + (f", {waiting} after it in the journal for the next start" if waiting else ""),
        highlight=False,
    )


def _schema(log: str, text: str | None, options: dict[str, str]) -> pa.Schema:
    # Read the head also with --schema: this reports a missing bucket before the first write.
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
