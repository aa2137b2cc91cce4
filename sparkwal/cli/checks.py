"""`sparkwal show`, `verify` and `erased`: check one record, or every byte of a log."""

import json
import sys
from dataclasses import dataclass, field
from typing import Any

import click
from rich.text import Text

from sparkwal.cli.exit_codes import Failed, advice
from sparkwal.cli.flags import as_json, takes_log, takes_logs
from sparkwal.cli.open_logs import Damage, head_of, log_at, logs_at, no_log, progress
from sparkwal.cli.output import facts, moment, out, print_json, table
from sparkwal.errors import InvalidLogError, escape
from sparkwal.format import keys
from sparkwal.format.finding import Value
from sparkwal.format.header import CommitHeader, to_json
from sparkwal.lifecycle.collecting.finding import FOUND, Search, find
from sparkwal.options.open import open_log
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.liveness import last_live, passed_by
from sparkwal.protocol.slots import SlotRecord, TornRecord
from sparkwal.protocol.view import LENIENT
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.verification import Report, check_commit, verify_store
from sparkwal.reading.whole_records import CutFooter, whole_record


@click.command("show")
@takes_log
@click.argument("position", type=click.IntRange(0), required=False)
@as_json
def show(path: str, log_options: dict[str, str], position: int | None, *, as_json: bool) -> None:
    """Without POSITION, show the newest record. Dead records are shown too.

    Requests: for head and floor as sparkwal log; 1 GET for the record and 1 for each of its
    objects; for a record of a former leader also as many GETs as that leader had in flight.

    Exit code 1: the record does not exist or is damaged.
    """
    log = log_at(path, log_options, Damage())
    position = log.gap - 1 if position is None else position
    if position > keys.last_position(log.window):
        raise click.BadParameter(f"no log has a position {position}")
    checked = _check_record(log, position)
    key = log.log.locate(keys.slot(position, log.window))
    header = json.loads(to_json(checked.record.header)) if checked.record else None
    if as_json:
        print_json(
            {
                "position": position,
                "state": checked.state,
                "key": key,
                "sound": None if checked.state == "collected" else checked.sound,
                "problems": checked.problems,
                "header": header,
                **({"why": checked.why} if checked.why else {}),
            }
        )
        click.get_current_context().exit(0 if checked.sound else 1)
    if checked.record is not None:
        verdict = Text("every byte is intact", "green")
        if checked.problems:
            verdict = Text("\n".join(map(escape, checked.problems)), "red")
        elif checked.state == "collected":
            verdict = Text("not checked: its rows may be deleted")
        about = {
            "object": key,
            "state": f"{checked.record.header.kind}, {checked.state}",
            "why": checked.why,
            "time": moment(checked.record.header.timestamp_ms),
        }
        _print_record({name: value for name, value in about.items() if value}, header, verdict)
    if not checked.sound:
        what = checked.why or f"the record of position {position} is damaged"
        raise Failed(f"{escape(what)}\n{advice(checked.problems)}".strip())


@dataclass(frozen=True)
class _CheckedRecord:
    """The record of a position, and the result of its check.

    Attributes:
        state: live, dead, missing, damaged, collected or beyond the head.
        why: the reason for a state other than live.
        record: the record, or None if it is missing or damaged.
        problems: one line for each fault of the record or its objects.
    """

    state: str
    why: str = ""
    record: SlotRecord | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return self.record is not None and not self.problems


def _check_record(log: LogRange, position: int) -> _CheckedRecord:
    if position >= log.gap:
        why = f"position {position} is not written yet: the log ends at {log.gap - 1}"
        return _CheckedRecord("beyond the head", why)
    record = None
    damage = ""
    leader = None
    try:
        record = whole_record(log.log, position, log.window)
    except TornRecord as torn:
        damage = str(torn)
        leader = _passed_by(log, torn)
    except CutFooter as cut:
        record = cut.record
    except InvalidLogError as error:
        damage = str(error)
    # Read the floor after the record. If collection deleted the record meanwhile, that is no
    # damage, and below the floor a late PUT of a fenced writer may have filled the slot again.
    if position < (floor := log.floor.current()):
        # Collection keeps a record longer than its rows: takeovers read back over it.
        table = log.floor.state.table if log.floor.state else ""
        in_table = f" after {table} received them" if table else ""
        why = f"position {position} is below the floor, {floor}: its rows were released{in_table}"
        return _CheckedRecord("collected", why, record)
    if leader is not None:
        why = (
            f"torn: the store has a part of the record of position {position}. It was not "
            f"acknowledged, and position {leader.header.position} continues the log"
        )
        return _CheckedRecord("torn", why)
    if damage:
        return _CheckedRecord("damaged", damage, problems=[damage])
    if record is None:
        why = (
            f"the record of position {position} is missing, and the log continues after it: it "
            f"was deleted from outside ({log.log.locate(keys.slot(position, log.window))})"
        )
        return _CheckedRecord("missing", why, problems=[why])
    report = Report(log.log.url)
    if isinstance(record.header, CommitHeader):
        check_commit(log.log, record, report)
    view = head_of(log).view(log.log, LENIENT)
    live = last_live(view, record)
    if live is not record and live.header.term <= record.header.term:
        why = (
            "dead: a torn record lies before it, so it was never acknowledged, and readers skip it"
        )
        return _CheckedRecord("dead", why, record, report.problems)
    if live is not record:
        why = (
            f"dead: position {live.header.position} has term {live.header.term}, so the writer of "
            "this record was fenced when it arrived. It was never acknowledged, and readers skip it"
        )
        return _CheckedRecord("dead", why, record, report.problems)
    return _CheckedRecord("live", "", record, report.problems)


