"""How Spark writes the checkpoints of the jobs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import sparkwal
from sparkwal.checkpoints.rebuild import FILE_MANAGER
from sparkwal.cli.exit_codes import Refused
from sparkwal.options.spark_versions import checkpoint_file_manager
from sparkwal.protocol import archive
from support.checkpoints import check_checkpoint, write_without_forks


class Session:
    """The settings of a Spark session."""

    version = "4.2.0"

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.conf = self

    def get(self, name: str, default: str | None) -> str | None:
        return self.settings.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value


@pytest.mark.parametrize(
    ("location", "manager"),
    [
        ("file:///data/checkpoint", checkpoint_file_manager(Session.version)),
        ("/data/checkpoint", checkpoint_file_manager(Session.version)),
        ("s3a://bucket/checkpoint", None),  # a rename copies
    ],
)
def test_only_a_checkpoint_on_the_disk_is_written_plainly(
    location: str, manager: str | None
) -> None:
    session = Session()
    write_without_forks(session, location)
    assert session.get(FILE_MANAGER, None) == manager


def test_a_file_manager_that_somebody_chose_stays() -> None:
    session = Session()
    session.set(FILE_MANAGER, "com.example.Mine")
    write_without_forks(session, "/data/checkpoint")
    assert session.get(FILE_MANAGER, None) == "com.example.Mine"


def test_a_query_that_the_log_has_archived_is_no_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MOST", 2)
    monkeypatch.setattr(archive, "KEPT", 1)
    log = str(tmp_path / "wal")
    for number in range(4):
        schema = pa.schema([("v", pa.int64())])
        with sparkwal.Appender(log, schema, producer_id=f"query-{number}") as wal:
            wal.append([{"v": number}])
    folder = tmp_path / "checkpoint"
    (folder / "commits").mkdir(parents=True)
    (folder / "commits" / "0").touch()
    (folder / "metadata").write_text('{"id":"query-0"}')
    check_checkpoint(str(folder), log, {})
    (folder / "metadata").write_text('{"id":"another"}')
    with pytest.raises(Refused, match="belongs to another log"):
        check_checkpoint(str(folder), log, {})
