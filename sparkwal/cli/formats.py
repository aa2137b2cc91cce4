"""Where rows go: as a table, JSON lines, CSV, Arrow or a template, to standard output or a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

import pyarrow as pa
import pyarrow.csv
from pyarrow import types
from rich.console import Console

from sparkwal.cli.exits import Failed
from sparkwal.cli.files import whole_file
from sparkwal.cli.table import TableWriter
from sparkwal.cli.template import Part, filled
from sparkwal.cli.values import bare_texts, json_rows

_CSVS_OWN = (types.is_integer, types.is_boolean, types.is_floating, types.is_string)
# Rows that are texts at once: those take many times what they are in Arrow.
_CHUNK = 2000


class Writer(Protocol):
    """Takes batches of one schema after the other."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Raises Failed where this format cannot go on with other columns."""

    def flush(self) -> None:
        """Everything that was given is written."""

    def end(self, columns: pa.Schema) -> None:
        """Nothing more comes. Of no rows there is a head still, where the format has one."""


class Lines:
    """Rows as lines or other text, each by itself."""

    def __init__(self, out: IO[bytes], texts: Callable[[pa.RecordBatch], Sequence[str]]) -> None:
        self._out, self._texts = out, texts

    def write(self, batch: pa.RecordBatch) -> None:
        for begin in range(0, batch.num_rows, _CHUNK):
            self._out.write("".join(self._texts(batch.slice(begin, _CHUNK))).encode())

    def flush(self) -> None:
        self._out.flush()

    def end(self, columns: pa.Schema) -> None:
        self.flush()


class OneSchema:
    """CSV or Arrow: the columns are said once, in the beginning."""

    def __init__(
        self,
        out: IO[bytes],
        begin: Callable[[pa.Schema], pa.ipc.RecordBatchWriter | pa.csv.CSVWriter],
        change: Callable[[pa.RecordBatch], pa.RecordBatch],
    ) -> None:
        self._out, self._begin, self._change = out, begin, change
        self._columns: pa.Schema | None = None
        self._writer: pa.ipc.RecordBatchWriter | pa.csv.CSVWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._columns is not None and not self._columns.equals(batch.schema):
            raise Failed(
                "a writer added columns to the log, and this format says them once, in the "
                "beginning: begin again, or name the columns with --columns"
            )
        changed = self._change(batch)
        if self._writer is None:
            self._columns, self._writer = batch.schema, self._begin(changed.schema)
        self._writer.write(changed)

    def flush(self) -> None:
        self._out.flush()

    def end(self, columns: pa.Schema) -> None:
        if self._writer is None:
            self.write(pa.RecordBatch.from_pylist([], schema=columns))
        assert self._writer is not None
        self._writer.close()
        self.flush()


def writer(name: str, out: IO[bytes], tell: Callable[[str], None], file: bool) -> Writer:
    """The writer of a format; its batches have the columns to show.

    Args:
        file: Arrow as a file, which has a footer, instead of a stream.
    """
    if name == "json":
        return Lines(out, lambda batch: [line + "\n" for line in json_rows(batch)])
    if name == "csv":
        return OneSchema(out, lambda schema: pa.csv.CSVWriter(out, schema), csv_batch)
    if name == "arrow":
        make = pa.ipc.new_file if file else pa.ipc.new_stream
        return OneSchema(out, lambda schema: make(out, schema), lambda batch: batch)
    encoding = sys.stdout.encoding or "utf-8"
    console = Console()
    on_terminal = out is sys.stdout.buffer and console.is_terminal
    styled = on_terminal and console.color_system is not None and not console.no_color
    width = console.width if on_terminal else None
    return TableWriter(
        lambda text: _put(out, text.encode(encoding, "replace")), width, styled, tell
    )


def _put(out: IO[bytes], data: bytes) -> None:
    out.write(data)


def template_writer(out: IO[bytes], parts: Sequence[Part], row: Sequence[str]) -> Writer:
    """Writes rows as a template says."""
    return Lines(out, lambda batch: filled(parts, batch, row))


def csv_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with what CSV has no form for as text: as in JSON, but bare."""
    columns = []
    for column in batch.columns:
        kind = column.type
        own = any(holds(kind) for holds in _CSVS_OWN)
        columns.append(column if own else pa.array(bare_texts(column), pa.string()))
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


@contextmanager
def output(path: Path | None) -> Iterator[IO[bytes]]:
    """Standard output, or a file as `whole_file` writes it; raises as that."""
    if path is None:
        yield sys.stdout.buffer
        return
    with whole_file(path) as file:
        yield file
