"""A store whose server gives the answers of a test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from sparkwal.store.s3 import S3Store

from .stub_s3 import CONFIG, Stub


@pytest.fixture(scope="module")
def server() -> Iterator[Stub]:
    server = Stub()
    yield server
    server.close()


@pytest.fixture
def stub(server: Stub) -> Stub:
    # One address for all: the client, slow to make, is cached by its configuration.
    server.replies = []
    server.requests = []
    server.bodies = []
    return server


@pytest.fixture
def store(stub: Stub) -> S3Store:
    return S3Store("bucket", replace(CONFIG, endpoint=stub.url))
