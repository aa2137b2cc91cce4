"""Fixtures of the tests of an appender with a journal."""

from __future__ import annotations

import pytest

from sparkwal.appender import journal_sender
from tests.journal.disk import MemoryFolder


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is led again soon after the store is back."""
    monkeypatch.setattr(journal_sender, "_FIRST_SECONDS", 0.005)
    monkeypatch.setattr(journal_sender, "_LAST_SECONDS", 0.05)


@pytest.fixture
def folder() -> MemoryFolder:
    return MemoryFolder()
