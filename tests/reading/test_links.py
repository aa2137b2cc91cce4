"""Readers refuse a record that does not follow the one before it, and read damaged rows twice."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sparkwal import Log, events
from sparkwal.errors import InvalidLogError
from sparkwal.events import Event
from sparkwal.protocol.slots import read_slot
from sparkwal.reading.rows import pieces_of, read_pieces
from sparkwal.store.base import LogStore
from sparkwal.store.local import LocalStore
from tests.logs import SCHEMA, append, record, values


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log that was restored from a backup. An object of its former history was left at 8, which
    has a higher term than what was written since."""
    path, backup = tmp_path / "log", tmp_path / "backup"
    assert append(path, 1, 2)[-1] == 2
    shutil.copytree(path, backup)
    # Three more leaders.
    append(path, 3)
    append(path, 4)
    assert append(path, 5, 6)[-1] == 9
    left = record(path, 8).read_bytes()
    shutil.rmtree(path)
    shutil.copytree(backup, path)
    assert append(path, 3, 4, 5, 6)[-1] == 7
    record(path, 8).write_bytes(left)
    return path


def test_a_record_of_a_former_history_is_no_part_of_the_log(path: Path) -> None:
    with pytest.raises(InvalidLogError, match="does not follow the record before it") as caught:
        values(path)
    assert caught.value.position == 8
    assert values(path, onCorruption="stop") == [1, 2, 3, 4, 5, 6]
    assert values(path, endingPosition=7) == [1, 2, 3, 4, 5, 6]
    replay = Log(str(path)).replay()
    rows = [value for entry in replay for b in entry.rows for value in b.column("v").to_pylist()]
    assert rows == [1, 2, 3, 4, 5, 6]
    assert replay.stopped is not None and replay.stopped.position == 8


@pytest.mark.parametrize("always", [False, True])
def test_rows_that_do_not_match_their_crc_are_read_twice(
    path: Path, monkeypatch: pytest.MonkeyPatch, always: bool
) -> None:
    log = LogStore(LocalStore(path), "")
    slot = read_slot(log, 7, 1000)
    assert slot is not None
    pieces = pieces_of(log, replace(slot, front=b""))
    read, asked = LocalStore.get_range, list[str]()

    def flipped(self: LocalStore, key: str, offset: int, length: int) -> bytes:
        found = bytearray(read(self, key, offset, length))
        found[len(found) // 2] ^= always or not asked
        asked.append(key)
        return bytes(found)

    heard: list[Event] = []
    stop = events.subscribe(heard.append)
    monkeypatch.setattr(LocalStore, "get_range", flipped)
    try:
        if always:
            with pytest.raises(InvalidLogError, match="CRC-32"):
                list(read_pieces(log, pieces, SCHEMA))
        else:
            (batch,) = read_pieces(log, pieces, SCHEMA)
            assert batch.column("v").to_pylist() == [6]
    finally:
        stop()
    assert len(asked) == 2
    assert always != any(isinstance(each, events.OtherBytes) for each in heard)
