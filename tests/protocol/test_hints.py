"""The folder of a driver's hints."""

from __future__ import annotations

import tempfile

import pytest

from sparkwal.errors import OptionError
from sparkwal.protocol.hint import Hints


def test_a_machine_without_a_temporary_folder_raises_before_any_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_is_usable() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp', '/work']")

    monkeypatch.setattr(tempfile, "gettempdir", none_is_usable)
    with pytest.raises(OptionError, match="no temporary folder.*/tmp.*TMPDIR"):
        Hints("wal")
