"""Which rows a damaged file of a journal still gives."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparkwal import Appender
from sparkwal.appender.batches import CheckedRows
from sparkwal.appender.journal_intake import JournalIntake
from sparkwal.appender.rows import RowSchema
from sparkwal.appender.salvage import intact_rows
from sparkwal.errors import FencedError, JournalReadError, OptionError
from sparkwal.journal.files import ACCEPTED
from sparkwal.journal.open_segments import Segments
from tests.appender.away import OutageStore
from tests.appender.faulty_store import stored
from tests.journal.disk import MemoryFolder
from tests.logs import rows

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


def hurt(folder: MemoryFolder, *values: int) -> MemoryFolder:
    """The folder as a dead process left it, with the entries of these rows damaged."""
    left = folder.after_kill()
    for value in values:
        needle = struct.pack("<q", value)
        (name,) = [n for n in left.names() if n.endswith(".wal") and needle in left.bytes_of(n)]
        # A value lies at a multiple of 8. The end of a CRC and a sequence look like it elsewhere.
        words = re.findall(rb"(?s).{8}|.+", left.bytes_of(name))
        left.put(name, b"".join(bytes(8) if word == needle else word for word in words))
    return left


def unsent(faulty: OutageStore, folder: MemoryFolder, *values: int) -> MemoryFolder:
    """Append rows in an outage. Returns the journal's folder after the process died."""
    wal = faulty.journaled(folder)
    faulty.is_away = True
    for value in values:
        wal.append(rows(value))
    left = folder.after_kill()
    wal.close(timeout=30)
    faulty.is_away = False
    return left


def test_lost_rows_are_resent_from_quarantine() -> None:
    faulty = OutageStore()
    left = hurt(unsent(faulty, MemoryFolder(), *range(1000, 1006)), 1002, 1004)
    asked: list[int] = []

    def unreadable(sequence: int) -> list[dict[str, Any]]:
        asked.append(sequence)
        return rows(2000 + sequence) if sequence == 2 else []

    with faulty.journaled(left) as wal:
        (incident,) = wal.incidents()
        assert (incident.lost, incident.waiting) == (range(2, 6), range(2, 6))
        assert incident.held == [3, 5] and "CRC" in incident.reason
        (file,) = incident.files
        assert file.startswith(f"{left.path}/quarantine/")
        assert wal.resend_lost(unreadable) == [2, 4] == asked
        assert wal.append(rows(3000)).sequence == 6
        assert wal.resend_lost(unreadable) == []
        assert [each.waiting for each in wal.incidents()] == [range(0)]
    assert stored(faulty.inner) == [1000, 1001, 2002, 1003, 1005, 3000]


def test_a_resend_that_a_crash_interrupted_is_finished_by_the_next_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faulty = OutageStore()
    left = hurt(unsent(faulty, MemoryFolder(), *range(1000, 1006)), 1001)

    class Died(Exception):
        pass

    def dies(sequence: int) -> list[dict[str, Any]]:
        raise Died

    with faulty.journaled(left) as wal:
        with pytest.raises(Died):
            wal.resend_lost(dies)
        append, calls = JournalIntake.append, []

        def fourth(intake: JournalIntake, accepted: CheckedRows, *, block: bool) -> Any:
            calls.append(1)
            if len(calls) == 4:
                raise Died
            return append(intake, accepted, block=block)

        with monkeypatch.context() as patch:
            patch.setattr(JournalIntake, "append", fourth)
            with pytest.raises(Died):
                wal.resend_lost(lambda sequence: rows(1000 + sequence))
        assert wal.lost == range(4, 6)
    with faulty.journaled(left.after_kill()) as again:
        assert again.lost == range(4, 6)
        assert again.resend_lost(dies) == []
    assert stored(faulty.inner) == list(range(1000, 1006))


def test_a_second_damage_gets_none_of_the_rows_that_the_first_left() -> None:
    """The first's lost sequences went to other rows."""
    faulty = OutageStore()
    left = hurt(unsent(faulty, MemoryFolder(), *range(1000, 1004)), 1002)
    left = hurt(unsent(faulty, left, 7001, 7002), 7001)
    with faulty.journaled(left) as wal:
        assert [each.lost for each in wal.incidents()] == [range(2, 4), range(2, 4)]
        assert [each.held for each in wal.incidents()] == [[3], [3]]
        assert [each.waiting for each in wal.incidents()] == [range(0), range(2, 4)]
        assert wal.resend_lost(lambda sequence: []) == [2]
    assert stored(faulty.inner) == [1000, 1001, 7002]


def test_another_append_during_a_resend_raises() -> None:
    faulty = OutageStore()
    left = hurt(unsent(faulty, MemoryFolder(), *range(1000, 1004)), 1001)
    with faulty.journaled(left) as wal:

        def appends(sequence: int) -> list[dict[str, Any]]:
            wal.append(rows(1))
            return []

        with pytest.raises(OptionError, match="append 2 was lost .* 2 was appended meanwhile"):
            wal.resend_lost(appends)


