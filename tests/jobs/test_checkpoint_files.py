"""How Spark writes the checkpoints of the jobs."""

from __future__ import annotations

import pytest

from sparkwal.checkpoints.rebuild import FILE_MANAGER
from support.checkpoints import FILE_SYSTEM, write_plainly


class Session:
    """The settings of a Spark session."""

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
        ("file:///data/checkpoint", FILE_SYSTEM),
        ("/data/checkpoint", FILE_SYSTEM),
        ("s3a://bucket/checkpoint", None),  # where a rename copies
    ],
)
def test_only_a_checkpoint_on_the_disk_is_written_plainly(
    location: str, manager: str | None
) -> None:
    session = Session()
    write_plainly(session, location)
    assert session.get(FILE_MANAGER, None) == manager


def test_a_file_manager_that_somebody_chose_stays() -> None:
    session = Session()
    session.set(FILE_MANAGER, "com.example.Mine")
    write_plainly(session, "/data/checkpoint")
    assert session.get(FILE_MANAGER, None) == "com.example.Mine"
