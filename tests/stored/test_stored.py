"""Each stored log of each former state is read, continued and collected by this state.

A row of TABLE names a stored log and the operations on it. Where a later state makes other logs, or
more, its folder and a row are added; no stored log is changed or removed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sparkwal
from sparkwal import events
from sparkwal.errors import CollectedError
from tests.cli.logs import lines
from tests.stored import place
from tests.stored.place import LOG, PLACE, plain

OLD_DAYS = 3


@dataclass
class Stored:
    """A stored log at the place, and what it must give."""

    expected: dict[str, Any]

    @property
    def logs(self) -> dict[str, list[dict[str, Any]]]:
        """The rows of each log, by sequencer."""
        return {log["sequencer"]: log["rows"] for log in self.expected["logs"]}


def scanned(sequencer: str = "default", path: Path = LOG) -> list[dict[str, Any]]:
    rows = sparkwal.Log(str(path), sequencer=sequencer).scan().read_all().to_pylist()
    return [plain(row) for row in rows]


def check(stored: Stored, more: dict[str, list[dict[str, Any]]] | None = None) -> None:
    """Check that each log holds its rows, and `more`, and that it is sound."""
    for sequencer, rows in stored.logs.items():
        assert scanned(sequencer) == [*rows, *(more or {}).get(sequencer, [])]
        report = sparkwal.verify(str(LOG), sequencer=sequencer)
        assert report.ok, report


def read(stored: Stored) -> None:
    check(stored)
    for sequencer, rows in stored.logs.items():
        log = sparkwal.Log(str(LOG), sequencer=sequencer)
        commits = [record for record in log.records() if record.kind == "commit"]
        assert sum(record.rows for record in commits) == len(rows)
        assert not {record.position for record in commits} & {*stored.expected.get("dead", [])}
        # An entry has the columns of its record.
        columns = {name: None for row in rows for name in row}
        replayed = (
            row for entry in log.replay() for rows in entry.rows for row in rows.to_pylist()
        )
        assert [{**columns, **plain(row)} for row in replayed] == rows


def sql(stored: Stored) -> None:
    for sequencer, rows in stored.logs.items():
        log = sparkwal.Log(str(LOG), sequencer=sequencer)
        answer = log.sql("SELECT count(*) AS n, sum(id) AS ids FROM log").read_all().to_pylist()
        assert answer == [{"n": len(rows), "ids": sum(row["id"] for row in rows)}]
        answer = log.sql("SELECT sum(rows) AS n FROM records").read_all().to_pylist()
        assert answer == [{"n": len(rows)}]


def appended(sequencer: str, producer: str = "p") -> list[dict[str, Any]]:
    """Take a log over and append one row, with nulls in all columns but the id."""
    head = sparkwal.Log(str(LOG), sequencer=sequencer).head()
    assert head is not None
    row = {name: 77 if name == "id" else None for name in head.schema.names}
    with sparkwal.Appender(str(LOG), head.schema, producer_id=producer, sequencer=sequencer) as wal:
        wal.append([row]).result()
    return [row]


def take_over(stored: Stored) -> None:
    head = sparkwal.Log(str(LOG)).head()
    assert head is not None
    for producer, last in stored.expected.get("last_sequence", {}).items():
        with sparkwal.Appender(str(LOG), head.schema, producer_id=producer) as wal:
            assert wal.last_sequence == last
    check(stored, {sequencer: appended(sequencer) for sequencer in stored.logs})


def lifecycle(sequencer: str = "default") -> sparkwal.Lifecycle:
    return sparkwal.Lifecycle(str(LOG), sequencer=sequencer, retainSeconds=0, gcGrace="1h")


def collect(stored: Stored) -> None:
    """All rows leave each log by their age, and what comes after them stays."""
    for sequencer, rows in stored.logs.items():
        before = sparkwal.Log(str(LOG), sequencer=sequencer).head()
        place.age(LOG, OLD_DAYS)
        assert lifecycle(sequencer).run_once().floor <= before.position + 1
        place.age(LOG, OLD_DAYS)
        run = lifecycle(sequencer).run_once()
        assert run.collection is not None
        last = rows[-1:] if run.floor <= before.position else []
        assert scanned(sequencer) == last
        assert scanned(sequencer) + appended(sequencer) == scanned(sequencer)
        assert sparkwal.verify(str(LOG), sequencer=sequencer).ok
        with pytest.raises(CollectedError):
            sparkwal.Log(str(LOG), sequencer=sequencer, startingPosition=0).scan().read_all()


def below_floor(stored: Stored) -> None:
    floor = stored.expected["floor"]
    assert next(sparkwal.Log(str(LOG)).records()).position == floor
    with pytest.raises(CollectedError):
        sparkwal.Log(str(LOG), startingPosition=floor - 1).scan().read_all()


def with_journal() -> sparkwal.Appender:
    schema = sparkwal.Log(str(LOG)).head().schema
    return sparkwal.Appender(
        str(LOG), schema, producer_id="p", journal=str(PLACE / "journal"), journalSlots=16
    )


def send_journal(stored: Stored) -> None:
    waiting = stored.expected["journal"]
    with with_journal() as wal:
        assert wal.last_sequence == len(stored.logs["default"]) + len(waiting) - 1
        wal.flush()
        wal.append([{"id": 77, "v": None}]).result()
    check(stored, {"default": [*waiting, {"id": 77, "v": None}]})


def resend(stored: Stored) -> None:
    lost = range(*stored.expected["lost"])
    resent: list[dict[str, Any]] = []
    with with_journal() as wal:
        assert wal.lost == lost

        def unreadable(sequence: int) -> list[dict[str, Any]]:
            return [{"id": 1_000 + sequence, "v": None}]

        asked = wal.resend_lost(unreadable)
        resent = [{"id": 1_000 + sequence, "v": None} for sequence in asked]
        assert wal.lost == range(0)
    # The entry with the flipped bit is asked for, those after it are read from quarantine.
    assert asked == [lost.start]
    after = [{"id": sequence + 1, "v": f"v{sequence + 1}"} for sequence in lost[1:]]
    check(stored, {"default": [*resent, *after]})


def orders(folder: Path) -> str:
    return sparkwal.checkpoint(str(LOG), "orders", folder=folder)


def use_checkpoint(stored: Stored) -> None:
    """The folder is used, and one that the log gives is the same in all that a rebuild carries."""
    made: list[events.Event] = []
    unsubscribe = events.subscribe(made.append)
    old = Path(orders(PLACE / "checkpoint"))
    new = Path(orders(PLACE / "rebuilt"))
    forked = {"fork": sparkwal.Fork(str(LOG), "orders", at=stored.expected["at"])}
    sparkwal.checkpoint(str(PLACE / "fork"), "orders-2", folder=PLACE / "fork-checkpoint", **forked)
    unsubscribe()
    kinds = [type(event) for event in made]
    used, rebuilt = events.CheckpointUsed, events.CheckpointRebuilt
    assert [kind for kind in kinds if kind in (used, rebuilt)] == [used, rebuilt, used]
    names = [file.relative_to(new) for file in new.rglob("*") if file.is_file()]
    for name in names:
        was, now = (old / name).read_text(), (new / name).read_text()
        if name.parts[0] == "offsets":
            # A rebuild takes only some of Spark's settings.
            was, now = was.splitlines()[-1], now.splitlines()[-1]
        assert was == now, name
    last = len(stored.logs["default"]) - 1
    assert {f"offsets/{last}", f"commits/{last}", f"sources/0/{last}"} <= {*map(str, names)}


def rebuild_state(stored: Stored) -> None:
    """A folder that the log gives has the state before the last microbatch, as Spark wrote it."""
    old, new = PLACE / "checkpoint", Path(orders(PLACE / "rebuilt"))
    names = sorted(str(file.relative_to(new)) for file in new.glob("state/*/*/[0-9]*"))
    assert names == stored.expected["state"] and len(names) > 4
    for name in names:
        assert (new / name).read_bytes() == (old / name).read_bytes()
    last = len(stored.logs["default"]) - 1
    assert (new / f"offsets/{last}").exists() and not (new / f"commits/{last}").exists()


def of_queries(stored: Stored) -> None:
    (query,) = sparkwal.Log(str(LOG)).queries()
    assert query.name == stored.expected["query"]


def read_fork(stored: Stored) -> None:
    assert scanned(path=PLACE / "fork") == stored.expected["fork"]
    assert sparkwal.verify(str(PLACE / "fork")).ok


def read_lease(stored: Stored) -> None:
    """No floor passes a lease."""
    (lease,) = sparkwal.consumers(str(LOG))
    assert lease.name.startswith("lease-") and lease.position == stored.expected["held"]
    place.age(LOG, OLD_DAYS)
    assert lifecycle().run_once().floor <= stored.expected["held"]


def read_cursor(stored: Stored) -> None:
    replay = sparkwal.Log(str(LOG)).replay(stored.expected["cursor"], sequencers="*")
    count = sum(len(rows) for rows in stored.logs.values()) - stored.expected["replayed"]
    assert sum(batch.num_rows for entry in replay for batch in entry.rows) == count


def read_current(stored: Stored) -> None:
    for sequencer in stored.expected["current"]:
        log = sparkwal.Log(str(LOG), sequencer=sequencer)
        assert sparkwal.verify(str(LOG), sequencer=sequencer).ok
    current = log.current(sequencers=[*stored.expected["current"]]).to_pandas()
    expected = [row for rows in stored.expected["current"].values() for row in rows]
    assert sorted(current["id"]) == sorted(row["id"] for row in expected)
    assert sorted(current["v"]) == sorted(row["v"] for row in expected)


def read_refused(stored: Stored) -> None:
    found = lines("refused", str(LOG))
    assert [json.loads(line["values"])["id"] for line in found] == stored.expected["refused"]


GENERAL = [read, sql, take_over, collect]
TABLE: dict[str, list[Callable[[Stored], None]]] = {
    "takeovers": GENERAL,
    "torn": GENERAL,
    "archived": GENERAL,
    "widened": GENERAL,
    "sequencers": GENERAL,
    "segments": GENERAL,
    "collected": [read, sql, take_over, collect, below_floor],
    "journal": [read, send_journal],
    "quarantined": [read, resend],
    "batches": GENERAL,
    "files": [*GENERAL, use_checkpoint, of_queries, read_fork],
    "stateful": [*GENERAL, rebuild_state],
    "leases": [read, sql, take_over, read_lease, read_cursor],
    "lake": [read_current],
    "keyed": [read_current],
    "aside": [read_current, read_refused],
    "again": [read_current, read_refused],
}
ARCHIVES = sorted(place.HERE.glob("*/*.tar.xz"))


def name_of(archive: Path) -> str:
    return archive.name.removesuffix(".tar.xz")


@pytest.fixture
def stored(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stored]:
    """A stored log, at the place where it was made."""
    archive = request.param
    monkeypatch.setenv("XDG_STATE_HOME", str(place.STATE))
    monkeypatch.setattr(tempfile, "tempdir", str(place.TEMPORARY))
    with place.held():
        place.unpack(archive)
        yield Stored(json.loads((archive.parent / f"{name_of(archive)}.json").read_text()))


@pytest.mark.parametrize(
    ("stored", "operation"),
    [
        pytest.param(
            archive, operation, id=f"{archive.parent.name}-{name_of(archive)}-{operation.__name__}"
        )
        for archive in ARCHIVES
        for operation in TABLE[name_of(archive)]
    ],
    indirect=["stored"],
)
def test_each_operation_of_its_kind_succeeds_on_a_stored_log_of_a_former_state(
    stored: Stored, operation: Callable[[Stored], None]
) -> None:
    operation(stored)


def test_the_newest_state_has_all_kinds() -> None:
    newest = max(archive.parent for archive in ARCHIVES)
    assert {name_of(archive) for archive in ARCHIVES if archive.parent == newest} == {*TABLE}
