"""The contract of a journal's folder, on the disk and in memory."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sparkwal.errors import JournalFolderSyncError, JournalSyncError
from sparkwal.journal import disk
from sparkwal.journal.disk import DiskFolder
from sparkwal.journal.storage import QUARANTINE, Folder, Handle, sync_folder
from tests.journal.disk import MemoryFolder
from tests.journal.stand import data


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    opened: Folder = DiskFolder(tmp_path / "journal") if request.param == "disk" else MemoryFolder()
    yield opened
    opened.close()


def put(folder: Folder, name: str, content: bytes) -> None:
    with closing(Handle(folder.create(name), name)) as file:
        file.writer.append([content])
        file.sync()


def names(folder: Folder) -> list[str]:
    return [name for name in folder.names() if name != "lock"]


def test_appends_are_written_one_after_another(folder: Folder) -> None:
    file = folder.create("a")
    assert (file.append([b"one", b"", memoryview(b"two")]), file.size) == (0, 6)
    assert (file.append([b"three"]), file.size) == (6, 11)
    assert (file.append([b""]), file.size) == (11, 11)
    file.sync()
    file.close()
    assert data(folder, "a") == b"onetwothree"


def test_many_parts_and_large_ones_are_written_whole(folder: Folder) -> None:
    parts = [bytes([count % 251]) * (count * 997) for count in range(60)]
    file = folder.create("a")
    for begin in range(0, 60, 3):
        file.append(parts[begin : begin + 3])
    file.close()
    assert data(folder, "a") == b"".join(parts)


def test_an_early_write_back_by_the_disk_changes_no_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "_WRITE_BEHIND_BYTES", 10_000)
    folder = DiskFolder(tmp_path)
    writer = folder.create("a")
    parts = [bytes([number]) * 3_001 for number in range(20)]
    for number, part in enumerate(parts):
        writer.append([part])
        if number % 7 == 0:
            writer.sync()
    writer.truncate(30_000)
    writer.append([b"end" * 10_000])
    assert data(folder, "a") == b"".join(parts)[:30_000] + b"end" * 10_000
    writer.close()
    folder.close()


def test_writing_to_an_existing_file_begins_at_its_end(folder: Folder) -> None:
    put(folder, "a", b"before")
    file = folder.open("a")
    assert file.size == 6
    assert file.append([b" after"]) == 6
    file.close()
    assert data(folder, "a") == b"before after"


def test_writing_within_a_file_changes_neither_its_length_nor_the_next_append(
    folder: Folder,
) -> None:
    put(folder, "a", b"0123456789")
    file = folder.open("a")
    file.write_at(2, b"xyz")
    file.write_at(0, memoryview(b"!"))
    assert file.append([b"+"]) == 10
    file.close()
    assert data(folder, "a") == b"!1xyz56789+"


def test_writing_beyond_the_end_fills_with_zeros(folder: Folder) -> None:
    file = folder.create("a")
    file.write_at(4, b"x")
    file.close()
    assert data(folder, "a") == b"\0\0\0\0x"


def test_writing_to_a_truncated_file_begins_at_the_cut(folder: Folder) -> None:
    put(folder, "a", b"0123456789")
    file = folder.open("a")
    file.truncate(4)
    assert file.size == 4
    assert file.append([b"x"]) == 4
    file.sync()
    file.close()
    assert data(folder, "a") == b"0123x"


def test_a_read_is_short_where_the_file_ends(folder: Folder) -> None:
    put(folder, "a", b"0123456789")
    reader = folder.read("a")
    assert reader.size == 10
    assert reader.read_at(3, 4) == b"3456"
    assert reader.read_at(8, 4) == b"89"
    assert reader.read_at(10, 4) == reader.read_at(99, 4) == b""
    assert reader.read_at(0, 0) == b""
    reader.close()


def test_a_reader_sees_what_was_appended_since(folder: Folder) -> None:
    file = folder.create("a")
    reader = folder.read("a")
    assert reader.size == 0
    file.append([b"later"])
    assert (reader.size, reader.read_at(0, 9)) == (5, b"later")
    reader.close()
    file.close()


def test_a_reader_keeps_a_file_that_was_replaced_or_removed(folder: Folder) -> None:
    put(folder, "a", b"old")
    put(folder, "b", b"new")
    reader = folder.read("a")
    folder.rename("b", "a")
    assert reader.read_at(0, 9) == b"old"
    assert data(folder, "a") == b"new"
    folder.remove("a")
    assert reader.read_at(0, 9) == b"old"
    reader.close()
    assert names(folder) == []


def test_a_writer_continues_in_a_renamed_file(folder: Folder) -> None:
    file = folder.create("a")
    file.append([b"before"])
    folder.rename("a", "b")
    file.append([b" after"])
    file.close()
    assert names(folder) == ["b"]
    assert data(folder, "b") == b"before after"


def test_creating_an_existing_file_raises(folder: Folder) -> None:
    put(folder, "a", b"x")
    with pytest.raises(FileExistsError):
        folder.create("a")
    assert data(folder, "a") == b"x"


def test_a_missing_file_raises_file_not_found(folder: Folder) -> None:
    for call in (folder.open, folder.read, folder.remove):
        with pytest.raises(FileNotFoundError):
            call("a")
    with pytest.raises(FileNotFoundError):
        folder.rename("a", "b")


def test_quarantine_is_listed_after_the_others(folder: Folder) -> None:
    for name in ("b", "a", "z"):
        put(folder, name, name.encode())
    folder.rename("a", f"{QUARANTINE}/a")
    folder.rename("z", f"{QUARANTINE}/0")
    folder.sync()
    assert names(folder) == ["b", f"{QUARANTINE}/0", f"{QUARANTINE}/a"]
    assert data(folder, f"{QUARANTINE}/a") == b"a"


def test_a_second_close_does_nothing(folder: Folder) -> None:
    file = folder.create("a")
    reader = folder.read("a")
    for handle in (file, reader):
        handle.close()
        handle.close()
    assert names(folder) == ["a"]
    folder.close()
    folder.close()


def test_a_folder_in_the_place_of_a_file_is_listed_and_cannot_be_read(tmp_path: Path) -> None:
    folder = DiskFolder(tmp_path)
    (tmp_path / "a").mkdir()
    assert names(folder) == ["a"]
    with pytest.raises(IsADirectoryError, match="/a'"):
        folder.read("a")
    folder.close()


class Failing:
    """A writer whose first sync fails, and whose later ones say that all is well."""

    size = 0

    def __init__(self) -> None:
        self.syncs = self.others = 0

    def append(self, parts: object) -> int:
        self.others += 1
        return 0

    def write_at(self, offset: int, data: object) -> None:
        self.others += 1

    def truncate(self, size: int) -> None:
        self.others += 1

    def sync(self) -> None:
        self.syncs += 1
        if self.syncs == 1:
            raise OSError(errno.EIO, "Input/output error")

    def close(self) -> None: ...


def test_a_handle_is_of_no_use_after_a_failed_sync() -> None:
    file = Failing()
    handle = Handle(file, "a")
    handle.writer.append([b"x"])
    with pytest.raises(JournalSyncError, match="open the journal again") as first:
        handle.sync()
    assert isinstance(first.value.__cause__, OSError)
    for call in (
        handle.sync,
        lambda: handle.writer.append([b"x"]),
        lambda: handle.writer.write_at(0, b"x"),
        lambda: handle.writer.truncate(0),
    ):
        with pytest.raises(JournalSyncError, match="open it again"):
            call()
    assert (file.syncs, file.others) == (1, 1)


def test_a_failed_sync_of_the_folder_names_the_folder() -> None:
    folder = MemoryFolder()
    folder.faults["sync_folder"] = [errno.EIO]
    with pytest.raises(JournalFolderSyncError) as wrong:
        sync_folder(folder)
    assert (wrong.value.stage, wrong.value.retryable) == ("sync of the folder", False)
