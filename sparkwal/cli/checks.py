"""`sparkwal show` and `verify`: whether what is there is sound."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import click
from rich.text import Text

from sparkwal.cli.open_logs import Damage, head_of, log_at, logs_at, no_log, progress
from sparkwal.console.exit_codes import Failed
from sparkwal.console.options import as_json, takes_log, takes_logs
from sparkwal.console.output import escape, facts, moment, print_json, table
from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.format.header import CommitHeader, SlotHeader, to_json
from sparkwal.format.memory import NOWHERE, Checkpoint
from sparkwal.protocol.recovery import last_live
from sparkwal.protocol.slots import SlotRecord
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.verification import Report, check_commit, verify_store, whole_record

# Of a header, for people.
_IN_TABLES = ("kind", "batches", "inline", "txns", "checkpoints")


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
        _show(log, found, found.record.header)
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


def _show(log: LogRange, found: _Shown, header: SlotHeader) -> None:
    verdict = Text("every byte is as it was written", "green")
    if found.problems:
        verdict = Text("\n".join(found.problems), "red")
    elif found.state == "collected":
        verdict = Text("not checked: its rows may be gone")
    commit = header if isinstance(header, CommitHeader) else None
    facts({
        "object": found.key, "state": f"{header.kind}, {found.state}",
        **({"why": Text(found.why, "yellow")} if found.why else {}),
        "time": moment(header.timestamp_ms), **({"query": commit.query} if commit else {}),
        **{name: value if isinstance(value, str) else json.dumps(value)
           for name, value in json.loads(to_json(header)).items() if name not in _IN_TABLES},
        "txns": f"the last of {len(header.txns):,} queries or producers", "checked": verdict,
    })  # fmt: skip
    parts = [
        *({**vars(each), "where": log.log.key(each.number), "frames": len(each.frames)}
          for each in (commit.batches if commit else ())),
        *({**vars(each), "where": "in the record", "frames": each.record_batches}
          for each in (commit.inline if commit else ())),
    ]  # fmt: skip
    if parts:
        names = ("partition", "rows", "bytes", "frames", "where")
        table([{name: each[name] for name in names} for each in parts])
    if header.checkpoints:
        table([_checkpoint(*each) for each in header.checkpoints.items()], "checkpoints")


def _checkpoint(query: str, each: Checkpoint) -> dict[str, Any]:
    lost = sum(where == NOWHERE for where, _ in each.files.values())
    note = each.reason or (f"{lost} files too large" if lost else "")
    return {"query": each.name or query, "position": each.position, "bytes": each.bytes,
            "files": len(each.files), "note": note}  # fmt: skip


@click.command("verify")
@takes_logs
@as_json
def verify(path: str, given: dict[str, str], as_json: bool) -> None:
    """As many GETs as there are objects, and 1 LIST for a thousand. Exit code 1 where a log is not
    sound.
    """
    sound = True
    for log in logs_at(path, given, looks=False):
        with progress("verify") as done:
            report = verify_store(log.log, log.log.url, done=done)
        if report.ok and report.head < 0:
            # A path with a typo must not pass for a sound log.
            raise no_log(log.log.url)
        sound = sound and report.ok
        if as_json:
            print_json({**vars(report), "sequencer": log.name, "sound": report.ok})
        else:
            click.echo(escape(str(report), keeps="\n"))
    click.get_current_context().exit(0 if sound else 1)
