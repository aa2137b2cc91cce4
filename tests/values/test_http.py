"""Each awkward value through the HTTP job: as JSON and as Arrow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from sparkwal import Log
from sparkwal.format import schema
from sparkwal.format.texts import json_rows
from tests.jobs.http_job import Job
from tests.jobs.http_job import started_jobs as started_jobs
from tests.values.awkward import CANONICAL_NAN, REFUSED, VALUES
from tests.values.doors import NO_JSON, of_table
from tests.values.log import TABLE, expected

ARROW = "application/vnd.apache.arrow.stream"


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@pytest.mark.process
def test_a_value_goes_in_as_json_and_as_arrow_or_its_column_is_named(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    path = tmp_path / "wal"
    twice = pa.field("twice", pa.map_(pa.string(), pa.int64()))
    columns = TABLE.append_column(twice, pa.nulls(len(TABLE), twice.type))
    (tmp_path / "schema.json").write_text(schema.from_arrow(columns.schema))
    job = start("--log", path, "--schema", f"@{tmp_path / 'schema.json'}")

    status, answer, _ = job.post(stream(columns), ARROW)
    assert status == 200, answer
    log = Log(str(path))
    position = answer["position"]
    found = of_table(log.scan(position, position).read_all())
    assert [name for name in VALUES if found[name] != expected(name)] == []

    stored = log.scan(position, position).read_all()
    taken = [name for name in VALUES if name not in NO_JSON]
    (batch,) = stored.select(taken).combine_chunks().to_batches()
    status, answer, _ = job.post("\n".join(json_rows(batch)).encode())
    assert status == 200, answer
    found = of_table(log.scan(answer["position"], answer["position"]).read_all())
    assert [name for name in taken if found[name] != expected(name, CANONICAL_NAN)] == []
    # Each is refused by its row and its column.
    for name in NO_JSON:
        (batch,) = stored.select([name]).combine_chunks().to_batches()
        status, answer, _ = job.post("\n".join(json_rows(batch)).encode())
        assert status == 400 and f": column {name!r}" in answer["error"], answer

    row = columns.slice(0, 1)
    repeated = row.set_column(len(VALUES), twice, REFUSED["map with a key twice"].rows)
    status, answer, _ = job.post(stream(repeated), ARROW)
    assert status == 400 and "row 0: column 'twice'" in answer["error"], answer
    status, answer, _ = job.post(b'{"twice": {"a": 1, "a": 2}}')
    assert status == 400 and "a name occurs twice" in answer["error"], answer
    assert job.stop() == 0
