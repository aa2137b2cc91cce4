"""A compactor that stops at a gate, as a process: PATH TABLE GATE PLACE [SETTINGS [HOW]].

SETTINGS are of Spark, HOW of the compaction.

Prints `retried` when another writer of the table was faster, and in the end `ran`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from gate import Gate
from session import start

import sparkwal
from sparkwal import events


def main(
    path: str, table: str, gate: str, place: str, settings: str = "{}", how: str = "{}"
) -> None:
    events.subscribe(report)
    life = sparkwal.Lifecycle(
        path,
        spark=start(json.loads(settings)),
        table=table,
        keys=["id"],
        lateArriveWindowSeconds=0,
        **json.loads(how),
    )
    getattr(Gate(Path(gate)), place)(pytest.MonkeyPatch())
    life.run_once()
    print("ran", flush=True)


def report(event: events.Event) -> None:
    if isinstance(event, events.CompactionRetried):
        print("retried", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
