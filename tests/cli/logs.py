"""Logs that commands look at, and the commands' output."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from click.testing import CliRunner

from benchmarks.long_logs import long_log
from sparkwal.cli.main import main
from sparkwal.format import keys
from sparkwal.format.header import SEAL, CommitHeader, LeaderHeader
from sparkwal.options.open import open_log
from sparkwal.options.store import StoreOptions
from sparkwal.store.base import LogStore
from tests.headers import COMMIT, LEADER, plain

COMMAND = [sys.executable, "-m", "sparkwal"]
SCHEMA = pa.schema([("v", pa.int64())])
BEGAN_MS = 1_700_000_000_000


def ran(*arguments: str, code: int = 0) -> str:
    """Run a command, check its exit code, and return its output."""
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result.output


def lines(*arguments: str, code: int = 0) -> list[dict[str, Any]]:
    """The JSON lines of a command."""
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert result.exit_code == code, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def document(*arguments: str, code: int = 0) -> dict[str, Any]:
    """The JSON document of a command."""
    (found,) = lines(*arguments, code=code)
    return found


def as_flags(options: dict[str, str]) -> list[str]:
    """Options of a log as a command takes them."""
    return [part for name, value in options.items() for part in ("--log-option", f"{name}={value}")]


def opened(path: str | Path, **options: str) -> LogStore:
    return open_log(StoreOptions(path=str(path), **options))  # type: ignore[arg-type]


def write_long(folder: Path, commits: int) -> str:
    """A leader record and so many commits; position n was written n ms after BEGAN_MS."""
    (folder / "batches").mkdir(parents=True)
    for key, body in long_log("", commits):
        (folder / key).write_bytes(body)
    return str(folder)


def _leader(position: int, term: int, limit: int, reason: str = "cold start") -> LeaderHeader:
    return replace(
        LEADER,
        number=keys.slot(position, 1000),
        position=position,
        prev_position=position - 1,
        term=term,
        in_flight_limit=limit,
        timestamp_ms=BEGAN_MS + position,
        reason=reason,
    )


def _commit(position: int, term: int, limit: int) -> CommitHeader:
    return replace(
        COMMIT,
        number=keys.slot(position, 1000),
        position=position,
        term=term,
        rows=0,
        bytes=0,
        batches=(),
        in_flight_limit=limit,
        timestamp_ms=BEGAN_MS + position,
    )


def write_takeovers(folder: Path) -> tuple[str, list[int], list[int]]:
    """A log of three leaders with three in flight each, some of whose records came too late.

    Returns its path, the positions of its live records but seals, and those of its dead ones.
    """
    records = [
        _leader(0, 1, 3),
        *(_commit(position, 1, 3) for position in range(1, 5)),
        # The first writer's record is in the zone that the second one seals.
        _leader(5, 2, 3),
        _commit(6, 1, 3),
        _leader(7, 2, 3, SEAL),
        _commit(8, 2, 3),
        _commit(9, 2, 3),
        _leader(10, 3, 3),
        _leader(11, 3, 3, SEAL),
        _commit(12, 2, 3),
        _commit(13, 3, 3),
        _commit(14, 3, 3),
    ]
    (folder / "batches").mkdir(parents=True)
    for record in records:
        (folder / "batches" / keys.encode(record.number)).write_bytes(plain(record))
    dead = [6, 12]
    live = [each.position for each in records if each.position not in (*dead, 7, 11)]
    return str(folder), live, dead