def _passed_by(log: LogRange, torn: TornRecord) -> SlotRecord | None:
    try:
        return passed_by(log.view, torn)
    except InvalidLogError:
        return None


def _print_record(about: dict[str, str], header: Any, verdict: Text) -> None:
    tables = {name: header.pop(name, {}) for name in ("batches", "inline", "checkpoints")}
    txns = f"the last of {len(header.pop('txns')):,} queries or producers"
    plain = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in header.items()
    }
    facts({**about, **plain, "txns": txns, "checked": verdict})
    names = ("partition", "rows", "bytes")
    if tables["batches"]:
        table(
            [
                {
                    **{name: entry[name] for name in names},
                    "frames": len(entry["frames"]),
                    "object": f"batches/{entry['number']}",
                }
                for entry in tables["batches"]
            ]
        )
    if tables["inline"]:
        rows = [{name: entry[name] for name in names} for entry in tables["inline"]]
        table(rows, "in the record")
    if tables["checkpoints"]:
        table(
            [
                {
                    "query": entry.get("name") or query,
                    "position": entry["position"],
                    "bytes": entry["bytes"],
                    "files": len(entry["files"]),
                    "note": entry["reason"],
                }
                for query, entry in tables["checkpoints"].items()
            ],
            "checkpoints",
        )


@click.command("verify")
@takes_logs
@click.option(
    "--fast",
    is_flag=True,
    help="Trust the CRC-32s of segments, and do not read the records that they copy.",
)
@as_json
def verify(path: str, log_options: dict[str, str], *, fast: bool, as_json: bool) -> None:
    """Requests: 1 GET for each object, and 1 LIST for each thousand objects; for each segment 1,004
    GET more, to compare it with its records. With --fast 4 GET for each segment, and none for its
    records. Exit code 1: a log is damaged.
    """
    sound = True
    for log in logs_at(path, log_options, read_heads=False):
        with progress("verify") as done:
            report = verify_store(log.log, log.log.url, done, fast=fast)
        if report.ok and report.head < 0:
            # A path with a typo must not look like a sound log.
            raise no_log(log.log)
        sound = sound and report.ok
        if as_json:
            print_json({**vars(report), "sequencer": log.name, "sound": report.ok})
        else:
            text = f"{report}\n{advice(report.problems)}".strip()
            out().print(Text(text), soft_wrap=True)
    click.get_current_context().exit(0 if sound else 1)


@click.command("erased")
@takes_log
@click.option(
    "--value",
    required=True,
    metavar="X",
    help="What to find: a text, a number, a UUID, or 0x and hexadecimal digits. With - the command "
    "reads it from a line of its input, so that no list of processes shows it.",
)
@as_json
def erased(path: str, log_options: dict[str, str], value: str, *, as_json: bool) -> None:
    """It reads every object of the path, of all its logs, of their tables, and of the tables beside
    these: also old versions, deletion vectors and transaction logs. It prints the objects that hold
    the value and what ends them, and never the value. An object that it cannot read may hold the
    value. Versions that a bucket keeps, and backups, are not searched.

    \b
    sparkwal erased s3://bucket/wal --value -

    Requests: 1 GET for each object, however large, and 1 LIST for each thousand; up to 3 for each
    manifest of an Iceberg table. Exit code 1: an object holds the value, or may hold it.
    """
    value = sys.stdin.readline().rstrip("\r\n") if value == "-" else value
    if not value:
        raise click.BadParameter("the value is empty")
    settings = parse(SourceOptions, {**log_options, "path": path})
    with progress("erased") as done:
        search = Search(Value.of(value), done)
        find(open_log(settings, fail_fast=True), settings, search)
    if not search.objects:
        raise no_log(open_log(settings))
    for copy in search.copies if as_json else ():
        print_json(vars(copy))
    if search.copies and not as_json:
        table([vars(copy) for copy in search.copies])
    if not as_json:
        left = sum(copy.found == FOUND for copy in search.copies)
        unread = len(search.copies) - left
        click.echo(f"{search.objects:,} objects; {left} hold the value, {unread} may hold it")
    click.get_current_context().exit(1 if search.copies else 0)
