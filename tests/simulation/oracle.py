"""Checks the log from the objects alone, without the protocol's code."""

from __future__ import annotations

import ast
import json
import zlib
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.simulation import lifecycle_oracle
from tests.simulation.data import JOURNALED, PREFIX, partitions_of, rows_of

if TYPE_CHECKING:
    from tests.simulation.outside import Row
    from tests.simulation.world import State

_MAX = 2**64 - 1
_WINDOW = 1000

# (position, query_id, batch_id)
Verdict = tuple[tuple[int, str, int], ...]


class Violation(AssertionError):
    """A promise of the log is broken."""


@lru_cache(maxsize=100_000)
def header(body: bytes) -> dict[str, Any]:
    """The header of an object."""
    metadata = pa.ipc.read_schema(pa.BufferReader(body[8:])).metadata
    document: dict[str, Any] = json.loads(metadata[b"weaselwal"])
    return document


@lru_cache(maxsize=10_000)
def document(body: bytes) -> dict[str, Any]:
    """The report of a consumer."""
    found: dict[str, Any] = json.loads(body.partition(b"\n")[0])
    return found


@lru_cache(maxsize=100_000)
def values(body: bytes) -> tuple[int, ...]:
    """The rows in an object itself."""
    return tuple(pa.ipc.open_stream(body[8:]).read_all().column("v").to_pylist())


def _rows_end(body: bytes) -> tuple[int, int]:
    """The offsets at which the rows of a slot record begin and end."""
    begin = 16 + int.from_bytes(body[12:16], "little")
    return begin, begin + sum(each["bytes"] for each in header(body).get("inline", ()))


