"""Folders of this user: other users of the machine can neither prepare nor read them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pyarrow as pa
import pytest

import sparkwal
from sparkwal.errors import OptionError
from sparkwal.store.local_files import keep_private, no_link

STRANGER = 65534
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's file")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_an_open_folder_of_this_user_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "inside").mkdir(parents=True)
    folder.chmod(0o755)
    keep_private(folder, "journal")
    assert mode(folder) == 0o700


@only_root
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    os.chown(folder, STRANGER, STRANGER)
    with pytest.raises(OptionError, match="belongs to another user"):
        keep_private(folder, "journal")


@only_root
def test_a_file_of_another_user_deep_inside_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "inside" / "file"
    file.parent.mkdir(parents=True)
    file.touch()
    os.chown(file, STRANGER, STRANGER)
    with pytest.raises(OptionError, match="'file' in it"):
        keep_private(tmp_path / "folder", "journal")


def test_the_lock_of_a_journal_is_no_link(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    (journal / "quarantine").mkdir(parents=True)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (journal / "lock").symlink_to(victim)
    schema = pa.schema([("id", pa.int64())])
    with pytest.raises(OptionError, match="cannot be used"):
        sparkwal.Appender(str(tmp_path / "log"), schema, producer_id="p", journal=str(journal))
    assert victim.read_text() == "precious"


def test_no_link_is_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "link").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        no_link(str(tmp_path / "link"), os.O_WRONLY | os.O_TRUNC)
    assert victim.read_text() == "precious"


@only_root
@pytest.mark.parametrize("empty", [True, False])
def test_an_appender_uses_no_journal_of_another_user(tmp_path: Path, empty: bool) -> None:
    journal = tmp_path / "journal"
    schema = pa.schema([("id", pa.int64())])
    log = str(tmp_path / "log")
    if empty:
        journal.mkdir()
    else:
        with sparkwal.Appender(log, schema, producer_id="p", journal=str(journal)) as wal:
            wal.append([{"id": 1}]).result()
    for file in (journal, *journal.rglob("*")):
        os.chown(file, STRANGER, STRANGER)
    journal.chmod(0o777)
    with pytest.raises(OptionError, match="belongs to another user"):
        sparkwal.Appender(log, schema, producer_id="p", journal=str(journal))


@only_root
def test_a_checkpoint_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    made = Path(sparkwal.checkpoint(str(tmp_path / "log"), "orders", folder=str(folder)))
    assert mode(made) == 0o700
    for file in (made, *made.rglob("*")):
        os.chown(file, STRANGER, STRANGER)
    with pytest.raises(OptionError, match="belongs to another user"):
        sparkwal.checkpoint(str(tmp_path / "log"), "orders", folder=str(folder))
