"""`sparkwal show` and `verify`: whether what is there is sound."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import click
from rich.text import Text

from sparkwal.cli.open_logs import Damage, head_of, log_at, logs_at, no_log, progress
from sparkwal.console.exit_codes import Failed
from sparkwal.console.options import as_json, takes_log, takes_logs
from sparkwal.console.output import facts, moment, print_json, shown, size
from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.format.header import NOWHERE, Batch, Checkpoint, CommitHeader, Inline, to_json
from sparkwal.protocol.recovery import last_live
from sparkwal.protocol.slots import SlotRecord
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.verification import Report, check_commit, verify_store, whole_record


@dataclass
class _Shown:
    """What is at one position; `why` is its state for people."""

    position: int
    key: str
    state: str
    why: str = ""
    record: SlotRecord | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return self.record is not None and not self.problems


@click.command("show")
@takes_log
@click.argument("position", type=click.IntRange(0), required=False)
@as_json
def show(path: str, given: dict[str, str], position: int | None, as_json: bool) -> None:
    """Without POSITION the newest one.

    Requests: for head and floor as sparkwal log; 1 GET for the record and 1 for each of its
    objects; where a former leader wrote it, as many GETs more as that had in flight.

    Exit code 1 where there is no such record, or it is not sound; a record that is dead is shown.
    """
    log = log_at(path, given, Damage())
    found = _look(log, log.gap - 1 if position is None else position)
    if as_json:
        header = json.loads(to_json(found.record.header)) if found.record else None
        print_json({
            "position": found.position, "state": found.state, "key": found.key,
            "sound": None if found.state == "collected" else found.sound,
            "problems": found.problems, "header": header,
            **({"why": found.why} if found.why else {}),
        })  # fmt: skip
        click.get_current_context().exit(0 if found.sound else 1)
    if found.record is not None:
        _show(log, found)
    if not found.sound:
        raise Failed(found.why or f"the record of position {found.position} is not sound")


def _look(log: LogRange, position: int) -> _Shown:
    head = head_of(log)
    if position > keys.last_position(log.window):
        raise click.BadParameter(f"no log has a position {position}")
    key = log.log.where(keys.slot(position, log.window))
    if position >= log.gap:
        why = f"position {position} is not written yet: the log ends at {log.gap - 1}"
        return _Shown(position, key, "beyond the head", why)
    record, damage = None, ""
    try:
        record = whole_record(log.log, position, log.window)
    except InvalidLogError as error:
        damage = str(error)
    # Asked after it was read: what is there may be a stray.
    if position < (floor := log.floor.current()):
        # Records outlive their rows for a while: look-backs need them.
        target = log.floor.state and log.floor.state.target
        where = f", they are in {target.table}" if target else ""
        why = f"position {position} is below the floor, {floor}: its rows were let go{where}"
        return _Shown(position, key, "collected", why, record)
    if damage:
        return _Shown(position, key, "damaged", damage, problems=[damage])
    if record is None:
        why = (
            f"the record of position {position} is missing, though the log goes on after it: it "
            f"was deleted from outside ({key})"
        )
        return _Shown(position, key, "missing", why, problems=[why])
    report = Report(log.log.url)
    if isinstance(record.header, CommitHeader):
        check_commit(log.log, record, report)
    live = last_live(log.log, record, tolerant=True, head=head)
    if live is not record:
        why = (
            f"dead: position {live.header.position} has term {live.header.term}, so its writer "
            "was fenced when it arrived. Nobody acknowledged it, and no reader sees it"
        )
        return _Shown(position, key, "dead", why, record, report.problems)
    return _Shown(position, key, "live", "", record, report.problems)


def _show(log: LogRange, found: _Shown) -> None:
    assert found.record is not None
    header = found.record.header
    verdict = Text("every byte is as it was written", "green")
    if found.problems:
        verdict = Text("\n".join(found.problems), "red")
    elif found.state == "collected":
        verdict = Text("not checked: its rows may be gone")
    state = header.kind if found.state == "live" else f"{header.kind}, {found.state}"
    rows: dict[str, str | Text] = {
        "position": Text.assemble((str(header.position), "bold"), f"  {state}"),
        "object": found.key,
        "time": moment(header.timestamp_ms),
        "leader": f"{header.leader_id}, term {header.term}",
        "plan": f"{header.plan_id}, {header.in_flight_limit} in flight at most",
        "log": header.log_id,
        "decided": f"all before {header.decided + 1}" if header.decided >= 0 else "nothing known",
    }  # fmt: skip
    if found.why:
        rows["state"] = Text(found.why, "yellow")
    if isinstance(header, CommitHeader):
        rows |= {
            "query": header.query_id if header.query == header.query_id
                     else f"{header.query}, {header.query_id}",
            "batch": str(header.batch_id),
            "rows": f"{header.rows:,} in {size(header.bytes)}",
        }  # fmt: skip
        if header.metrics:
            metrics = (f"{name} {value:g}" for name, value in header.metrics.items())
            rows["metrics"] = ", ".join(metrics)
    else:
        rows |= {
            "host": header.host, "reason": header.reason,
            "before it": f"the head was {header.prev_position}",
        }  # fmt: skip
    archive = f", older ones in txns/{header.txns_archive}" if header.txns_archive else ""
    rows["txns"] = f"the last of {len(header.txns):,} queries or producers{archive}"
    rows["checked"] = verdict
    facts(rows)
    if isinstance(header, CommitHeader):
        _print_rows(log, header)
    if header.checkpoints:
        shown("checkpoints", ["query", ">position", ">bytes", ">files", ""],
              [_checkpoint(query, each) for query, each in header.checkpoints.items()])  # fmt: skip


def _print_rows(log: LogRange, header: CommitHeader) -> None:
    parts: list[tuple[Batch | Inline, int, str]] = [
        *((each, len(each.frames), log.log.key(each.number)) for each in header.batches),
        *((each, each.record_batches, "in the record") for each in header.inline),
    ]
    parts.sort(key=lambda part: part[0].partition)
    if parts:
        shown(None, [">partition", ">rows", ">bytes", ">frames", "CRC-32", "where"], [
            [str(each.partition), f"{each.rows:,}", size(each.bytes), str(frames),
             f"{each.crc32:08x}", where]
            for each, frames, where in parts
        ])  # fmt: skip


def _checkpoint(query: str, each: Checkpoint) -> list[str]:
    lost = sum(where == NOWHERE for where, _ in each.files.values())
    note = each.reason or (f"{lost} files too large" if lost else "")
    return [each.name or query, str(each.position), size(each.bytes), str(len(each.files)), note]


@click.command("verify")
@takes_logs
@as_json
def verify(path: str, given: dict[str, str], as_json: bool) -> None:
    """As many GETs as there are objects, and 1 LIST for a thousand. Exit code 1 where a log is not
    sound.
    """
    sound = True
    for log in logs_at(path, given):
        with progress("verify") as done:
            report = verify_store(log.log, log.log.url, done=done)
        if report.ok and report.head < 0:
            # A path with a typo must not pass for a sound log.
            raise no_log(log.log.url)
        sound = sound and report.ok
        if as_json:
            print_json({**vars(report), "sequencer": log.name, "sound": report.ok})
        else:
            _print_report(report)
    click.get_current_context().exit(0 if sound else 1)


def _print_report(report: Report) -> None:
    rows: dict[str, str | Text] = {
        "log": report.path,
        "positions": f"{report.floor}…{report.head}" if report.head >= report.floor else "none",
        "records": f"{report.commits:,} commits, {report.leaders:,} leader records, "
                   f"{report.dead:,} dead",
        "rows": f"{report.rows:,} in {size(report.bytes)}",
        "orphans": f"{len(report.orphans):,} objects that no record names; they harm nothing",
        "under way": f"{len(report.under_way):,} objects after the head",
        "verdict": Text("sound", "bold green"),
    }  # fmt: skip
    if not report.ok:
        rows["verdict"] = Text("\n".join(["not sound", *report.problems]), "red")
    facts(rows)
