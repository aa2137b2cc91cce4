"""Checks the rules of a log's lifecycle from the objects and the table, without the lifecycle's
code."""

from __future__ import annotations

import ast
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tests.simulation import oracle
from tests.simulation.data import PREFIX

if TYPE_CHECKING:
    from tests.lifecycle.table import Version
    from tests.simulation.outside import Row
    from tests.simulation.world import State

_MAX = 2**64 - 1


def check(state: State, records: list[dict[str, Any]]) -> None:
    """Raises Violation unless every promise of the lifecycle holds.

    Args:
        records: the live records of the log, collected ones too.
    """
    chain = oracle.chain(state)
    _check_chain(state, chain)
    truth = oracle.rows(records)
    logs = dict(state.former)
    if records:
        logs[records[0]["log_id"]] = truth
    logs[state.elsewhere[0]] = state.elsewhere[1]
    if chain and chain[-1]["target"] is not None:
        _check_confirmed(state, chain[-1], logs)
    _check_table(state, logs)
    _check_tombstones(state)
    _check_all_there(state, records, truth, chain)
    _check_consumers(state, records)


def _check_chain(state: State, chain: list[dict[str, Any]]) -> None:
    whole = [
        key
        for key, body in {**state.objects, **dict(state.collected)}.items()
        if key.startswith(f"{PREFIX}/lifecycle/") and body.endswith(b"ARROW1")
    ]
    if len(chain) != len(whole):
        raise oracle.Violation("the chain has a hole")
    for before, after in pairwise([_BEGINNING, *chain]):
        was, now = _of(before), _of(after)
        kind = after["kind"]
        if before is not _BEGINNING and before["log_id"] not in (None, after["log_id"]):
            raise oracle.Violation("the chain continues with another log")
        _check_target(before, after)
        if state.elsewhere[0]:
            _check_step(before, after)
            continue
        if now["floor"] < was["floor"]:
            raise oracle.Violation(f"the floor went back from {was['floor']} to {now['floor']}")
        if after["target"] is not None and now["floor"] > now["cut"]:
            raise oracle.Violation(f"the floor {now['floor']} is above the cut {now['cut']}")
        same = (was["cut"], was["to"]) == (now["cut"], now["to"])
        # Or the same range once more: somebody's RESTORE took it out of the table.
        promised = was["cut"] == was["to"] == now["cut"] < now["to"] or (
            same and now["cut"] < now["to"]
        )
        expected = {
            "intent": (promised, was["k"] + 1),
            "done": (was["cut"] < was["to"] == now["cut"] == now["to"], was["k"]),
            "floor": (same, was["k"]),
            "burned": (was["cut"] == now["cut"] == now["to"] < was["to"], was["k"]),
        }[kind]
        if expected != (True, now["k"]):
            raise oracle.Violation(f"after {was} the chain continues with {kind} {now}")


def _check_target(before: dict[str, Any], after: dict[str, Any]) -> None:
    """A range is done, or given up, by the target of its intent."""
    whole = before.get("whole", {"to": {}, "cut": {}})
    is_open = any(to > whole["cut"][name] for name, to in whole["to"].items())
    is_open = is_open or bool(whole.get("again"))
    if is_open and before["target"] != after["target"]:
        raise oracle.Violation("the target of an open range was changed")


