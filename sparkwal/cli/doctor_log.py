"""The checkpoint of a query, and the log that it writes to."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping

from sparkwal.checkpoints.folder import local_folder, owner_of, query_of
from sparkwal.cli.findings import Line, ok, to_do, unknown
from sparkwal.errors import CollectedError, InvalidLogError
from sparkwal.lifecycle import consumers
from sparkwal.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol import chain
from sparkwal.protocol.log_store import LogStore
from sparkwal.protocol.recovery import Head, find_head

_IDLE_MS = 5 * 60_000
_STALE_MS = 24 * 3_600_000
_MAKE = "sparkwal.checkpoint(path, name) gives a folder, made from the log where it is lost"


def checkpoint(path: str, given: Mapping[str, str], location: str | None) -> Iterator[Line]:
    """Where a query keeps its progress, and what that costs."""
    if location is None:
        yield unknown("checkpoint", f"not looked at: give --checkpoint. {_MAKE}")
        return
    folder = local_folder(location)
    if folder is None:
        remote = location.partition(":")[0].lower()
        if remote in ("s3", "s3a", "s3n"):
            yield to_do("checkpoint", "Spark makes 48 requests a microbatch there",
                        f"use a local one: {_MAKE}")  # fmt: skip
        else:
            yield unknown("checkpoint", f"on {remote}://; {_MAKE}")
        return
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(nearest, os.W_OK):
        yield to_do("checkpoint", f"this user may not write to {nearest}", "use another folder")
        return
    if query_of(folder) is None:
        yield ok("checkpoint", f"{folder} holds none yet: the query begins anew. {_MAKE}")
        return
    owner = owner_of(folder)
    log = open_log(from_keywords(SourceOptions, path, given), fail_fast=True)
    if owner is None:
        yield ok("checkpoint", f"{folder}, on this machine's disk alone: {_MAKE}")
    elif owner.log != log.identity:
        yield to_do("checkpoint", f"{folder} is of the log {owner.log}, not of {log.identity}",
                    "give the query the folder of its own log")  # fmt: skip
    else:
        yield ok("checkpoint", f"{folder}, carried by the log under the name {owner.name!r}")


def look(path: str, given: Mapping[str, str]) -> Iterator[Line]:
    """What a writer or a reader would find. 2 LIST and some GETs; nothing is written."""
    log = open_log(from_keywords(SourceOptions, path, given), fail_fast=True)
    try:
        head = find_head(log)
    except InvalidLogError as error:
        yield to_do("log", f"damaged: {error}", "see docs/operations.md, A record is damaged")
        return
    if head.live is None:
        yield ok("log", f"none at {log.url} yet: the first writer begins it")
        return
    header = head.live.header
    yield ok("log", f"{log.url}, head {head.position}, id {header.log_id}")
    idle = max(time.time_ns() // 1_000_000 - header.timestamp_ms, 0)
    state = "idle" if idle > _IDLE_MS else "alive"
    yield ok("leader", f"{header.leader_id}, term {header.term}, {state}: its last record is "
                       f"{idle // 1000} s old, up to {head.in_flight_limit} in flight")  # fmt: skip
    yield from _life(log, head)


def _life(log: LogStore, head: Head) -> Iterator[Line]:
    """Floor, compaction and consumers."""
    assert head.live is not None
    log_id = head.live.header.log_id
    try:
        life = chain.look(log, log_id)
        readers = consumers.standing(log, log_id)
    except (InvalidLogError, CollectedError) as error:
        yield to_do("lifecycle", str(error))
        return
    if life is None:
        yield ok("lifecycle", "none: nothing was compacted or collected")
    elif life.is_open:
        age = time.time_ns() // 1_000_000 - life.timestamp_ms
        said = f"positions {life.cut}…{life.to - 1} were promised to the table {age // 1000} s ago"
        if age > _IDLE_MS:
            yield to_do("lifecycle", f"suspended: {said} and are not confirmed there",
                        "run jobs/compact.py again: it goes on, or says what to mend")  # fmt: skip
        else:
            yield ok("lifecycle", f"{said}; floor {life.floor}")
    else:
        yield ok("lifecycle", f"the table has all below {life.cut}, the floor is {life.floor}")
    for reader in readers:
        name, behind = reader.consumer.name, head.gap - reader.consumer.position
        if reader.of_this_log and reader.age_ms > _STALE_MS and behind > 0:
            yield to_do("consumer", f"{name} has not told for {reader.age_ms // 3_600_000} h, "
                                    f"{behind:,} positions behind: the floor waits for it",
                        "start it again, or forget it if nobody needs it any more")  # fmt: skip
        else:
            yield ok("consumer", f"{name} is {max(behind, 0):,} positions behind")
