"""The folder on the disk: its owner, and that it exists whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sparkwal
from sparkwal import OptionError
from sparkwal.checkpoints import folder, names, replacing
from tests.checkpoints.conftest import Room


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "nächtlich",
        "a/b",
        "../../x",
        ".",
        "..",
        ".hidden",
        "a b",
        "%20",
        "[x]*?",
        "x" * 200,
        "C:\\x",
        "'\"$(x)",
        "日本語",
        "-rf",
        "orders.new-york",
    ],
    ids=lambda name: ascii(name[:12]),
)
def test_each_printable_name_gets_another_folder(room: Room, name: str) -> None:
    place = room.checkpoint(name, None)
    assert place.parent == room.tmp / "state/sparkwal/checkpoints"
    assert place.name.isascii()
    owner = folder.owner_of(place)
    assert owner is not None and owner.name == name
    stream = room.stream(place)
    stream.run(range(2))
    shutil.rmtree(place)
    assert room.checkpoint(name, None) == place
    room.stream(place).run(range(4))
    assert room.values() == [0, 1, 2, 3]


def test_names_that_look_alike_have_different_folders(room: Room) -> None:
    names = ["a/b", "a_b", "a b", "A_b", "x" * 100, "x" * 101]
    assert len({room.checkpoint(name, None) for name in names}) == len(names)


@pytest.mark.parametrize("name", ["", " ", "\t", "a\nb", "a\0b", "\ud800", "x" * 201])
def test_a_name_that_cannot_be_printed_is_refused(room: Room, name: str) -> None:
    with pytest.raises(OptionError, match="short printable text"):
        room.checkpoint(name)
    assert list(room.tmp.iterdir()) == []


@pytest.mark.parametrize("odd", ["a b", "ü", "%20", "[x]", "*", "?", "a#b", "a:b", "-x"])
def test_a_folder_with_an_odd_name_is_rebuilt(room: Room, odd: str) -> None:
    for files in (2, 4):
        room.stream(room.checkpoint("orders", f"{odd}/{odd}")).run(range(files))
        shutil.rmtree(room.tmp / odd / odd)
    assert room.values() == [0, 1, 2, 3]


def test_a_folder_is_a_path_or_a_url_of_this_disk(room: Room, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(room.tmp)
    places = ("ck", "./ck", f"file://{room.tmp}/ck", f"file:{room.tmp}/ck/", room.tmp / "ck")
    made = {sparkwal.checkpoint("s3://bucket/wal", "orders", folder=place) for place in places}
    assert made == {str(room.tmp / "ck")}
    for place in ("s3a://bucket/ck", "hdfs:///ck", "file://host/ck", "", " "):
        with pytest.raises(OptionError, match="a folder on this machine"):
            sparkwal.checkpoint("s3://bucket/wal", "orders", folder=place)
    assert {each.name for each in room.tmp.iterdir()} == {"ck"}


def test_another_query_of_the_log_has_another_folder(room: Room) -> None:
    room.checkpoint("orders")
    with pytest.raises(OptionError, match="is the checkpoint of query 'orders'.* separate folder"):
        room.checkpoint("bills")
    assert {each.name for each in room.tmp.iterdir()} == {"ck"}


def test_folders_that_were_swapped_are_refused(room: Room) -> None:
    for name in ("orders", "bills"):
        room.stream(room.checkpoint(name, name)).run(range(2))
    (room.tmp / "orders").rename(room.tmp / "x")
    (room.tmp / "bills").rename(room.tmp / "orders")
    (room.tmp / "x").rename(room.tmp / "bills")
    for name in ("orders", "bills"):
        with pytest.raises(OptionError, match="is the checkpoint of query"):
            room.checkpoint(name, name)


def test_the_folder_of_another_log_is_refused(room: Room, tmp_path: Path) -> None:
    place = room.checkpoint()
    owner = folder.owner_of(place)
    assert owner is not None
    other = folder.Owner("s3://bucket/other", owner.log_id, owner.name)
    (place / names.OWNER).write_bytes(folder.owner_text(other))
    with pytest.raises(OptionError, match="'orders' of s3://bucket/other"):
        room.checkpoint()


def test_a_folder_that_is_no_checkpoint_is_not_changed(room: Room) -> None:
    (room.tmp / "ck").mkdir()
    (room.tmp / "ck/precious").write_text("x")
    (room.tmp / "file").write_text("x")
    for place in ("ck", "file"):
        with pytest.raises(OptionError, match="not empty, and sparkwal.checkpoint did not make it"):
            room.checkpoint("orders", place)
    # Spark's, of a query that this name does not name.
    room.stream(room.tmp / "own").run(range(1))
    with pytest.raises(OptionError, match="use its id as the name"):
        room.checkpoint("orders", "own")
    assert (room.tmp / "ck/precious").read_text() == (room.tmp / "file").read_text() == "x"
    assert (room.tmp / "own/offsets/0").exists()


def test_an_empty_folder_is_taken(room: Room) -> None:
    (room.tmp / "ck").mkdir()
    assert (room.checkpoint() / "metadata").exists()


@pytest.mark.parametrize("place", ["file/ck", "file/deep/er"])
def test_a_folder_that_cannot_be_created_is_an_error_with_advice(room: Room, place: str) -> None:
    (room.tmp / "file").write_text("x")
    with pytest.raises(OptionError, match="cannot make .*give sparkwal.checkpoint a folder"):
        room.checkpoint("orders", place)


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EBUSY, errno.EACCES])
@pytest.mark.parametrize("call", ["rename", "fsync"])
def test_an_error_of_the_disk_leaves_the_folder_unchanged(
    room: Room, monkeypatch: pytest.MonkeyPatch, code: int, call: str
) -> None:
    place = room.checkpoint()
    room.stream(place).run(range(2))
    (place / "offsets/1").unlink()
    before = sorted(each.name for each in room.tmp.iterdir())

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(replacing.os, call, refuse)
        with pytest.raises(OptionError, match=f"cannot make .*{os.strerror(code)}"):
            room.checkpoint()
    assert sorted(each.name for each in room.tmp.iterdir()) == before
    assert (place / "offsets/0").exists()
    room.stream(room.checkpoint()).run(range(3))
    assert room.values() == [0, 1, 2]


def test_without_a_home_a_folder_that_is_given_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    made = sparkwal.checkpoint(str(tmp_path / "wal"), "orders", folder=tmp_path / "folder")
    assert made == str(tmp_path / "folder")


def test_without_a_home_a_folder_must_be_given(room: Room, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("XDG_STATE_HOME")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(OptionError, match="give sparkwal.checkpoint a folder"):
        room.checkpoint("orders", None)


# Several at once, and those that die.


class Died(BaseException):
    """As a kill would, it leaves no time to clean up."""


@pytest.mark.parametrize("at", [1, 5, 9, 10, 11, 12, 13])
def test_a_rebuild_killed_at_any_step_is_repeated_without_remains(
    room: Room, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    place = room.checkpoint()
    room.stream(place).run(range(3))
    (place / "offsets/2").unlink()
    steps = 0

    def dies(real):  # type: ignore[no-untyped-def]
        def call(*given: object) -> object:
            nonlocal steps
            steps += 1
            if steps == at:
                raise Died
            return real(*given)

        return call

    died = False
    with monkeypatch.context() as patch:
        patch.setattr(replacing.os, "fsync", dies(os.fsync))
        patch.setattr(replacing.os, "rename", dies(os.rename))
        try:
            room.checkpoint()
        except Died:
            died = True
    assert died == (at < 13)
    # The one before, the new one, or none.
    assert not place.exists() or (place / "sparkwal.json").exists()
    assert room.checkpoint() == place
    assert {each.name for each in room.tmp.iterdir()} == {"ck", "hints"}
    room.stream(place).run(range(5))
    assert room.values() == list(range(5))


def test_only_what_a_rebuild_left_is_removed(room: Room) -> None:
    kept = ["ck.new-york", "ck.new-" + "a" * 31, "ck2.new-" + "a" * 32, "x.new-" + "a" * 32]
    gone = ["ck.new-" + "a" * 32, "ck.new-" + "b" * 32 + "-old"]
    for each in [*kept, *gone]:
        (room.tmp / each).mkdir()
    room.checkpoint()
    assert {each.name for each in room.tmp.iterdir()} == {"ck", *kept}
    # A pattern in the folder's own name is none.
    room.checkpoint("bills", "*")
    assert {each.name for each in room.tmp.iterdir()} == {"*", "ck", *kept}


MANY = """
import sys, sparkwal
for _ in range(5):
    print(sparkwal.checkpoint(sys.argv[1], "orders", folder=sys.argv[2]))
