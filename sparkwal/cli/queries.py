"""`sparkwal queries` and `audit`: the queries of a log, and the proof that they lost nothing."""

import dataclasses
import json
import time
from typing import Any

import click

from sparkwal.checkpoints.audit import Break, QueryAudit, audit_log, complete_until
from sparkwal.checkpoints.diff import Stretch, side_of, stretches
from sparkwal.checkpoints.fork import position_of
from sparkwal.checkpoints.queries import QueryInfo, read_queries
from sparkwal.cli.exit_codes import Failed, Refused
from sparkwal.cli.flags import EXAMPLES, as_json, moment_ms, takes_log
from sparkwal.cli.open_logs import Damage, no_log
from sparkwal.cli.output import moment, print_json, size, table
from sparkwal.errors import InvalidLogError, escape
from sparkwal.format.keys import ROOT
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.view import LENIENT
from sparkwal.reading.sequencers import all_logs

_NO_QUERY = "no query with a checkpoint wrote here"


@click.command("queries")
@takes_log
@click.option(
    "--at",
    "moment_or_position",
    metavar="POSITION|TIME",
    help=f"As they were at a position, or before a time: {EXAMPLES}.",
)
@as_json
def queries(
    path: str, log_options: dict[str, str], moment_or_position: str | None, *, as_json: bool
) -> None:
    """A fork (sparkwal.Fork) of a query may begin at each position of the column forks: from the
    floor on, those whose records carry its whole checkpoint, up to the last position. Digits are a
    position; milliseconds since 1970 are a time.

    \b
    sparkwal queries s3://bucket/wal
    sparkwal queries s3://bucket/wal --at 70412 --json

    Requests: 2 LIST and 2 GET for head and floor, and for each query 1 GET; log₂ n GETs more if
    it needs records below the floor, or an older version wrote it.
    """
    parsed = from_keywords(SourceOptions, path, log_options)
    log = open_log(parsed, fail_fast=True)
    at, before_ms = _at(moment_or_position)
    damage = Damage()
    try:
        infos = read_queries(log, at, before_ms)
    except InvalidLogError as error:
        infos = read_queries(log, at, before_ms, damage=LENIENT)
        damage.add("", error)
    if as_json:
        print_json({"path": parsed.log_path, "queries": [_document(info) for info in infos]})
    elif infos:
        rows = [_row(info) for info in infos]
        if any(info.state_bytes for info in infos):
            for row, info in zip(rows, infos, strict=True):
                row["state"] = size(info.state_bytes)
        table(rows, f"{parsed.log_path}: queries")
    else:
        click.echo(_NO_QUERY)
    damage.check("considered")


