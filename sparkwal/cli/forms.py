"""Writes rows as a table, JSON lines, CSV, Arrow or Parquet, to standard output or a file."""

import io
import os
import stat
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import click
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from pyarrow import types
from rich.cells import cell_len, set_cell_size
from rich.console import Console

from sparkwal.cli.exit_codes import Failed, Refused
from sparkwal.cli.flags import Decorator, options
from sparkwal.errors import escape
from sparkwal.format.texts import bare_texts, csv_batch, json_rows

# Rows are converted to text in chunks: text takes many times the memory of Arrow.
_CHUNK = 2000
# The first rows, which decide the width of each column of a table.
_MEASURED_ROWS = 200
_DAY_US = 86_400_000_000
# The least width to which a table on a terminal cuts a value.
_LEAST_WIDTH = 16
_NUMBERS = (types.is_integer, types.is_floating, types.is_decimal)


@dataclass(frozen=True)
class Form:
    """The format of rows, and the file for them. The default file is standard output."""

    name: str
    file: Path | None = None


def takes_form(*forms: str) -> Decorator:
    """Add --format, --json and -o. The command receives `form`."""
    return options(
        _form,
        click.option(
            "--format",
            "fmt",
            type=click.Choice(forms),
            help="arrow is an IPC stream; with -o an IPC file, unless it is named "
            ".arrows.  [default: table]",
        ),
        click.option("--json", "as_json", is_flag=True, help="JSON lines: --format json."),
        click.option(
            "-o",
            "--output",
            "file",
            metavar="FILE",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Write to this file. It appears when it is complete.  [default: standard output]",
        ),
    )


def _form(fmt: str | None, file: Path | None, *, as_json: bool) -> dict[str, Any]:
    if as_json and fmt is not None:
        raise Refused("--json and --format: give one of them")
    name = "json" if as_json else fmt or "table"
    if name in ("arrow", "parquet") and file is None and sys.stdout.isatty():
        raise Refused(
            f"--format {name} is no text for a terminal: send it to a program, or -o FILE"
        )
    return {"form": Form(name, file)}


class Writer:
    """Writes record batches as JSON lines."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out

    def write(self, batch: pa.RecordBatch) -> None:
        for begin in range(0, batch.num_rows, _CHUNK):
            lines = json_rows(batch.slice(begin, _CHUNK))
            self._out.write("".join(line + "\n" for line in lines).encode())

    def flush(self) -> None:
        self._out.flush()

    def end(self) -> None:
        """Write the remaining rows. Without rows, write the header if the format has one."""
        self.flush()


class _OneSchema(Writer):
    """Writes a format whose header names the columns: CSV, Arrow and Parquet.

    Args:
        out: receives the bytes.
        schema: the columns of all batches.
        begin: writes the header and returns a writer of batches.
        convert: converts each batch to a schema that the format can hold.
    """

    def __init__(
        self,
        out: IO[bytes],
        schema: pa.Schema,
        begin: Callable[[IO[bytes], pa.Schema], Any],
        convert: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda batch: batch,
    ) -> None:
        super().__init__(out)
        self._schema = schema
        self._convert = convert
        empty = pa.RecordBatch.from_pylist([], schema=schema)
        self._writer = begin(out, convert(empty).schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch.

        Raises:
            Failed: the batch has other columns than the header.
        """
        if not self._schema.equals(batch.schema):
            raise Failed(
                "a writer added columns to the log, and this format names its columns only in its "
                "header: start again, or name the columns with --columns"
            )
        self._writer.write(self._convert(batch))

    def end(self) -> None:
        self._writer.close()
        self.flush()


