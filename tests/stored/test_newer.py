"""What a newer version wrote is refused by an error that names both versions, and stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from isal.isal_zlib import crc32

import sparkwal
from sparkwal.checkpoints import carry, folder, names, packing
from sparkwal.errors import InvalidLogError, NewerFormatError
from sparkwal.format import (
    arrowfile,
    consumer_record,
    header,
    keys,
    lifecycle_record,
    versions,
)
from sparkwal.format.header import QueryProgress
from sparkwal.format.lifecycle_record import ChainRecord
from sparkwal.journal import files
from sparkwal.protocol import archive
from sparkwal.protocol.hint import Hints, Planned
from sparkwal.protocol.holds import Holds
from sparkwal.reading.replaying import progress_of
from tests.consumers import consumer
from tests.headers import LEADER, plain
from tests.stored.writing import SCHEMA, rows

REFUSED = r"format {}, and this sparkwal reads up to {}: a newer sparkwal wrote this {}.*Upgrade"


def newer(text: bytes, version: int = 2) -> bytes:
    """A document of a newer version."""
    return json.dumps({**json.loads(text), "format": version}).encode()


def with_header(body: bytes, version: int = 2) -> bytes:
    """An Arrow file without rows, with the header of a newer version."""
    schema = pa.ipc.open_file(body).schema
    metadata = dict(schema.metadata)
    text = newer(metadata[header.HEADER_KEY], version)
    metadata |= {header.HEADER_KEY: text, header.CRC_KEY: header.crc_hex(text)}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema.with_metadata(metadata)):
        pass
    return bytes(sink.getvalue())


def of_consumer(body: bytes) -> bytes:
    text = newer(body.splitlines()[0])
    return text + b"\n" + header.crc_hex(text) + b"\n"


CONSUMER = consumer("c", 1)
CHAIN = ChainRecord(kind="floor", number=keys.MAX, record_id="r", gc_grace_ms=3_600_000)
BLOCK = b'{"format": "3", "offsets/0": "v1"}'
CURSOR = {"format": 3, "crc32": crc32(b"{}"), "logs": "{}"}
# For each kind: reads what a newer version wrote.
OBJECTS: dict[str, Callable[[], Any]] = {
    versions.LOG: lambda: arrowfile.open_front(with_header(plain(LEADER)), "here"),
    versions.LIFECYCLE: lambda: lifecycle_record.decode(
        with_header(lifecycle_record.encode(CHAIN), 4), "here"
    ),
    versions.CONSUMER: lambda: consumer_record.decode(
        of_consumer(consumer_record.encode(CONSUMER, "default")), "here", "default"
    ),
    "consumer of all logs": lambda: consumer_record.decode(
        of_consumer(consumer_record.encode(CONSUMER, None)), "here", None
    ),
    versions.ARCHIVE: lambda: archive.decode(newer(archive.encode(QueryProgress({}, {}))), "here"),
    versions.CHECKPOINT: lambda: packing.decode(pa.compress(BLOCK, "zstd", asbytes=True), "here"),
    versions.CURSOR: lambda: progress_of(json.dumps(CURSOR)),
    versions.JOURNAL: lambda: files.read_note(
        files.CURSOR, newer(files.note_of(files.CURSOR, {})), files.CURSORS
    ),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_a_newer_object_is_refused(kind: str) -> None:
    name = kind.split()[0]
    reads = versions.VERSIONS[name]
    with pytest.raises(NewerFormatError, match=REFUSED.format(reads + 1, reads, name)):
        OBJECTS[kind]()


def note(path: Path, text: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**text, "format": 2}))
    return path


def test_newer_notes_on_the_drivers_disk_are_refused(tmp_path: Path) -> None:
    refused = REFUSED.format(2, 1, "note")
    note(tmp_path / names.OWNER, {"log": "l", "log_id": "i", "name": "n", "later": 1})
    with pytest.raises(NewerFormatError, match=refused):
        folder.owner_of(tmp_path)
    note(tmp_path / names.LOG, {"log_id": "i"})
    with pytest.raises(NewerFormatError, match=refused):
        carry.log_of(tmp_path)
    note(tmp_path / names.EMPTY, {})
    with pytest.raises(NewerFormatError, match=refused):
        folder.done(tmp_path, 3, None)
    holds = Holds(tmp_path)
    holds.set("checkpoint", {"log": [(0, 1)]})
    (file,) = (tmp_path / "holds").iterdir()
    note(file, {"spans": [[0, 1]]})
    with pytest.raises(NewerFormatError, match=refused):
        holds.lowest("log", 1)


def test_a_newer_hint_is_no_missing_hint(tmp_path: Path) -> None:
    """It may be the note of a takeover: a leader that ignored it would take its log back."""
    hints = Hints("log", tmp_path / "hints")
    assert hints.save("leader", Planned("leader", "plan"))
    (file,) = hints.folder.iterdir()
    text = json.loads(file.read_bytes())
    file.write_text(json.dumps({**text, "version": text["version"] + 1, "state": "later"}))
    reads = versions.VERSIONS[versions.HINT]
    with pytest.raises(NewerFormatError, match=REFUSED.format(reads + 1, reads, "hint")):
        hints.load("leader")
    file.write_text(json.dumps({**text, "version": 6}))
    assert hints.load("leader") is None


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log whose last record a newer version wrote."""
    path = tmp_path / "log"
    with sparkwal.Appender(str(path), SCHEMA, producer_id="p", maxInFlightRequests=1) as wal:
        wal.append(rows(1)).result()
    with sparkwal.Appender(str(path), SCHEMA, producer_id="p", maxInFlightRequests=1):
        pass
    record = path / keys.key("", keys.slot(2, 1000))
    record.write_bytes(with_header(record.read_bytes()))
    return path


@pytest.mark.parametrize(
    "options",
    [{}, {"onCorruption": "stop"}, {"failOnDataLoss": False}, {"endingPosition": 1}],
    ids=str,
)
def test_no_read_ends_silently_before_a_newer_record(log: Path, options: dict[str, Any]) -> None:
    with pytest.raises(NewerFormatError, match="format 2"):
        sparkwal.Log(str(log), **options).scan().read_all()


def test_no_writer_and_no_repair_changes_a_log_with_a_newer_record(log: Path) -> None:
    before = {file: file.read_bytes() for file in log.rglob("*") if file.is_file()}
    with pytest.raises(NewerFormatError):
        sparkwal.Appender(str(log), SCHEMA, producer_id="p")
    with pytest.raises(NewerFormatError):
        sparkwal.Lifecycle(str(log), retainSeconds=0).run_once()
    for give_up in (False, True):
        with pytest.raises(NewerFormatError):
            sparkwal.repair(str(log), 2, give_up=give_up)
    assert {file: file.read_bytes() for file in log.rglob("*") if file.is_file()} == before
    (problem,) = {*sparkwal.verify(str(log)).problems}
    assert "a newer sparkwal wrote this log" in problem


def test_what_is_no_version_is_damage() -> None:
    for found in (None, True, "1", 0, 1.5):
        with pytest.raises(InvalidLogError) as raised:
            versions.check(versions.LOG, found, "here")
        assert not isinstance(raised.value, NewerFormatError)
