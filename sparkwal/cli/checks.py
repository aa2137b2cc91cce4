"""`sparkwal show` and `verify`: whether what is there is sound."""

import json
from typing import Any

import click
from rich.text import Text

from sparkwal.cli.exit_codes import Failed, advice
from sparkwal.cli.flags import as_json, takes_log, takes_logs
from sparkwal.cli.open_logs import Damage, head_of, log_at, logs_at, no_log, progress
from sparkwal.cli.output import escape, facts, moment, out, print_json, table
from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.format.header import CommitHeader, to_json
from sparkwal.protocol.recovery import last_live
from sparkwal.protocol.slots import SlotRecord
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.verification import Report, check_commit, verify_store, whole_record


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
    position = log.gap - 1 if position is None else position
    if position > keys.last_position(log.window):
        raise click.BadParameter(f"no log has a position {position}")
    state, why, record, problems = _look(log, position)
    sound = record is not None and not problems
    key = log.log.locate(keys.slot(position, log.window))
    header = json.loads(to_json(record.header)) if record else None
    if as_json:
        print_json(
            {
                "position": position,
                "state": state,
                "key": key,
                "sound": None if state == "collected" else sound,
                "problems": problems,
                "header": header,
                **({"why": why} if why else {}),
            }
        )
        click.get_current_context().exit(0 if sound else 1)
    if record is not None:
        verdict = Text("every byte is as it was written", "green")
        if problems:
            verdict = Text("\n".join(problems), "red")
        elif state == "collected":
            verdict = Text("not checked: its rows may be gone")
        time = moment(record.header.timestamp_ms)
        about = {"object": key, "state": f"{record.header.kind}, {state}", "why": why, "time": time}
        _show({name: value for name, value in about.items() if value}, header, verdict)
    if not sound:
        what = why or f"the record of position {position} is not sound"
        raise Failed(escape(f"{what}\n{advice(problems)}".strip(), keeps="\n"))


def _look(log: LogRange, position: int) -> tuple[str, str, SlotRecord | None, list[str]]:
    """What is at a position: its state, why it has that, the record, and what is wrong with it."""
    if position >= log.gap:
        why = f"position {position} is not written yet: the log ends at {log.gap - 1}"
        return "beyond the head", why, None, []
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
        return "collected", why, record, []
    if damage:
        return "damaged", damage, None, [damage]
    if record is None:
        why = (
            f"the record of position {position} is missing, though the log goes on after it: it "
            f"was deleted from outside ({log.log.locate(keys.slot(position, log.window))})"
        )
        return "missing", why, None, [why]
    report = Report(log.log.url)
    if isinstance(record.header, CommitHeader):
        check_commit(log.log, record, report)
    live = last_live(log.log, record, tolerant=True, head=head_of(log))
    if live is not record:
        why = (
            f"dead: position {live.header.position} has term {live.header.term}, so its writer "
            "was fenced when it arrived. Nobody acknowledged it, and no reader sees it"
        )
        return "dead", why, record, report.problems
    return "live", "", record, report.problems


def _show(about: dict[str, str], header: Any, verdict: Text) -> None:
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
                    **{name: each[name] for name in names},
                    "frames": len(each["frames"]),
                    "object": f"batches/{each['number']}",
                }
                for each in tables["batches"]
            ]
        )
    if tables["inline"]:
        table([{name: each[name] for name in names} for each in tables["inline"]], "in the record")
    if tables["checkpoints"]:
        table(
            [
                {
                    "query": each.get("name") or query,
                    "position": each["position"],
                    "bytes": each["bytes"],
                    "files": len(each["files"]),
                    "note": each["reason"],
                }
                for query, each in tables["checkpoints"].items()
            ],
            "checkpoints",
        )


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
            text = f"{report}\n{advice(report.problems)}".strip()
            out().print(Text(escape(text, keeps="\n")), soft_wrap=True)
    click.get_current_context().exit(0 if sound else 1)