def parts(body: bytes) -> dict[str, bytes]:
    """What a store may keep of an object."""
    if not body.startswith(b"ARROW1"):
        return {"all but its end": body[:-3]}
    begin, end = _rows_end(body)
    found = {"nothing": b"", "half of its front": body[: begin // 2], "all but its end": body[:-8]}
    return {**found, "half of its rows": body[: (begin + end) // 2]} if end > begin else found


@lru_cache(maxsize=100_000)
def is_torn(body: bytes) -> bool:
    """Whether an object lacks a part of its header, or of the rows in it."""
    begin = 16 + int.from_bytes(body[12:16], "little")
    return len(body) < max(begin, 16) or len(body) < _rows_end(body)[1]


@lru_cache(maxsize=100_000)
def slot_key(position: int) -> str:
    """The key of the record at a position."""
    return f"{PREFIX}/batches/{_MAX - _WINDOW * position:020d}"


def is_record(key: str) -> bool:
    """Whether it is the key of a slot or of a lifecycle record."""
    folder, _, number = key.removeprefix(f"{PREFIX}/").partition("/")
    return folder == "lifecycle" or (folder == "batches" and (_MAX - int(number)) % _WINDOW == 0)


def live(state: State) -> list[dict[str, Any]]:
    """The live records of the dense run, in order."""
    found: list[dict[str, Any]] = []
    term = 0
    position = 0
    torn = -1
    records = objects(state)
    while (body := records.get(slot_key(position))) is not None:
        position += 1
        # The store kept a part: the log ends there, or goes on with a leader who saw it end there.
        if is_torn(body):
            torn = position - 1 if torn < 0 else torn
            continue
        record = header(body)
        if found and record["log_id"] != found[0]["log_id"]:
            break
        if record["kind"] == "leader" and record["term"] > term and record["prev_position"] < torn:
            torn = -1
        if torn < 0 and record["term"] >= term:
            term = record["term"]
            found.append(record)
    return found


def of_log(record: dict[str, Any], name: str = "default") -> dict[str, Any]:
    """The part of one log in a record of the chain, and the state of its table."""
    place = record["table"].get(name)
    table = {"k": 0, "target": None} if place is None else record["tables"][place]
    of_logs = {each: {name: record[each].get(name, 0)} for each in ("cut", "to", "floor")}
    return {**record, **table, **of_logs, "log_id": record["log_id"].get(name)}


def chain(state: State) -> list[dict[str, Any]]:
    """The whole lifecycle records, oldest first, also those that were deleted; without a gap.

    What lies at the number of a deleted one came too late, and is no part of the chain.
    """
    found = []
    number = _MAX
    there = {**state.objects, **dict(state.collected)}
    while (body := there.get(f"{PREFIX}/lifecycle/{number:020d}")) is not None:
        # The store kept a part of it: nobody was told that it is there.
        if body.endswith(b"ARROW1"):
            found.append({**of_log(header(body)), "whole": header(body)})
        number -= 1
    return found


def chain_head(state: State) -> dict[str, Any] | None:
    """The newest lifecycle record."""
    return (chain(state) or [None])[-1]


def rows(records: list[dict[str, Any]]) -> tuple[Row, ...]:
    """The rows in commit records, with their values."""
    return tuple(
        (record["log_id"], record["position"], written(record))
        for record in records
        if record["kind"] == "commit"
    )


def written(record: dict[str, Any]) -> tuple[int, ...]:
    """The bytes that its writer sent."""
    query, number = record["query_id"], record["batch_id"]
    return tuple(
        row for part in range(partitions_of(query)) for row in rows_of(query, number, part)
    )


def objects(state: State) -> dict[str, bytes]:
    """With those that were collected or lost, and without what was put in their place later."""
    gone = [*state.collected, *(state.loss.gone if state.loss else ())]
    return {**state.objects, **dict(gone)} if gone else state.objects


def committed(state: State) -> Verdict:
    """The commits that every reader must see, in order."""
    return _commits(live(state))


def _commits(records: list[dict[str, Any]]) -> Verdict:
    return tuple(
        (record["position"], record["query_id"], record["batch_id"])
        for record in records
        if record["kind"] == "commit"
    )


def check(before: Verdict, state: State) -> Verdict:
    """The verdict now.

    Raises Violation unless every promise holds.
    """
    records = live(state)
    now = _commits(records)
    check_kept(before, now)
    last: dict[str, int] = {}
    for position, query, batch in now:
        if batch <= last.get(query, -1):
            raise Violation(f"{query}/{batch} at position {position} is doubled or out of order")
        last[query] = batch
    _check_decided(records, state)
    for query, batch, position in state.acknowledged:
        if (position, query, batch) not in now:
            raise Violation(f"{query}/{batch} was acknowledged at {position} and is not there")
    for producer, sequence in state.promised.items():
        if last.get(producer, -1) < sequence:
            raise Violation(f"{producer} learned that {sequence} is durable, and it is not there")
    for record in records:
        if (record["plan_id"], record.get("batch_id")) in state.denied:
            raise Violation(f"position {record['position']} holds an append that was fenced")
    if records:
        _check_memory(records[-1], last, state)
    # Earlier records were checked when they were the last.
    if records and records[-1]["kind"] == "commit":
        if state.source >= 0:
            _check_source(records, state)
        else:
            _check_rows(records[-1], state)
    if state.tables or state.modified:
        lifecycle_oracle.check(state, records)
    return now


def check_kept(before: Verdict, now: Verdict) -> None:
    """Check that every committed record is unchanged.

    Raises:
        Violation: a record was changed or moved.
    """
    if now[: len(before)] != before:
        raise Violation(f"committed records have changed: {before} became {now}")


def _check_decided(records: list[dict[str, Any]], state: State) -> None:
    """Check that an object's `decided` was true, and that it names all that its writer had proof
    of."""
    there = objects(state)
    end = 0
    while slot_key(end) in there:
        end += 1
    for key, body in there.items():
        if not records or not key.startswith(f"{PREFIX}/batches/") or is_torn(body):
            continue
        found = header(body)
        position, decided = found["position"], found["decided"]
        if found["log_id"] != records[-1]["log_id"]:
            continue
        if decided >= end:
            raise Violation(f"{key} claims that {decided} was decided; the log ends before {end}")
        sure = position - found["in_flight_limit"]
        if found["kind"] == "leader":
            sure = found["prev_position"]
        if decided < sure:
            raise Violation(f"{key} claims {decided} only; its writer knew {sure} at least")


def _check_memory(head: dict[str, Any], last: dict[str, int], state: State) -> None:
    """The head, with the archive that it names, names the last microbatch of every query."""
    known = head["txns"]
    if archive := head.get("txns_archive"):
        body = state.objects.get(f"{PREFIX}/txns/{archive}")
        if body is None:
            raise Violation(f"position {head['position']} names an archive that is not there")
        known = {**json.loads(body)["txns"], **known}
    remembered = {query: batch for query, (batch, _) in known.items()}
    if remembered != last:
        raise Violation(f"position {head['position']} remembers {remembered}; it is {last}")


def _check_rows(record: dict[str, Any], state: State) -> None:
    position = record["position"]
    query = record["query_id"]
    number = record["batch_id"]
    if query == JOURNALED:
        return  # `journal_runs` knows what it appended
    found: dict[int, list[int]] = {}
    there = objects(state)
    for batch in record["batches"]:
        body = there.get(f"{PREFIX}/batches/{batch['number']}")
        if body is None or zlib.crc32(body) != batch["crc32"]:
            raise Violation(f"position {position} names an object that is not there")
        found.setdefault(batch["partition"], []).extend(values(body))
    own = iter(values(there[slot_key(position)]))
    for inline in record["inline"]:
        found.setdefault(inline["partition"], []).extend(islice(own, inline["rows"]))
    expected = {p: rows_of(query, number, p) for p in range(partitions_of(query))}
    if found != expected or next(own, None) is not None:
        raise Violation(f"position {position} holds {found}, and {expected} were written")
    if record["rows"] != sum(map(len, expected.values())):
        raise Violation(f"position {position} claims {record['rows']} rows")


def _check_source(records: list[dict[str, Any]], state: State) -> None:
    """The log holds the rows of the source from its first on, in order, each once. A record without
    rows carries a checkpoint."""
    wanted, last = wanted_rows(state, records), records[-1]
    before = sum(record["rows"] for record in records[:-1] if record["kind"] == "commit")
    found = values(state.objects[slot_key(last["position"])])
    carries = last["checkpoints"][last["query_id"]]["position"] == last["position"]
    if not (found or carries) or list(found) != wanted[before : before + len(found)]:
        raise Violation(
            f"position {last['position']} holds the rows {found} of the source; the "
            f"positions before it hold {wanted[:before]}"
        )


def wanted_rows(state: State, records: list[dict[str, Any]]) -> list[int]:
    """The rows of the source that the log must hold in the end: of a forked query from the row on
    with which the first record begins."""
    begin = min(state.forks, default=0)
    with_rows = (record for record in records if record["kind"] == "commit" and record["rows"])
    if state.forks and (first := next(with_rows, None)) is not None:
        row = values(state.objects[slot_key(first["position"])])[0]
        begin = row if row in state.forks else begin
    return [row for row in range(begin, state.source) if row not in state.dropped]


def check_complete(state: State) -> None:
    """Raises Violation unless the log holds all rows of the source."""
    records = live(state)
    rows = sum(record["rows"] for record in records if record["kind"] == "commit")
    wanted = wanted_rows(state, records)
    if rows != len(wanted):
        raise Violation(f"{rows} of the rows {wanted} are in the log, and it is over")


_literal = lru_cache(maxsize=10_000)(ast.literal_eval)


def check_reading(outcome: str, after: Verdict) -> None:
    """A reader must have seen all that was committed when it began, and only what is now."""
    start, before, seen = _literal(outcome.removeprefix("read "))
    before, after = (
        tuple(entry for entry in verdict if entry[0] >= start) for verdict in (before, after)
    )
    if tuple(seen) != after[: len(seen)] or len(seen) < len(before):
        raise Violation(f"a reader saw {seen}; the log held {before} before and {after} after")