"""


def local_query(tmp_path: Path) -> tuple[str, str]:
    """A log on the disk and the folder of its query, which lacks its last microbatch."""
    from sparkwal.protocol.hint import Hints
    from sparkwal.store.base import LogStore
    from sparkwal.store.local import LocalStore
    from tests.checkpoints.stream import FileStream

    log, place = tmp_path / "wal", tmp_path / "ck"
    sparkwal.checkpoint(str(log), "orders", folder=place)
    FileStream(LogStore(LocalStore(log), ""), place, Hints("wal", tmp_path / "h")).run(range(12))
    (place / "offsets/11").unlink()
    return str(log), str(place)


@pytest.mark.process
def test_several_processes_ask_for_one_folder_at_once(tmp_path: Path) -> None:
    log, place = local_query(tmp_path)
    command = [sys.executable, "-c", MANY, log, place]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for each in running:
        out, _ = each.communicate(timeout=60)
        assert (each.returncode, out) == (0, f"{place}\n" * 5)
    assert (Path(place) / "offsets/11").exists()
    assert {each.name for each in tmp_path.iterdir()} == {"wal", "ck", "h"}


KILLED = """
import os, signal, sys, sparkwal
from sparkwal.checkpoints import replacing
real = os.rename
def rename(*given):
    real(*given)
    os.kill(os.getpid(), signal.SIGKILL)