def _at(text: str | None) -> tuple[int | None, int | None]:
    """The position or the moment of --at."""
    if text is None:
        return None, None
    position = position_of(text)
    if position is not None:
        return position, None
    try:
        return None, moment_ms(text, time.time_ns() // 1_000_000)
    except ValueError as expected:
        raise Refused(f"--at {text!r}: a position; or {expected}") from None


def _document(info: QueryInfo) -> dict[str, Any]:
    fields = dataclasses.asdict(info)
    return {**fields, "timestamp": moment(fields.pop("timestamp_ms"))}


def _row(info: QueryInfo) -> dict[str, Any]:
    sources = "; ".join(f"{name}: {_text(offset)}" for name, offset in info.sources.items())
    forks = info.not_forkable or f"{info.fork_from}…{info.fork_until}"
    return {
        "query": info.name,
        "microbatch": info.batch_id,
        "position": info.position,
        "time (UTC)": moment(info.timestamp_ms),
        "rows": info.rows,
        "sources": sources,
        "forks": forks,
    }


def _text(offset: Any) -> str:
    """An offset for people."""
    if isinstance(offset, dict):
        shown = {name: part for name, part in offset.items() if not name.startswith("log_id:")}
        return " ".join(
            f"{name}[{_text(part)}]" if isinstance(part, dict) else f"{name}={part}"
            for name, part in shown.items()
        )
    return str(offset)


@click.command("audit")
@takes_log
@click.option("--query", metavar="NAME", help="Only the query of this name or id.")
@click.option(
    "--allow-empty",
    is_flag=True,
    help="A microbatch without a record wrote no row, as behind a filter: do not report it.",
)
@as_json
def audit(
    path: str, log_options: dict[str, str], query: str | None, *, allow_empty: bool, as_json: bool
) -> None:
    """The records of a streaming query name the offsets of its sources before and after each
    microbatch. The command walks them from the floor to the head, and reports each hole and
    overlap: Kafka's offsets, lists of files, positions of logs, any other offset that differs. It
    covers all logs under PATH, unless you give --sequencer. It compares rows with Kafka's offsets,
    which are equal if the query writes one row for each.

    complete_until is the event-time watermark up to which all logs are complete: the
    least of the greatest watermarks of the logs.

    \b
    sparkwal audit s3://bucket/wal
    sparkwal audit s3://bucket/wal --query orders --json

    Requests: for head and floor 2 LIST and 2 GET, and 1 GET for each position. It reads no rows
    beyond those in records.

    Exit code 1: a query is not whole, or its records carry no offsets.
    """
    parsed = from_keywords(SourceOptions, path, log_options)
    log = open_log(parsed, fail_fast=True)
    has_sequencer = "sequencer" in map(str.lower, log_options)
    names = [parsed.sequencer] if has_sequencer else all_logs(log)
    audits: list[QueryAudit] = []
    for name in names or [ROOT]:
        one = log if has_sequencer else log.sequencer(name)
        audits += audit_log(one, name, query, allow_empty=allow_empty)
    if not names:
        raise no_log(log)
    if query is not None and not audits:
        raise Failed(f"no query {escape(repr(query))} has a record at {escape(log.url)}")
    until = complete_until(audits)
    breaks = sum(len(one.breaks) for one in audits)
    if as_json:
        print_json(
            {
                "path": parsed.path,
                "whole": not breaks,
                "complete_until": moment(until) if until else None,
                "queries": [_audit_document(one) for one in audits],
            }
        )
        click.get_current_context().exit(1 if breaks else 0)
    if not audits:
        click.echo(_NO_QUERY)
        return
    table([_summary(one) for one in audits], f"{parsed.path}: audit")
    lines = [f"{one.name}: {_line(gap)}" for one in audits for gap in one.breaks]
    lines += [
        f"{one.name}: rows and Kafka's offsets differ in {one.differ} of {one.counted} "
        f"microbatches, first at positions {', '.join(map(str, one.differing))}"
        for one in audits
        if one.differ
    ]
    for line in lines:
        click.echo(escape(line))
    click.echo(f"complete until {moment(until) if until else 'unknown: no watermark'}")
    if breaks:
        has_empty = any(gap.kind == "no record" for one in audits for gap in one.breaks)
        advice = ". A microbatch without rows has no record: --allow-empty accepts that"
        raise Failed(
            f"{breaks} breaks: the input of these queries is not proven to be whole"
            f"{advice if has_empty else ''}"
        )


def _summary(one: QueryAudit) -> dict[str, Any]:
    return {
        "query": one.name,
        "sequencer": one.sequencer,
        "positions": f"{one.first}…{one.last}",
        "microbatches": one.microbatches,
        "without record": one.without_record,
        "number of rows": one.rows,
        "offsets": one.offsets if one.counted else None,
        "breaks": len(one.breaks),
    }


def _line(gap: Break) -> str:
    of = f" of source {gap.source}" if gap.source else ""
    if gap.records > 1:
        between = f"in {gap.records} records at positions {gap.position}…{gap.until}"
    elif gap.before < 0 or gap.kind == "not carried":
        between = f"at position {gap.position}"
    else:
        between = f"between positions {gap.before} and {gap.position}"
    times = f"{moment(gap.before_ms)} … " if gap.before >= 0 else ""
    text = f"{gap.kind}{of} {between} ({times}{moment(gap.timestamp_ms)})"
    if gap.kind in ("not carried", "read twice"):
        return f"{text}: {_plain(gap.actual)}"
    return f"{text}: expected {_plain(gap.expected)}, and it is {_plain(gap.actual)}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _audit_document(one: QueryAudit) -> dict[str, Any]:
    fields = dataclasses.asdict(one)
    breaks = [
        {
            **gap,
            "before_time": moment(gap.pop("before_ms")),
            "time": moment(gap.pop("timestamp_ms")),
        }
        for gap in fields.pop("breaks")
    ]
    watermark = fields.pop("watermark_ms")
    return {
        **fields,
        "complete_until": moment(watermark) if watermark else None,
        "whole": not breaks,
        "breaks": breaks,
    }


@click.command("diff")
@takes_log
@click.argument("other", metavar="LOG_B")
@click.option("--query", metavar="NAME", help="The query of PATH. The default is its only one.")
@click.option("--other-query", metavar="NAME", help="The query of LOG_B.")
@as_json
def diff(
    path: str,
    log_options: dict[str, str],
    other: str,
    query: str | None,
    other_query: str | None,
    *,
    as_json: bool,
) -> None:
    """LOG_B is the path of the other log, such as that of a fork. A stretch lies between two states
    of the sources that both queries have reached. The command compares number and content of the
    rows, in any order, up to the first stretch that differs. It prints the last pair of positions
    at which both agree: read LOG_A up to endingPosition, then LOG_B from startingPosition.

    \b
    sparkwal diff s3://bucket/wal s3://bucket/wal-v2

    Requests: for head and floor of each log 2 LIST and 2 GET, 1 GET for each position, and those
    that read the rows.

    Exit code 1: a stretch differs, or there is none.
    """
    sides = []
    for log_path, name, option in (
        (path, query, "--query"),
        (other, other_query, "--other-query"),
    ):
        parsed = from_keywords(SourceOptions, log_path, log_options)
        sides.append(side_of(open_log(parsed, fail_fast=True), name, option))
    compared: list[Stretch] = []
    for stretch in stretches(sides[0], sides[1]):
        compared.append(stretch)
        if not stretch.same:
            break
    agreed = [stretch for stretch in compared if stretch.same]
    differs = compared[-1] if compared and not compared[-1].same else None
    switch = _switch(agreed[-1]) if agreed else None
    if as_json:
        print_json(
            {
                "a": {"log": sides[0].log.url, "query": sides[0].query},
                "b": {"log": sides[1].log.url, "query": sides[1].query},
                "stretches": len(compared),
                "same": len(agreed),
                "rows": sum(stretch.rows_a for stretch in agreed),
                "switch": switch,
                "differs": dataclasses.asdict(differs) if differs else None,
            }
        )
        click.get_current_context().exit(0 if compared and not differs else 1)
    if not compared:
        raise Failed(
            "the two queries have no common stretch: they never reached the same offsets of the "
            "same sources"
        )
    rows = sum(stretch.rows_a for stretch in agreed)
    click.echo(f"{len(agreed)} stretches with {rows:,} rows are the same")
    if switch:
        click.echo(
            f"switch readers: A up to endingPosition={switch['endingPosition']}, then B from "
            f"startingPosition={switch['startingPosition']}"
        )
    if differs:
        raise Failed(escape(f"the first stretch that differs: {_difference(differs)}"))


def _switch(agreed: Stretch) -> dict[str, int]:
    """The options with which a reader goes from A to B after a stretch that is the same."""
    return {
        "endingPosition": agreed.ending_position,
        "startingPosition": agreed.starting_position,
    }


def _difference(stretch: Stretch) -> str:
    how = f"{stretch.rows_a} rows in A and {stretch.rows_b} in B"
    if stretch.rows_a == stretch.rows_b:
        how = f"{stretch.rows_a} rows in both, but not the same ones"
    return f"positions {_positions(stretch.a)} of A and {_positions(stretch.b)} of B: {how}"


def _positions(ends: tuple[int, int] | None) -> str:
    return f"{ends[0]}…{ends[1]}" if ends else "none"
