"""A query that gives other rows when Spark repeats a microbatch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import sparkwal

ROOT = Path(__file__).parents[2]


def run(spark, folder: Path, location: str, keep: str) -> None:
    """Read what is in the folder, one file a microbatch; only rows that `keep` holds for."""
    rows = spark.readStream.schema("value BIGINT").option("maxFilesPerTrigger", 1)
    writer = rows.json(str(folder / "in")).where(keep).writeStream.format("weaselwal")
    query = writer.option("checkpointLocation", location).trigger(availableNow=True)
    query.start(str(folder / "wal")).awaitTermination()


def add_file(folder: Path, number: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    values = range(number * 10, number * 10 + 10)
    text = "\n".join(f'{{"value":{value}}}' for value in values)
    file = folder / "in" / f"{number}.json"
    file.write_text(text)
    # Spark reads the oldest first.
    os.utime(file, (1_700_000_000 + number,) * 2)


def crash_before_the_note(folder: Path, number: int) -> None:
    """As if Spark had died between the commit and its note of it."""
    for name in (str(number), f".{number}.crc"):
        (folder / "commits" / name).unlink()


def values(folder: Path) -> list[int]:
    found = sparkwal.Log(str(folder / "wal")).to_pandas()["value"]
    return [int(value) for value in found]


def test_with_a_remote_checkpoint_the_microbatch_is_marked_as_done_by_hand(
    spark, tmp_path: Path
) -> None:
    # Perhaps another file system: its files may not be on this disk.
    checkpoint = tmp_path / "checkpoint"
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("fs.viewfs.mounttable.far.link./away", tmp_path.as_uri())
    location = "viewfs://far/away/checkpoint"
    for number in (0, 1):
        add_file(tmp_path, number)
    run(spark, tmp_path, location, "value % 2 = 0")
    crash_before_the_note(checkpoint, 1)
    with pytest.raises(Exception, match="DivergedCheckpointError.*not the same ones"):
        run(spark, tmp_path, location, "value % 2 = 1")  # other rows, just as many
    with pytest.raises(Exception, match="DivergedCheckpointError") as error:
        run(spark, tmp_path, location, "value % 5 = 0")
    assert 'sparkwal help "other rows"' in str(error.value)
    # The advice of the page.
    page = (ROOT / "sparkwal" / "docs" / "operations.md").read_text()
    block = page.partition("### Other rows")[2].partition("```text\n")[2].partition("\n```")[0]
    (checkpoint / "commits" / "1").write_text(block)
    add_file(tmp_path, 2)
    run(spark, tmp_path, location, "value % 5 = 0")
    assert values(tmp_path) == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 25]


def test_with_a_checkpoint_of_the_log_the_repeated_microbatch_is_skipped(
    spark, tmp_path: Path
) -> None:
    add_file(tmp_path, 0)
    folder = sparkwal.checkpoint(str(tmp_path / "wal"), "orders", folder=tmp_path / "checkpoint")
    run(spark, tmp_path, folder, "value % 2 = 0")
    crash_before_the_note(tmp_path / "checkpoint", 0)
    add_file(tmp_path, 1)
    folder = sparkwal.checkpoint(str(tmp_path / "wal"), "orders", folder=tmp_path / "checkpoint")
    run(spark, tmp_path, folder, "value % 5 = 0")
    assert values(tmp_path) == [0, 2, 4, 6, 8, 10, 15]
