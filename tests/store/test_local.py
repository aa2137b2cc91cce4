"""The local disk: crashes, permissions, and races between processes."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest

from sparkwal.appender.appender import Appender
from sparkwal.errors import OptionError, StoreUnavailableError
from sparkwal.format import keys
from sparkwal.store import local
from sparkwal.store.base import Entry, NotFound, Transient, Unfinished, all_entries
from sparkwal.store.local import LocalStore
from sparkwal.store.local_files import keys_after


def files(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


@pytest.mark.process
def test_a_key_that_the_locale_cannot_encode_is_an_error_with_advice(tmp_path: Path) -> None:
    code = "from pathlib import Path; from sparkwal.store.local import LocalStore; import sys\n"
    code += "LocalStore(Path(sys.argv[1])).put_if_absent('caf\\u00e9', b'x')"
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code, str(tmp_path)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert "OptionError: put of 'caf\\xe9'" in ended.stderr and "LANG=C.UTF-8" in ended.stderr


def test_leftovers_of_a_crash_are_no_objects(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    upload = store.upload("batches/1")
    upload.part(1, 0, b"half of it")
    del upload  # killed here
    assert len(files(tmp_path)) == 1
    after = LocalStore(tmp_path)
    assert after.list("").entries == []
    assert after.list(".t").entries == []
    with pytest.raises(OptionError):
        after.list(".tmp/")
    assert after.put_if_absent("batches/1", b"x")
    assert after.list("").entries == [Entry("batches/1", 1)]


def test_a_put_leaves_only_the_object(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put_if_absent("a/b", b"1")
    store.put_if_absent("a/b", b"2")
    upload = store.upload("a/c")
    upload.part(1, 0, b"x")
    upload.complete()
    upload = store.upload("a/c")
    upload.part(1, 0, b"y")
    assert not upload.complete()
    upload = store.upload("a/d")
    upload.part(1, 0, b"y")
    upload.abort()
    assert files(tmp_path) == ["a/b", "a/c"]
    assert store.get("a/c") == b"x"


def test_reading_creates_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "none")
    assert store.list("batches/").entries == []
    with pytest.raises(NotFound):
        store.get("batches/1")
    store.delete("batches/1")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("below", ["", "deep/log"])
def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = LocalStore(tmp_path / "file" / below)
    for act in (
        lambda: store.put_if_absent("k", b""),
        lambda: store.get("k"),
        lambda: store.list("a/"),
        lambda: store.upload("k").part(1, 0, b"x"),
    ):
        with pytest.raises(OptionError, match="a file is in the way"):
            act()


def test_folder_is_no_object(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put_if_absent("a/b", b"")
    with pytest.raises(NotFound):
        store.get("a")
    with pytest.raises(NotFound):
        store.get("a/b/c")
    assert store.list("a/b/").entries == []


@pytest.mark.parametrize("key", ["../x", "a/../../x", "/etc/x", "a//b", "", ".", ".tmp/x", "a\0b"])
def test_keys_stay_inside(tmp_path: Path, key: str) -> None:
    with pytest.raises(OptionError):
        LocalStore(tmp_path / "log").put_if_absent(key, b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OptionError, match="no permission"):
        LocalStore(tmp_path / "log").put_if_absent("k", b"")


@pytest.mark.parametrize(
    ("call", "number", "kind", "expected_message"),
    [
        ("pwrite", errno.ENOSPC, StoreUnavailableError, "disk full"),
        ("pwrite", errno.EDQUOT, StoreUnavailableError, "disk full"),
        ("fsync", errno.ENOSPC, StoreUnavailableError, "disk full"),
        ("pwrite", errno.EIO, StoreUnavailableError, "check the disk"),
        ("open", errno.EROFS, OptionError, "read-only or no permission"),
        ("open", errno.EACCES, OptionError, "read-only or no permission"),
        ("link", errno.EACCES, OptionError, "read-only or no permission"),
        ("link", errno.EPERM, OptionError, "hard links"),
        ("link", errno.EOPNOTSUPP, OptionError, "hard links"),
        ("open", errno.EMFILE, Transient, "Too many open files"),
    ],
)
def test_an_error_of_the_system_has_advice(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    number: int,
    kind: type[Exception],
    expected_message: str,
) -> None:
    store = LocalStore(tmp_path)
    store.put_if_absent("there", b"")

    def failing(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing)
        with pytest.raises(kind, match=expected_message) as caught:
            store.put_if_absent("k", b"body")
    assert not getattr(caught.value, "maybe_applied", False) or number == errno.EIO
    assert files(tmp_path) == ["there"]
    assert store.put_if_absent("k", b"body")


def test_failed_sync_after_the_link_is_not_called_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.put_if_absent("a/there", b"")
    real = os.fsync

    def failing(descriptor: int) -> None:
        if (tmp_path / "a" / "k").exists():
            raise OSError(errno.EIO, "EIO")
        real(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing)
        with pytest.raises(StoreUnavailableError) as caught:
            store.put_if_absent("a/k", b"")
    assert caught.value.maybe_applied


def test_object_is_synced_before_it_appears_and_its_folders_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    real_fsync, real_link = os.fsync, os.link

    def fsync(descriptor: int) -> None:
        calls.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real_fsync(descriptor)

    def link(source: Path, target: Path) -> None:
        calls.append("link")
        real_link(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    root = tmp_path / "new" / "log"
    store = LocalStore(root)
    store.put_if_absent("batches/1", b"x")
    before, after = calls[: calls.index("link")], calls[calls.index("link") + 1 :]
    assert before[-1].startswith(str(root / ".tmp"))
    assert {str(tmp_path), str(tmp_path / "new"), str(root)} <= set(before)
    assert after == [str(root / "batches")]
    calls.clear()
    assert not store.put_if_absent("batches/1", b"y")
    # Taken, but perhaps by a writer that died before its sync.
    assert calls[-1] == str(root / "batches")
    assert len(calls) == 3


def test_sync_can_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", None)
    assert LocalStore(tmp_path, fsync=False).put_if_absent("k", b"")


def test_a_folder_removed_under_a_writer_is_created_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put_if_absent("batches/1", b"x")
    shutil.rmtree(tmp_path / "batches")  # as rm -rf log/* does, which leaves .tmp
    assert store.put_if_absent("batches/1", b"y")
    assert store.get("batches/1") == b"y"


def test_a_log_removed_under_a_writer_is_created_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "log")
    store.put_if_absent("batches/1", b"")
    os.unlink(tmp_path / "log/batches/1")
    os.rmdir(tmp_path / "log/batches")
    os.rmdir(tmp_path / "log/.tmp")
    os.rmdir(tmp_path / "log")
    assert store.put_if_absent("batches/2", b"")
    assert store.list("").entries == [Entry("batches/2", 0)]


def test_folders_that_another_process_removed_are_created_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "log")
    assert store.put_if_absent("lifecycle/0", b"old")
    shutil.rmtree(tmp_path / "log")
    assert LocalStore(tmp_path / "log").put_if_absent("batches/0", b"new")
    assert store.put_if_absent("lifecycle/0", b"new")


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:3], at))
    store = LocalStore(tmp_path)
    store.put_if_absent("k", b"0123456789")
    assert store.get("k") == b"0123456789"


def test_a_list_of_a_large_folder_shows_its_first_keys(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, fsync=False)
    store.put_if_absent("b/00000", b"x")
    for number in range(1, 20_000):
        os.link(tmp_path / "b/00000", tmp_path / f"b/{number * 7919 % 20_000:05d}")
    assert [e.key for e in store.list("b/").entries] == [f"b/{n:05d}" for n in range(1000)]
    assert [e.key for e in store.list("b/1234", 5).entries] == [f"b/1234{n}" for n in range(5)]


@pytest.mark.parametrize("gone", [3, 5, 6])
def test_a_delete_during_a_list_hides_no_later_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: int
) -> None:
    store = LocalStore(tmp_path, fsync=False)
    keys = [f"b/{number:02d}" for number in range(12)]
    for key in keys:
        store.put(key, b"x")

    def deleted_since(*asked: Any) -> Iterator[str]:
        found = list(keys_after(*asked))
        for key in keys[:gone]:
            store.delete(key)
        yield from found

    monkeypatch.setattr(local, "keys_after", deleted_since)
    page = store.list("b/", 5)
    assert page.more
    there = keys[3:5] if gone == 3 else keys[gone : gone + 5]
    assert [entry.key for entry in page.entries] == there
    assert [entry.key for entry in all_entries(store, "b/")] == keys[gone:]


def _race(root: Path, barrier: Barrier, number: int) -> bool:
    store = LocalStore(root)
    barrier.wait()
    return store.put_if_absent("batches/slot", b"%d" % number * 1000)


def _racer(root: Path, barrier: Barrier, number: int) -> None:
    os._exit(int(_race(root, barrier, number)))


@pytest.mark.process
def test_one_of_eight_processes_creates_the_object(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(8)
    racers = [context.Process(target=_racer, args=(tmp_path / "log", barrier, n)) for n in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    won = [racer.exitcode for racer in racers]
    assert sorted(won) == [0] * 7 + [1]  # type: ignore[type-var]
    assert LocalStore(tmp_path / "log").get("batches/slot") == b"%d" % won.index(1) * 1000
    assert files(tmp_path / "log") == ["batches/slot"]


def test_a_put_is_synced_before_it_replaces_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.put("consumers/one", b"old")
    calls: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        calls.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real_fsync(descriptor)

    def replace(source: Path, target: Path) -> None:
        calls.append("replace")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    store.put("consumers/one", b"new")
    assert calls[0].startswith(str(tmp_path / ".tmp"))
    assert calls[1:] == ["replace", str(tmp_path / "consumers")]
    assert store.get("consumers/one") == b"new"
    assert files(tmp_path) == ["consumers/one"]


def test_a_put_that_fails_leaves_the_old_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.put("k", b"old")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(StoreUnavailableError, match="disk full"):
            store.put("k", b"new")
    assert store.get("k") == b"old"
    assert files(tmp_path) == ["k"]


def test_each_folder_of_the_deleted_is_synced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    keys = ["a/1", "a/2", "b/1", "c"]
    for key in keys:
        store.put(key, b"x")
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    )
    store.delete_many([*keys, "a/absent", "no/folder"])
    assert synced == [str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path)]
    assert files(tmp_path) == []


def test_a_file_that_may_not_be_deleted_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    real = Path.unlink

    def refusing(path: Path, missing_ok: bool = False) -> None:
        if path.name == "2":
            raise PermissionError(errno.EPERM, "not allowed")
        real(path, missing_ok)

    for key in ("a/1", "a/2", "a/3"):
        store.put(key, b"x")
    monkeypatch.setattr(Path, "unlink", refusing)
    with pytest.raises(OptionError, match="delete of a/2"):
        store.delete_many(["a/1", "a/2", "a/3"])
    with pytest.raises(OptionError, match="cannot be the name of an object"):
        store.delete_many(["a/3", "../a/3"])
    assert store.get("a/3") == b"x"


def test_an_age_is_counted_by_the_filesystems_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.put_if_absent("k", b"x")
    hour = 3_600_000_000_000
    modified = os.stat(tmp_path / "k").st_mtime_ns - hour
    os.utime(tmp_path / "k", ns=(modified, modified))
    monkeypatch.setattr(store, "_now_ns", lambda: modified + hour + 1_999_999)
    assert store.age_ms("k") == 3_600_001
    monkeypatch.undo()
    assert store.age_ms("k") >= 3_600_000
    os.utime(tmp_path / "k", ns=(modified + 5 * hour, modified + 5 * hour))
    assert store.age_ms("k") == 0
    (tmp_path / "folder").mkdir()
    with pytest.raises(NotFound):
        store.age_ms("folder")
    assert files(tmp_path) == ["k"]


def test_an_age_counts_from_when_the_object_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    real = os.fsync

    def slow(descriptor: int) -> None:
        real(descriptor)
        name = f"/proc/self/fd/{descriptor}"
        if ".tmp/" in os.readlink(name):
            os.utime(name, ns=(0, 0))  # an hour passed, and more

    monkeypatch.setattr(os, "fsync", slow)
    store.put_if_absent("one", b"x")
    store.put("two", b"x")
    assert os.stat(tmp_path / "one").st_mtime_ns > 0
    assert os.stat(tmp_path / "two").st_mtime_ns > 0


def test_drafts_of_killed_writers_are_found_by_their_key(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    upload = store.upload("sequencers/é x/batches/1")
    upload.part(1, 0, b"half of it")
    del upload  # killed here
    (tmp_path / ".tmp" / ("0" * 32)).write_bytes(b"of a version that has no key")
    (tmp_path / ".tmp/other").write_bytes(b"not ours")
    (left,) = LocalStore(tmp_path).unfinished("").uploads
    assert left.key == "sequencers/é x/batches/1"
    os.utime(tmp_path / ".tmp" / left.upload_id, (0, 0))
    assert store.unfinished("sequencers/").uploads[0].age_ms > 10**12
    assert store.unfinished("batches/").uploads == []
    store.discard(left)
    assert files(tmp_path) == [".tmp/" + "0" * 32, ".tmp/other"]


@pytest.mark.parametrize("upload_id", ["../../k", "../k", "k", "", f"{'0' * 32}.other"])
def test_only_unfinished_files_are_discarded(tmp_path: Path, upload_id: str) -> None:
    store = LocalStore(tmp_path / "log")
    store.put_if_absent("k", b"x")
    with pytest.raises(OptionError, match="no upload of k"):
        store.discard(Unfinished("k", upload_id, 0))
    assert store.get("k") == b"x"


def test_a_discarded_upload_can_not_be_completed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    upload = store.upload("k")
    upload.part(1, 0, b"x")
    store.discard(*store.unfinished("").uploads)
    with pytest.raises(Transient):
        upload.complete()
    upload.abort()
    assert store.list("").entries == []


def test_a_key_too_long_for_a_files_name_is_stored_all_the_same(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    key = "/".join(["long" * 30] * 4)
    assert store.put_if_absent(key, b"x")
    upload = store.upload(key + "/2".replace("/", "-"))
    upload.part(1, 0, b"x")
    assert store.unfinished("").uploads == []
    assert upload.complete()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no file system that has no folders")
def test_a_folder_that_cannot_be_created_is_no_transient_error() -> None:
    store = LocalStore(Path("/proc/sparkwal/log"))
    for put in (store.put, store.put_if_absent):
        with pytest.raises(OptionError, match="no folder can be made in /proc.* another path"):
            put("k", b"x")
    assert store.list("").entries == []


@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_an_object_is_none(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "wal").mkdir()
    os.mkfifo(tmp_path / "wal" / "a")
    with pytest.raises(NotFound):
        store.get("wal/a")
    assert list(store.list("wal/").entries) == []


def in_the_way(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path.parent / "missing")


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to a missing file"])
def test_what_is_no_file_in_the_place_of_an_object_is_named(tmp_path: Path, kind: str) -> None:
    in_the_way(tmp_path / "wal" / "a", kind)
    store = LocalStore(tmp_path)
    with pytest.raises(OptionError, match="/wal/a is no file.* move it away"):
        store.put_if_absent("wal/a", b"x")
    assert files(tmp_path) == []


def test_a_writer_ends_at_once_if_a_folder_is_in_the_place_of_the_next_record(
    tmp_path: Path,
) -> None:
    schema = pa.schema([("v", pa.int64())])
    Appender(str(tmp_path), schema, producer_id="p").close()
    [leader] = (tmp_path / "batches").iterdir()
    window = 1000
    assert leader.name in keys.key("", keys.slot(0, window))
    in_the_way(tmp_path / keys.key("", keys.slot(1, window)), "folder")
    with pytest.raises(OptionError, match="is no file"):
        Appender(str(tmp_path), schema, producer_id="p")


@pytest.fixture
def deep() -> Iterator[Path]:
    """A folder for folders "a" in each other. Neither pytest nor `shutil` could remove these."""
    with TemporaryDirectory() as name:
        root = Path(name)
        yield root
        while (root / "a").exists():
            (root / "a").rename(root / "outer")
            (root / "outer" / "b").unlink(missing_ok=True)
            if (root / "outer" / "a").exists():
                (root / "outer" / "a").rename(root / "a")
            (root / "outer").rmdir()


def nest(root: Path, depth: int) -> None:
    """Put so many folders into a folder, each around the former ones."""
    for _ in range(depth):
        (root / "outer").mkdir()
        if (root / "a").exists():
            (root / "a").rename(root / "outer" / "a")
        (root / "outer").rename(root / "a")


def test_folders_in_each_other_are_listed_however_many_they_are(deep: Path) -> None:
    nest(deep, 1900)
    assert LocalStore(deep).list("").entries == []
    assert LocalStore(deep).list("a/").entries == []


def test_folders_deeper_than_a_path_may_be_are_an_error(deep: Path) -> None:
    nest(deep, 2100)
    with pytest.raises(OptionError, match="list of  at .*name too long"):
        LocalStore(deep).list("")


def test_an_object_in_many_folders_is_put_or_refused(deep: Path) -> None:
    store = LocalStore(deep, fsync=False)
    key = "a/" * 1900 + "b"
    assert store.put_if_absent(key, b"x")
    assert store.get(key) == b"x" and store.list("").entries == [Entry(key, 1)]
    with pytest.raises(OptionError, match="name too long"):
        store.put_if_absent("a/" * 2100 + "b", b"x")


def test_of_two_puts_with_one_etag_one_replaces_the_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one compares the object while the first one is about to rename its file."""
    store = LocalStore(tmp_path)
    store.put("key", b"first")
    etag = store.get_tagged("key").etag
    real_replace = os.replace
    is_renaming = threading.Event()
    second_has_begun = threading.Event()

    def slow(source: Path, target: Path) -> None:
        is_renaming.set()
        second_has_begun.wait(5)
        time.sleep(0.05)
        real_replace(source, target)

    monkeypatch.setattr(os, "replace", slow)
    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(store.replace, "key", b"second", etag)
        assert is_renaming.wait(5)
        other = threads.submit(store.replace, "key", b"third", etag)
        second_has_begun.set()
        assert (one.result(), other.result()) == (True, False)
    assert store.get("key") == b"second"
