"""Spark reads an Iceberg table and its log as one, without a jar of Iceberg.

In a process of its own: the workers of Python take the catalog from the environment of the JVM.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import sparkwal
from tests.lifecycle.iceberg_table import IcebergLake, compact, configure
from tests.lifecycle.lakes import value

ROOT = Path(__file__).parents[2]

BY_SPARK = """
import json, sys
from pyspark.sql import SparkSession
import sparkwal
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", 2)
for path in sys.argv[2:]:
    rows = sparkwal.read_current(spark, path).collect()
    print(json.dumps(sorted(map(str, (row.asDict() for row in rows)))))
sparkwal.register(spark)
stream = spark.readStream.format("weaselwal").option("startingPosition", "table")
rows = stream.option("includeMetadata", True).option("consumer", "c").load(sys.argv[2])
query = rows.writeStream.format("memory").queryName("rows").trigger(availableNow=True)
query.option("checkpointLocation", sys.argv[1]).start().awaitTermination()
rows = spark.sql("SELECT id, _wal_position FROM rows ORDER BY id").collect()
print(json.dumps([list(row) for row in rows]))
"""


@pytest.mark.process
def test_spark_reads_table_and_log_as_one_without_a_jar(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rows of the table alone, of a table with keys, and with deleted keys that come late. A stream
    begins with the rows of the table."""
    lake = IcebergLake(tmp_path, table=configure(monkeypatch, tmp_path))
    for number in range(4):
        lake.append([value(number)])
        compact(lake)
    lake.append([value(4)])
    target = {"keys": ["id"], "sequence_by": "n", "delete_when": "gone"}
    columns = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("gone", pa.bool_())])
    folder = tmp_path / "keys"
    folder.mkdir()
    keys = IcebergLake(folder, "id", table="iceberg://lake/db.keys", schema=columns)
    keys.append([{"id": n, "n": 1, "gone": False} for n in range(4)])
    compact(keys, **target)
    keys.append([{"id": 0, "n": 9, "gone": True}])
    compact(keys, **target)
    keys.append([{"id": 0, "n": 5, "gone": False}, {"id": 1, "n": 5, "gone": False}])
    keys.append([{"id": 2, "n": 5, "gone": True}, {"id": 7, "n": 5, "gone": False}])
    paths = [lake.path, keys.path]
    command = [sys.executable, "-c", BY_SPARK, str(tmp_path / "checkpoint"), *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    *found, streamed = [json.loads(line) for line in done.stdout.splitlines()]
    expected = [sparkwal.Log(path).current().to_arrow().to_pylist() for path in paths]
    assert found == [sorted(map(str, each)) for each in expected]
    assert [len(each) for each in found] == [5, 3]
    assert [number for number, _ in streamed] == [0, 1, 2, 3, 4]
    assert [position is None for _, position in streamed] == [True] * 4 + [False]