def _check_step(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Check a record of the chain of two logs by the one before it."""
    empty: dict[str, Any] = {"cut": {}, "to": {}, "floor": {}, "tables": []}
    was, now = before.get("whole", empty), after["whole"]
    ks = [sum(table["k"] for table in record["tables"]) for record in (was, now)]
    opened = {name for name, to in now["to"].items() if to > now["cut"][name]}
    was_open = {name for name, to in was["to"].items() if to > was["cut"][name]}
    _check_again(was, now, after["kind"], is_open=bool(was_open))
    opened |= {*now.get("again", {})}
    for name, cut in now["cut"].items():
        old = {each: was[each].get(name, 0) for each in ("cut", "to", "floor")}
        to, floor = now["to"][name], now["floor"][name]
        if not old["floor"] <= floor <= cut:
            raise oracle.Violation(f"{name}: the floor {floor} after {old}, the cut is {cut}")
        same = (cut, to) == (old["cut"], old["to"])
        promised = old["cut"] == old["to"] == cut < to and not was_open
        finished = old["cut"] < old["to"] == cut == to
        given_up = old["to"] > old["cut"] == cut == to
        right = {
            "intent": promised or same,
            "done": finished if name in was_open else same,
            "floor": same,
            "burned": given_up if name in was_open else same,
        }[after["kind"]]
        if not right:
            raise oracle.Violation(f"{name} after {old}: {after['kind']} with {cut} … {to}")
    if ks[1] - ks[0] != (after["kind"] == "intent") or (after["kind"] == "intent") > bool(opened):
        raise oracle.Violation(f"{after['kind']} made range {ks[1]} of {ks[0]}")


def _check_again(was: dict[str, Any], now: dict[str, Any], kind: str, *, is_open: bool) -> None:
    """Check the ranges that write refused rows again."""
    begun, begins = was.get("again", {}), now.get("again", {})
    if begins and (is_open or begun not in ({}, begins)):
        raise oracle.Violation(f"{begins} is open beside another range")
    if begun and kind == "intent" and begun != begins:
        raise oracle.Violation(f"{kind} after {begun}")


def _of(record: dict[str, Any]) -> dict[str, int]:
    (cut,), (to,), (floor,) = (record[name].values() for name in ("cut", "to", "floor"))
    return {"k": record["k"], "cut": cut, "to": to, "floor": floor}


_BEGINNING = {"k": 0, "cut": {"": 0}, "to": {"": 0}, "floor": {"": 0}}


def _check_confirmed(
    state: State, newest: dict[str, Any], logs: dict[str, tuple[Row, ...]]
) -> None:
    """The version that the newest record names holds all rows below the cut, each once."""
    whole = newest["whole"]
    table = state.tables[int(newest["table_id"].removeprefix("table-")) - 1]
    rows = table[newest["table_version"]].rows
    for name, log_id in whole["log_id"].items():
        part = oracle.of_log(whole, name)
        confirmed = newest.get("refused")
        aside = state.refused[confirmed["version"]].rows if confirmed else ()
        truth = _without(logs[log_id], _counting(aside, whole))
        _check_held(part, [row for row in rows if row[0] == log_id], truth)
    wanted = [row for row in logs[newest["log_id"]] if row[1] < _of(newest)["cut"]]
    if not state.tombstones:
        return
    kept = state.tombstones[newest["tombstones_version"]].rows
    if missing := {*wanted} - {*kept}:
        raise oracle.Violation(
            f"the chain says that version {newest['tombstones_version']} of the tombstones holds "
            f"what is below {_of(newest)['cut']}; it lacks {missing}"
        )


def _counting(aside: tuple[Any, ...], whole: dict[str, Any]) -> tuple[Any, ...]:
    """The refused rows that were not written again since."""
    taken = {whole["log_id"][name]: k for name, k in whole.get("taken", {}).items()}
    return tuple(row for row in aside if row[0] >= taken.get(row[1], 0))


def _without(rows: tuple[Row, ...], aside: tuple[Any, ...]) -> tuple[Row, ...]:
    """The rows without those that stepped aside."""
    gone = {tuple(row[1:]) for row in aside}
    return tuple(row for row in rows if row not in gone)


def _check_held(newest: dict[str, Any], held: list[Row], truth: tuple[Row, ...]) -> None:
    cut = _of(newest)["cut"]
    wanted = [row for row in truth if row[1] < cut]
    # Rows that are written again come late.
    in_order = sorted(held) if newest.get("taken") else held
    if in_order != wanted:
        raise oracle.Violation(
            f"the chain claims that version {newest['table_version']} of the table holds the rows "
            f"below {cut}; it holds {held}, and {wanted} were written"
        )


def _check_tombstones(state: State) -> None:
    """They hold the rows of each range that the table holds, and each range once."""
    if not state.tombstones or any(version.undoes for version in state.tombstones):
        return
    if missing := {*state.tables[-1][-1].rows} - {*state.tombstones[-1].rows}:
        raise oracle.Violation(f"the table holds {missing}, whose tombstones are not written")
    once = (version for version in state.tombstones if version.operation == "MERGE")
    ranges = [(version.log_id, version.k) for version in once]
    if len(ranges) != len({*ranges}):
        raise oracle.Violation(f"the tombstones of a range were written twice: {ranges}")


def _check_table(state: State, logs: dict[str, tuple[Row, ...]]) -> None:
    """Whole ranges in order, each once, and of the log that its transaction names."""
    # The lifecycle is not responsible for a table that was restored or recreated.
    if len(state.tables) != 1 or any(version.undoes for version in state.tables[0]):
        return
    newest = state.tables[0][-1]
    if any(version.undoes for version in state.refused):
        return
    aside = state.refused[-1].rows if state.refused else ()
    if aside and (head := oracle.chain_head(state)) is not None:
        whole = head["whole"]
        # They are in the table before a record says so.
        written = {whole["log_id"][name]: k for name, k in whole.get("again", {}).items()}
        done = {(x.log_id, x.k) for x in state.tables[0] if x.operation != "BURN"}
        is_written = (head["app_id"], head["k"]) in done
        aside = _counting(aside, whole)
        if is_written:
            aside = tuple(row for row in aside if row[0] >= written.get(row[1], 0))
    if both := {tuple(row[1:]) for row in aside} & {*newest.rows}:
        raise oracle.Violation(f"{both} are in the table and aside")
    for log_id in {row[0] for row in newest.rows}:
        held = tuple(row for row in newest.rows if row[0] == log_id)
        head = oracle.chain_head(state)
        if head is not None and head["whole"].keys() & {"again", "taken"}:
            # Rows that are written again come late.
            held = tuple(sorted(held))
        if held != _without(logs[log_id], aside)[: len(held)]:
            raise oracle.Violation(f"the table holds {held} of {logs[log_id]}")
    for before, after in pairwise(state.tables[0]):
        written = {row[0] for row in after.rows[len(before.rows) :]}
        if written - {after.log_id, *filter(None, state.elsewhere[:1])} and not state.elsewhere[0]:
            raise oracle.Violation(f"a range holds rows of another log: {after.rows}")


def _check_all_there(
    state: State,
    records: list[dict[str, Any]],
    truth: tuple[Row, ...],
    chain: list[dict[str, Any]],
) -> None:
    """Every row that was committed is in the log, or below the floor and in the table."""
    gone = _gone(state, records)
    if not gone:
        return
    ours = [record for record in chain if record["log_id"] == records[0]["log_id"]]
    floor = _of(ours[-1])["floor"] if ours else 0
    if max(gone) >= floor:
        raise oracle.Violation(f"position {max(gone)} was collected; the floor is {floor}")
    if ours[-1]["target"] is None:
        return
    # The table's history keeps the rows that a RESTORE removed.
    versions: list[Version] = [state.tables[-1][-1]]
    if any(version.undoes for version in state.tables[-1]) or len(state.tables) > 1:
        versions = [version for table in state.tables for version in table]
    aside = {tuple(row[1:]) for version in state.refused for row in version.rows}
    for row in truth:
        if (
            row[1] in gone
            and row not in aside
            and not any(row in version.rows for version in versions)
        ):
            raise oracle.Violation(f"{row} was collected and is not in the table")


def _gone(state: State, records: list[dict[str, Any]]) -> list[int]:
    """The positions that a reader cannot read any more as they were written."""
    return [
        record["position"]
        for record in records
        if any(state.objects.get(key) != body for key, body in _needed(state, record))
    ]


def _needed(state: State, record: dict[str, Any]) -> list[tuple[str, bytes]]:
    numbers = [batch["number"] for batch in record.get("batches", ())]
    names = [oracle.slot_key(record["position"])]
    names += [f"{PREFIX}/batches/{number}" for number in numbers]
    there = oracle.objects(state)
    return [(name, there[name]) for name in names]


def _check_consumers(state: State, records: list[dict[str, Any]]) -> None:
    """Check that no position was collected that a live consumer has not read."""
    from tests.simulation.world import EXPIRY_MS

    if not state.joined or not records:
        return
    gone = _gone(state, records)
    for key in state.joined:
        if key not in state.objects:
            continue
        reported = _reported(oracle.document(state.objects[key]), records[0]["log_id"])
        if reported is None or state.now_ms - state.modified[key] > EXPIRY_MS:
            continue
        if any(position >= reported for position in gone):
            raise oracle.Violation(f"{gone} were collected; {key} continues at {reported}")


def _reported(consumer: dict[str, Any], log_id: str) -> int | None:
    """The position of a consumer in the log, or None if it reads a former log."""
    if "logs" not in consumer:
        return int(consumer["position"]) if consumer["log_id"] == log_id else None
    own = consumer["logs"].get("default")
    return int(own["position"]) if own and own["log_id"] == log_id else 0


def check_delivered(outcome: str, state: State) -> None:
    """Raises Violation unless a reader delivered what was written, all of it, each row once."""
    log_id, start, end, rows = ast.literal_eval(outcome.removeprefix("delivered "))
    logs = dict(state.former)
    if records := oracle.live(state):
        logs[records[0]["log_id"]] = oracle.rows(records)
    wanted = tuple(row for row in logs.get(log_id, ()) if start <= row[1] < end)
    chain = oracle.chain(state)
    floor = _of(chain[-1])["floor"] if chain and chain[-1]["log_id"] == log_id else 0
    if start > floor:
        raise oracle.Violation(f"a reader of all began at {start}; the floor is {floor}")
    if rows != wanted:
        raise oracle.Violation(f"a reader delivered {rows}; {wanted} were written")


def check_collected(outcome: str, state: State) -> None:
    """Check a reader's report of collected rows.

    Raises:
        Violation: the rows are still in the log.
    """
    position = int(outcome.removeprefix("collected "))
    chain = oracle.chain(state)
    if not chain or _of(chain[-1])["floor"] <= position:
        raise oracle.Violation(f"a reader learned that {position} was collected")
