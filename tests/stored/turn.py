"""One turn of one state of the library at a log: python turn.py LIBRARY LOG ACTION [ARGUMENT …].

It imports nothing but the library, so that each state runs it. It prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

import sparkwal

SCHEMA = pa.schema([("id", pa.int64())])


def append(path: str, first: int, journal: str | None = None) -> list[int]:
    """Take the log over and append three rows."""
    options: dict[str, Any] = {"journal": journal} if journal else {"maxInFlightRequests": 4}
    ids = [*range(first, first + 3)]
    with sparkwal.Appender(path, SCHEMA, producer_id="p", **options) as wal:
        for number in ids:
            wal.append([{"id": number}]).result()
    return ids


def accept(path: str, first: int, journal: str) -> None:
    """Append three rows to a journal while the store is away, and die."""
    wal = sparkwal.Appender(path, SCHEMA, producer_id="p", journal=journal)
    Path(path, "batches").rename(Path(path, "away"))
    Path(path, "batches").touch()
    ids = [*range(first, first + 3)]
    for number in ids:
        wal.append([{"id": number}])
    Path(path, "batches").unlink()
    Path(path, "away").rename(Path(path, "batches"))
    show(ids)
    os._exit(0)


def read(path: str, cursor: str | None = None) -> dict[str, Any]:
    """All rows, and those after a cursor."""
    log = sparkwal.Log(path)
    replay = log.replay(cursor)
    after = [row["id"] for entry in replay for rows in entry.rows for row in rows.to_pylist()]
    return {
        "ids": [row["id"] for row in log.scan().read_all().to_pylist()],
        "after": after,
        "cursor": replay.cursor,
        "problems": sparkwal.verify(path).problems,
    }


def collect(path: str) -> int:
    """Let the old rows leave the log. Returns its floor."""
    then = time.time() - 3 * 86_400
    for file in Path(path).rglob("*"):
        if file.is_file():
            os.utime(file, (then, then))
    return sparkwal.Lifecycle(path, retainBytes=9_000, gcGrace="1h").run_once().floor


def show(answer: object) -> None:
    print(json.dumps(answer), flush=True)


def main(library: str, path: str, action: str, *arguments: str) -> None:
    assert Path(sparkwal.__file__).is_relative_to(library), sparkwal.__file__
    match action:
        case "append":
            show(append(path, int(arguments[0]), *arguments[1:]))
        case "accept":
            accept(path, int(arguments[0]), arguments[1])
        case "read":
            show(read(path, *arguments))
        case "collect":
            show(collect(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
