"""Arrow content that contradicts itself under right CRCs: an error, never a crash.

Each read runs in a separate process, which a crash would end.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparkwal import InvalidLogError, Log, verify
from sparkwal.format import schema
from sparkwal.protocol.task import TaskAttempt, write_partition
from sparkwal.store.local import LocalStore
from tests.protocol.query import LIMITS, Query, hints_in

pytestmark = pytest.mark.process


def text(offsets: list[int], content: bytes) -> pa.RecordBatch:
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(content)]
    column = pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)
    return pa.record_batch([column], names=["v"])


MALFORMED: dict[str, pa.RecordBatch] = {
    "offsets that go far beyond": text([0, 2**30, 3], b"abc"),
    "offsets that go back": text([0, 3, -(2**30), 3], b"abc"),
    "a text that is not UTF-8": text([0, 3], b"\xff\xfea"),
}


def written(folder: Path, batch: pa.RecordBatch, *, inline: bool) -> str:
    limits = replace(LIMITS, inline_threshold=2**20 if inline else 0, codec=None)
    spark_schema = schema.from_arrow(batch.schema)
    store = LocalStore(folder / "log", fsync=False)
    query = Query(store, hints_in(folder), prefix="", limits=limits, spark_schema=spark_schema)
    plan = query.plan()
    result = write_partition(
        query.open, plan.for_tasks(), TaskAttempt("query", 0, 0), iter([batch]), limits
    )
    query.commit([result])
    return str(folder / "log")


def outcome(read: Callable[[str], object], path: str) -> object:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(read, path).result()


def rows(path: str) -> object:
    try:
        return Log(path).scan().read_all().to_pylist()
    except InvalidLogError as error:
        return str(error)


def unchecked(path: str) -> object:
    try:
        return Log(path, verifyChecksums=False).scan().read_all().to_pylist()
    except InvalidLogError as error:
        return str(error)


def problems(path: str) -> list[str]:
    return verify(path).problems


@pytest.mark.parametrize("kind", MALFORMED)
@pytest.mark.parametrize("inline", [True, False])
def test_malformed_rows_are_an_error_for_readers(tmp_path: Path, kind: str, inline: bool) -> None:
    path = written(tmp_path, MALFORMED[kind], inline=inline)
    found = outcome(rows, path)
    assert isinstance(found, str) and "cannot be decoded" in found and "position 1" in found


@pytest.mark.parametrize("kind", MALFORMED)
@pytest.mark.parametrize("inline", [True, False])
def test_verify_reports_malformed_rows(tmp_path: Path, kind: str, inline: bool) -> None:
    path = written(tmp_path, MALFORMED[kind], inline=inline)
    found = outcome(problems, path)
    assert isinstance(found, list) and any("cannot be decoded" in each for each in found)


def test_rows_read_without_checksums_are_still_no_crash(tmp_path: Path) -> None:
    path = written(tmp_path, MALFORMED["offsets that go far beyond"], inline=False)
    found = outcome(unchecked, path)
    assert isinstance(found, str) and "cannot be decoded" in found