class _Table(Writer):
    """Writes a table for people.

    Args:
        out: receives the bytes.
        schema: the columns of the first batch.
        width: the width of the terminal, to which lines are cut. If it is None, lines are whole.
        styled: write the heading in bold.
    """

    def __init__(
        self, out: IO[bytes], schema: pa.Schema, width: int | None, *, styled: bool
    ) -> None:
        super().__init__(out)
        self._schema = schema
        self._width = width
        self._styled = styled
        self._waiting: list[tuple[str, ...]] = []
        self._widths: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        if not self._schema.equals(batch.schema):
            self.flush()
            self._schema, self._widths = batch.schema, []
        width = None if self._width is None else max(self._width // batch.num_columns, _LEAST_WIDTH)
        for begin in range(0, batch.num_rows, _CHUNK):
            for row in zip(*map(bare_texts, batch.slice(begin, _CHUNK).columns), strict=True):
                cells = ("null" if text is None else escape(text) for text in row)
                self._waiting.append(tuple(_cut(cell, width) for cell in cells))
            if self._widths or len(self._waiting) >= _MEASURED_ROWS:
                self.flush()

    def flush(self) -> None:
        lines = [self._line(row) for row in self._waiting] if self._widths else self._first_lines()
        self._waiting = []
        encoding = sys.stdout.encoding or "utf-8"
        self._out.write("".join(f"{line}\n" for line in lines).encode(encoding, "replace"))
        self._out.flush()

    def _first_lines(self) -> list[str]:
        heads = tuple(escape(name) for name in self._schema.names)
        rows = [heads, *self._waiting]
        self._widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        rules = ["─" * width for width in self._widths]
        head, *others = map(self._line, [heads, rules, *rows[1:]])
        return [click.style(head, bold=True) if self._styled else head, *others]

    def _line(self, row: Sequence[str]) -> str:
        cells = []
        for text, width, field in zip(row, self._widths, self._schema, strict=True):
            padding = " " * (width - cell_len(text))
            is_number = any(is_of(field.type) for is_of in _NUMBERS)
            cells.append(padding + text if is_number else text + padding)
        return _cut("  ".join(cells).rstrip(), self._width)


def _cut(text: str, width: int | None) -> str:
    if width is None or cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + "…"


def _begin_parquet(out: IO[bytes], schema: pa.Schema) -> pyarrow.parquet.ParquetWriter:
    for field in schema:
        try:
            pyarrow.parquet.ParquetWriter(io.BytesIO(), pa.schema([field])).close()
        except pa.ArrowException:
            raise Refused(
                f"--format parquet cannot hold column {field.name!r}, which is {field.type}: cast "
                "it, or leave it out"
            ) from None
    return pyarrow.parquet.ParquetWriter(out, schema)


def _with_durations(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replace SQL's intervals, which Parquet lacks, by durations.

    Raises:
        Failed: an interval has months, whose length is not fixed.
    """
    for index, field in enumerate(batch.schema):
        if types.is_interval(field.type):
            values = batch.column(index).to_pylist()
            months = [row for row, value in enumerate(values) if value and value.months]
            if months:
                raise Failed(
                    f"--format parquet: column {field.name!r} has an interval with months in row "
                    f"{months[0]}, and Parquet holds only fixed durations: cast it to VARCHAR"
                )
            column = pa.array(
                [value and value.days * _DAY_US + value.nanoseconds // 1000 for value in values],
                pa.duration("us"),
            )
            batch = batch.set_column(index, field.name, column)
    return batch


@contextmanager
def open_writer(form: Form, schema: pa.Schema) -> Iterator[Writer]:
    """Open a writer of rows in this format. The first rows have `schema`.

    Raises:
        Refused: no file can be created at the path.
        Failed: the disk refused the bytes.
    """
    file = nullcontext(sys.stdout.buffer) if form.file is None else atomic_file(form.file)
    with file as out:
        if form.name == "json":
            yield Writer(out)
        elif form.name == "csv":
            convert = partial(csv_batch, terminal=form.file is None and sys.stdout.isatty())
            yield _OneSchema(out, schema, pyarrow.csv.CSVWriter, convert)
        elif form.name == "parquet":
            yield _OneSchema(out, schema, _begin_parquet, _with_durations)
        elif form.name == "arrow":
            as_file = form.file is not None and form.file.suffix != ".arrows"
            yield _OneSchema(out, schema, pa.ipc.new_file if as_file else pa.ipc.new_stream)
        else:
            console = Console()
            terminal = form.file is None and console.is_terminal
            styled = terminal and console.color_system is not None and not console.no_color
            yield _Table(out, schema, console.width if terminal else None, styled=styled)


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears completely or not at all. A link is followed to its target.

    Bytes for a pipe or a device are written to it directly.

    Raises:
        Refused: no file can be created at the path.
        Failed: the disk refused the bytes.
    """
    try:
        path = path.resolve()
        # A rename would replace the pipe or device.
        special = path.exists() and not stat.S_ISREG(path.stat().st_mode)
        temporary = None if special else path.with_name(f".sparkwal-{uuid.uuid4().hex}")
        opened = (temporary or path).open("wb")
    except (OSError, RuntimeError) as error:  # RuntimeError: the links form a circle
        raise Refused(f"-o {path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        with opened:
            yield opened
            if temporary is not None:
                opened.flush()
                os.fsync(opened.fileno())
        if temporary is not None:
            temporary.replace(path)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failed(f"-o {path}: {error.strerror or error}") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
