"""What is read of a damaged file of a journal."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from sparkwal import Appender
from sparkwal.appender.salvage import intact_rows
from sparkwal.errors import FencedError, JournalReadError

SCHEMA = pa.schema([("v", pa.int64()), ("s", pa.string())])


def segment_of(path: Path, appends: int) -> Path:
    """The only file of a journal whose log has none of these appends."""
    wal = Appender(str(path / "wal"), SCHEMA, producer_id="p", journal=str(path / "journal"))
    with Appender(str(path / "wal"), SCHEMA, producer_id="other"):
        tickets = [wal.append([{"v": n, "s": "x" * n}] * 2) for n in range(appends)]
        with pytest.raises(FencedError):
            tickets[-1].result()
    wal.close()
    (segment,) = (path / "journal").glob("*.wal")
    return segment


def test_all_but_the_damaged_entry_is_read_from_quarantine(tmp_path: Path) -> None:
    segment = segment_of(tmp_path, 5)
    data = bytearray(segment.read_bytes())
    data[[found.start() for found in re.finditer(rb"\x89wJe", data)][2] + 40] ^= 1
    segment.write_bytes(data)
    with Appender(
        str(tmp_path / "wal"), SCHEMA, producer_id="p", journal=str(tmp_path / "journal")
    ) as wal:
        assert wal.lost == range(2, 5)
    (aside,) = (tmp_path / "journal" / "quarantine").iterdir()
    before = aside.read_bytes()
    found = [(sequence, rows.to_pylist()) for sequence, rows in intact_rows(aside)]
    assert found == [(n, [{"v": n, "s": "x" * n}] * 2) for n in (0, 1, 3, 4)]
    assert aside.read_bytes() == before == bytes(data)


def test_a_file_that_tells_nothing_of_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.wal").write_bytes(b"x" * 100)
    with pytest.raises(JournalReadError, match="x.wal cannot be read: it does not begin"):
        list(intact_rows(tmp_path / "x.wal"))
    with pytest.raises(JournalReadError, match="No such file"):
        list(intact_rows(tmp_path / "none.wal"))
