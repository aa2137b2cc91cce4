"""A journal's folder on this machine's disk: its lock, and a disk that is full or read-only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparkwal.errors import BackPressureError, OptionError
from sparkwal.journal.disk import DiskFolder
from tests.journal.stand import (
    SMALL,
    content,
    fill,
    open_journal,
    segments,
    write_once_there_is_room,
)

HOLDER = """
import sys, time
from tests.journal.stand import fill, open_journal
from sparkwal.journal.disk import DiskFolder
run = open_journal(DiskFolder(sys.argv[1]))
fill(run, [100, 200, 300])
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has a journal in `tmp_path` open."""
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, root])},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_folder_of_other_files_is_refused_and_not_changed(tmp_path: Path) -> None:
    mine = {name: f"my {name}" for name in ("lock", "cursor", "accepted", "notes.txt")}
    for name, text in mine.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(OptionError, match="holds other files and is no journal"):
        DiskFolder(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == mine


@pytest.mark.process
def test_a_folder_that_another_process_holds_is_refused_with_its_pid(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(OptionError, match=f"is held by process {holder.pid}: end that one"):
        DiskFolder(tmp_path)


@pytest.mark.process
def test_a_killed_process_leaves_the_folder_and_what_it_accepted(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    run = open_journal(DiskFolder(tmp_path))
    assert run.warnings() == []
    assert run.entries() == {n: content(n, length) for n, length in enumerate((100, 200, 300))}
    run.journal.close()


def test_a_second_opening_in_this_process_is_refused_until_the_first_is_closed(
    tmp_path: Path,
) -> None:
    run = open_journal(DiskFolder(tmp_path))
    with pytest.raises(OptionError, match="held by this process"):
        DiskFolder(tmp_path)
    fill(run, [10])
    run.journal.close()
    open_journal(DiskFolder(tmp_path)).journal.close()


def in_a_fork(do: object) -> int:
    """Run a function in a fork, and return its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = do()  # type: ignore[operator]
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.process
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_does_not_keep_the_lock(tmp_path: Path) -> None:
    folder = DiskFolder(tmp_path)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(read, 1)
        os._exit(0)
    try:
        folder.close()
        DiskFolder(tmp_path).close()
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    finally:
        os.write(write, b"x")
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)


@pytest.mark.process
def test_a_program_that_was_started_does_not_keep_the_lock(tmp_path: Path) -> None:
    folder = DiskFolder(tmp_path)
    child = subprocess.Popen(["sleep", "600"], close_fds=False)
    try:
        folder.close()
        DiskFolder(tmp_path).close()
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_folders_above_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c"
    run = open_journal(DiskFolder(path))
    fill(run, [10])
    run.journal.close()
    assert (path.stat().st_mode & 0o777, (path / "lock").stat().st_mode & 0o777) == (0o700, 0o600)


def test_a_file_is_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OptionError, match="cannot be used: .* local disk that this process"):
            DiskFolder(path)


def mounted(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], capture_output=True).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A separate small file system."""
    path = tmp_path / "disk"
    path.mkdir()
    if not mounted("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)):
        pytest.skip("this user may not mount")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.process
def test_a_read_only_folder_is_refused(small_disk: Path) -> None:
    run = open_journal(DiskFolder(small_disk / "journal"))
    fill(run, [10])
    run.journal.close()
    if not mounted("-o", "remount,ro", str(small_disk)):
        pytest.skip("this user may not mount")
    with pytest.raises(OptionError, match="cannot be used: Read-only file system"):
        DiskFolder(small_disk / "journal")
    assert mounted("-o", "remount,rw", str(small_disk))
    run = open_journal(DiskFolder(small_disk / "journal"))
    assert run.entries() == {0: content(0, 10)}
    run.journal.close()


@pytest.mark.process
@pytest.mark.parametrize("length", [50, 5000])
@pytest.mark.parametrize("segment_bytes", [2**16, 2**21], ids=["segments", "one segment"])
def test_a_full_disk_refuses_appends_until_the_log_has_some_entries(
    small_disk: Path, length: int, segment_bytes: int
) -> None:
    settings = replace(SMALL, segment_bytes=segment_bytes, max_bytes=2**28, slots=2**17)
    journal = small_disk / "journal"
    folder, durable = DiskFolder(journal), -1
    run = open_journal(folder, settings=settings)
    # Somebody else has written most of it.
    (small_disk / "others").write_bytes(bytes(800_000))
    for _ in range(3):
        written: dict[int, bytes] = {}
        while True:
            body = content(run.journal.last + 1, length)
            try:
                written[run.journal.write(body)] = body
            except BackPressureError:
                break
        assert "No space left" in run.only("journal_full").reason  # type: ignore[attr-defined]
        run.journal.sync()
        # Killed now it is opened again with nothing lost.
        run.segments.close()
        folder.close()
        folder = DiskFolder(journal)
        run = open_journal(folder, durable, settings)
        assert run.warnings() == []
        there = run.entries(durable)
        assert {sequence: there[sequence] for sequence in written} == written
        with pytest.raises(BackPressureError):
            run.journal.write(bytes(length))
        durable = run.journal.last
        run.journal.acknowledge(durable)
        run.journal.drain()
        fill(run, [length])
        run.reported.clear()
    run.journal.close()
    run = open_journal(DiskFolder(journal), durable, settings)
    assert run.warnings() == []
    assert run.entries(durable) == {durable + 1: content(durable + 1, length)}
    run.journal.close()


@pytest.mark.process
def test_waiting_appends_continue_when_a_full_disk_has_room(small_disk: Path) -> None:
    settings = replace(SMALL, segment_bytes=2**16, max_bytes=2**28, slots=2**17)
    run = open_journal(DiskFolder(small_disk / "journal"), settings=settings)
    others = small_disk / "others"
    others.write_bytes(bytes(700_000))
    full = threading.Event()
    run.journal.on_accepted = lambda: full.set() if run.journal.wants_room else None

    def appends() -> None:
        for _ in range(200):
            run.journal.wait(write_once_there_is_room(run.journal, content(0, 3000)))

    thread = threading.Thread(target=appends)
    thread.start()
    assert full.wait(60)
    others.unlink()
    thread.join(120)
    assert not thread.is_alive()
    assert run.names().count("journal_full") == 1
    assert len(run.entries()) == 200
    assert len(segments(run.folder)) > 1
    run.journal.close()


@pytest.mark.process
def test_a_folder_within_one_that_cannot_be_listed() -> None:
    """A daemon may have its folder below one that only root reads."""
    if os.geteuid() != 0:
        pytest.skip("needs another user's rights")
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o711)
        path = Path(name) / "journal"
        path.mkdir()
        os.chown(path, 65534, 65534)

        def opens() -> int:
            os.setegid(65534)
            os.seteuid(65534)
            DiskFolder(path).close()
            return 7

        assert in_a_fork(opens) == 7