replacing.os.rename = rename
sparkwal.checkpoint(sys.argv[1], "orders", folder=sys.argv[2])
"""


@pytest.mark.process
def test_a_process_killed_between_the_renames_blocks_no_other(tmp_path: Path) -> None:
    log, place = local_query(tmp_path)
    killed = subprocess.run([sys.executable, "-c", KILLED, log, place], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert not Path(place).exists()
    assert len(list(tmp_path.glob("ck.new-*"))) == 2
    assert sparkwal.checkpoint(log, "orders", folder=place) == place
    assert (Path(place) / "commits/11").exists()
    assert {each.name for each in tmp_path.iterdir()} == {"wal", "ck", "h"}


def test_the_default_folder_is_rebuilt_when_the_note_of_its_owner_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = Path(sparkwal.checkpoint(str(tmp_path / "wal"), "orders"))
    (place / "sparkwal.json").write_text("{")
    assert sparkwal.checkpoint(str(tmp_path / "wal"), "orders") == str(place)
    assert '"orders"' in (place / "sparkwal.json").read_text()


@pytest.mark.parametrize("name", [None, 5, b"x", "x" * 5000])
def test_a_name_that_is_no_short_text_is_refused_shortly(tmp_path: Path, name: object) -> None:
    with pytest.raises(OptionError, match="short printable text") as reported:
        sparkwal.checkpoint(str(tmp_path / "wal"), name)  # type: ignore[arg-type]
    assert len(str(reported.value)) < 200
