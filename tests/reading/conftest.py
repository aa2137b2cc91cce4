"""Logs whose writer had many records in flight."""

from __future__ import annotations

from typing import Any

import pytest

from sparkwal.protocol import pipeline


@pytest.fixture
def in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record of an appender is built while the three before it are in flight."""
    build = pipeline.next_record

    def next_record(*args: Any, decided: int) -> Any:
        return build(*args, decided=max(decided - 3, -1))

    monkeypatch.setattr(pipeline, "next_record", next_record)
