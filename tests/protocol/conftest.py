from __future__ import annotations

from pathlib import Path

import pytest

from sparkwal.testing.memory import MemoryStore
from tests.protocol.query import Query, hints_in


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def query(store: MemoryStore, tmp_path: Path) -> Query:
    return Query(store, hints_in(tmp_path))