@pytest.mark.parametrize("error", [ConnectionResetError, TimeoutError, FileNotFoundError])
def test_an_error_of_the_users_function_is_not_reported_as_a_disk_error(
    error: type[Exception],
) -> None:
    faulty = OutageStore()
    left = hurt(unsent(faulty, MemoryFolder(), *range(1000, 1004)), 1002)

    def fails(sequence: int) -> list[dict[str, Any]]:
        raise error("the broker does not answer")

    with faulty.journaled(left) as wal:
        with pytest.raises(error, match="the broker does not answer"):
            wal.resend_lost(fails)
        assert wal.resend_lost(lambda sequence: rows(1002)) == [2]
    assert stored(faulty.inner) == [1000, 1001, 1002, 1003]


def test_a_file_in_quarantine_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    faulty = OutageStore()
    left = hurt(unsent(faulty, MemoryFolder(), *range(1000, 1004)), 1002)
    with faulty.journaled(left) as wal:
        ((file,),) = (each.files for each in wal.incidents())
        with monkeypatch.context() as patched:

            def fails(name: str) -> Any:
                raise OSError(errno.EIO, "the disk is bad")

            patched.setattr(left, "read", fails)
            for ask in (wal.incidents, lambda: wal.resend_lost(lambda sequence: [])):
                with pytest.raises(JournalReadError, match=f"^{file} cannot be read .*disk is bad"):
                    ask()
        assert wal.resend_lost(lambda sequence: []) == [2]
    assert stored(faulty.inner) == [1000, 1001, 1003]


def unmarked(folder: MemoryFolder) -> MemoryFolder:
    """The folder as a dead process left it, without its mark."""
    left = folder.after_kill()
    left.remove(ACCEPTED)
    return left


def test_an_unknown_number_of_lost_appends_is_asked_for_until_the_answer_is_empty() -> None:
    faulty = OutageStore()
    left = hurt(unmarked(unsent(faulty, MemoryFolder(), *range(1000, 1006))), 1003, 1004, 1005)
    asked: list[int] = []

    def unreadable(sequence: int) -> list[dict[str, Any]]:
        asked.append(sequence)
        return rows(1000 + sequence) if sequence < 6 else []

    with faulty.journaled(left) as wal:
        assert wal.lost.start == 3 and set(range(3, 6)) < set(wal.lost)
        (incident,) = wal.incidents()
        assert incident.lost == incident.waiting == wal.lost
        assert incident.unknown == range(4, wal.lost.stop)
        assert "the number of accepted entries is unknown" in incident.reason
        assert wal.resend_lost(unreadable) == [3, 4, 5, 6] == asked
        assert not wal.lost and wal.resend_lost(unreadable) == []
        assert wal.append(rows(3000)).sequence == 6
    assert stored(faulty.inner) == [1000, 1001, 1002, 1003, 1004, 1005, 3000]
    with faulty.journaled(left.after_kill()) as again:
        assert not again.lost


def test_an_empty_answer_gives_up_an_unknown_number_of_appends() -> None:
    faulty = OutageStore()
    left = unmarked(unsent(faulty, MemoryFolder(), 1000, 1001))
    with faulty.journaled(left) as wal:
        assert wal.resend_lost(lambda sequence: []) == [2]
        assert wal.append(rows(3000)).sequence == 2
    assert stored(faulty.inner) == [1000, 1001, 3000]


def test_without_a_journal_nothing_is_lost() -> None:
    with OutageStore().appender() as wal:
        assert wal.resend_lost(lambda sequence: []) == [] == wal.incidents()


def test_a_file_without_a_readable_header_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.wal").write_bytes(b"x" * 100)
    with pytest.raises(JournalReadError, match="x.wal cannot be read: it does not begin"):
        list(intact_rows(tmp_path / "x.wal"))
    with pytest.raises(JournalReadError, match="No such file"):
        list(intact_rows(tmp_path / "none.wal"))


def test_entries_of_another_schema_are_refused_by_column() -> None:
    content = memoryview(pa.record_batch([[1], ["x"]], schema=SCHEMA).serialize())
    kept = SCHEMA.serialize().to_pybytes()
    other = RowSchema(pa.schema([("v", pa.string()), ("s", pa.string())]))
    with pytest.raises(OptionError, match="column 'v' is int64 here, and string in the schema"):
        other.restore(content, kept)
    with pytest.raises(OptionError, match="column 's' is not in the schema any more"):
        RowSchema(SCHEMA.remove(1)).restore(content, kept)
    wider = RowSchema(pa.schema([*SCHEMA, ("later", pa.date32())]))
    (found, *_) = wider.restore(content, kept)
    assert found.to_pylist() == [{"v": 1, "s": "x", "later": None}]


def test_entries_before_an_unreadable_one_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faulty = OutageStore()
    left = unsent(faulty, MemoryFolder(), *range(1000, 1010))
    read = Segments.read

    def fails(self: Segments, sequence: int) -> tuple[memoryview, bytes]:
        if sequence == 5:
            raise JournalReadError("damaged meanwhile")
        return read(self, sequence)

    monkeypatch.setattr(Segments, "read", fails)
    with pytest.raises(JournalReadError), faulty.journaled(left, batchSizeThreshold="1mb") as wal:
        wal.flush(30)
    assert stored(faulty.inner) == [1000, 1001, 1002, 1003, 1004]
