"""The target of a compaction, from a user's arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkwal.errors import OptionError
from sparkwal.spark.delta_lifecycle import target_of


@pytest.mark.parametrize(
    ("table", "given", "words"),
    [
        (None, {"keys": ["id"]}, "name the table"),
        (" ", {}, "URL or folder"),
        ("default.orders", {}, "name in a catalog.*./NAME"),
        ("lake.db.orders", {}, "name in a catalog"),
        ("./t", {"keys": "id"}, "a list of names"),
        ("./t", {"delete_when": "id = 1"}, "give keys"),
        ("./t", {"sequence_by": "id"}, "give keys"),
        ("./t", {"partition_by": ["day"], "cluster_by": ["id"]}, "either"),
        ("s3://user:secret@bucket/t", {}, "no credentials"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(
    table: str | None, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(OptionError, match=words) as error:
        target_of(table, **given)
    assert "secret" not in str(error.value)


def test_a_folder_needs_no_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v1.orders").mkdir()
    for name in ("orders", "v1.orders"):
        target = target_of(name)
        assert target is not None and target.table == str(tmp_path / name)
