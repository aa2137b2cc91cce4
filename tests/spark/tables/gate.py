"""Holds up a range at a place where it could be stopped, or overtaken."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkwal.format.lifecycle_record import DONE
from sparkwal.protocol import chain
from sparkwal.spark import delta


class Gate:
    """Two files: a process touches one, and continues when the other exists."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._reached, self._open = folder / "reached", folder / "open"

    def reached(self) -> bool:
        return self._reached.exists()

    def open(self) -> None:
        self._open.touch()

    def in_the_write(self, patch: pytest.MonkeyPatch) -> None:
        """Spark's workers wait, with rows of the log that go to a table of this process.

        A MERGE has its snapshot of the table then, and has written nothing.
        """
        reached, opened = str(self._reached), str(self._open)
        as_stored = delta.as_stored

        def wait(_):  # with type hints Spark would ask whether it takes whole columns
            Path(reached).touch()
            while not Path(opened).exists():
                time.sleep(0.05)
            return True

        def held(rows: DataFrame, *rest: Any) -> DataFrame:
            found = as_stored(rows, *rest)
            column = F.col(delta.quoted(found.columns[0]))
            return found.where(F.udf(wait, "boolean")(column))

        patch.setattr(delta, "as_stored", held)

    def between_the_writes(self, patch: pytest.MonkeyPatch) -> None:
        """This process waits, with deleted keys that the tombstones have and the table has not."""
        write = delta.SparkDeltaTable.write

        def held(*arguments: Any) -> None:
            self._reached.touch()
            while not self._open.exists():
                time.sleep(0.05)
            write(*arguments)

        patch.setattr(delta.SparkDeltaTable, "write", held)

    def before_done(self, patch: pytest.MonkeyPatch) -> None:
        """This process waits, with a range that the table has."""
        put = chain.put_record

        def held(log: Any, base: Any, *rest: Any, **until: Any) -> Any:
            if base.kind == DONE:
                self._reached.touch()
                while not self._open.exists():
                    time.sleep(0.05)
            return put(log, base, *rest, **until)

        patch.setattr(chain, "put_record", held)
