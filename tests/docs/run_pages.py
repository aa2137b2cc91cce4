"""Run the Python blocks of every page as a reader would, against a given store.

    python -m tests.docs.run_pages LOGS FOLDER

LOGS takes the place of s3://bucket. Each page has separate names and logs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import sparkwal
from tests.docs.pages import PAGES, Block, blocks

START = "sparkwal/docs/start.md"
COOKBOOK = "sparkwal/docs/cookbook.md"
# The catalog of Iceberg tables that pages name.
CATALOG = "PYICEBERG_CATALOG__LAKE__"
# The server that a page names, and where the tests name theirs.
STORE = "https://store.example.com:9000"
ENDPOINT = "AWS_ENDPOINT_URL"


def main(logs: str, folder: Path) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        # For some rows Spark would take longer to compile than to go through them.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    sparkwal.register(spark)
    for number, page in enumerate(PAGES):
        found = blocks(page, "python")
        if found:
            run_page(spark, found, f"{logs}/{number}", folder / str(number))
            print(f"ran {page}", flush=True)
    spark.stop()


def run_page(spark: SparkSession, page: list[Block], logs: str, folder: Path) -> None:
    """Runs the blocks in order. Streams end what they have to do after each."""
    rows = folder / "in"
    rows.mkdir(parents=True)
    os.environ[f"{CATALOG}TYPE"] = "sql"
    os.environ[f"{CATALOG}URI"] = f"sqlite:///{folder}/catalog.db"
    os.environ[f"{CATALOG}WAREHOUSE"] = f"file://{folder}/lake"
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    (rows / "0.json").write_text("\n".join(json.dumps({"id": n}) for n in range(5)))
    names: dict[str, Any] = {
        "spark": spark,
        "events": spark.readStream.schema("id BIGINT").json(str(rows)),
        "df": spark.range(3),
    }
    # These pages begin without a log; the other pages use an existing one.
    begins = page[0].page in ("README.md", START)
    if page[0].page == START:
        names = {}
    elif not begins:
        names["sparkwal"] = sparkwal
        with sparkwal.Appender(
            f"{logs}/wal", pa.schema([("id", pa.int64())]), producer_id="before"
        ) as wal:
            wal.append([{"id": 1}])
    for block in page:
        text = block.text.replace("/tmp/", f"{folder}/").replace("/data/", f"{folder}/")
        text = text.replace("s3://bucket", logs).replace(STORE, os.environ.get(ENDPOINT, STORE))
        if "70_412" in text:
            # The page speaks of a longer log: here its last position takes that place. The
            # forked query has one file to read after it.
            text = text.replace("70_412", str(sparkwal.Log(f"{logs}/wal").head().position))
            (rows / "1.json").write_text('{"id": 5}')
        code = compile("\n" * (block.line - 1) + text, block.page, "exec")
        exec(code, names)
        for stream in spark.streams.active:
            stream.processAllAvailable()
    query = names.get("query")
    if page[0].page == START:
        # Both logs that the page writes.
        for log in (f"{folder}/first/wal", f"{logs}/first"):
            assert sparkwal.Log(log).to_pandas()["id"].tolist() == [1, 2, 3]
    elif query is not None:
        # No block of the page has taken the log away from the query that it shows last.
        (rows / "1.json").write_text('{"id": 5}')
        for stream in spark.streams.active:
            stream.processAllAvailable()
            stream.stop()
        ids = sparkwal.Log(f"{logs}/wal").to_pandas()["id"].tolist()
        assert ids == ([] if begins else [1]) + [0, 1, 2, 3, 4, 5]
    if page[0].page == COOKBOOK:
        check_cookbook(spark, logs, folder, names)
    if "backfill" in "".join(block.text for block in page):
        backfill = sparkwal.Log(f"{logs}/wal", sequencer="backfill").to_pandas()
        assert backfill["id"].tolist() == [0, 1, 2]


def check_cookbook(spark: SparkSession, logs: str, folder: Path, names: Mapping[str, Any]) -> None:
    """Check that the recipes wrote and printed the rows that the page shows."""
    written = {
        name: sparkwal.Log(f"{logs}/{name}").to_pandas()["id"].tolist()
        for name in ("hourly", "both", "batches")
    }
    events, appended = [0, 1, 2, 3, 4], [0, 1, 2]
    assert written == {"hourly": events + appended, "both": events, "batches": events}
    for files in ("files", "batches"):
        rows = spark.read.parquet(str(folder / files)).collect()
        assert sorted(row.id for row in rows) == events
    assert names["newest"].to_pylist() == [{"id": 1, "status": "sent"}]
    assert sorted(names["now"]["id"].tolist()) == [0, 1, 2]
    assert sorted(names["bad"]["_rescued"].to_pylist()) == ["not JSON", '{"id": "x"}']
    assert sparkwal.Log(f"{logs}/hourly").head().schema.names == ["id", "source"]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
