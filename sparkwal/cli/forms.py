"""Where rows go: as a table, JSON lines, CSV, Arrow or Parquet, to standard output or a file."""

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
from sparkwal.cli.output import escape
from sparkwal.cli.texts import bare_texts, csv_batch, json_rows

# Rows that are texts at once: those take many times what they are in Arrow.
_CHUNK = 2000
# So many rows decide how wide each column of a table is.
_MEASURED = 200
# Letters of a value, at least, on a terminal of many columns.
_LEAST = 16
_NUMBERS = (types.is_integer, types.is_floating, types.is_decimal)


@dataclass(frozen=True)
class Form:
    name: str
    out: Path | None


def takes_form(*forms: str) -> Decorator:
    """--format, --json and -o; the command gets `form`."""
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
            "out",
            metavar="FILE",
            type=click.Path(dir_okay=False, path_type=Path),
            help="A file, which appears when it is whole.  [default: standard output]",
        ),
    )


def _form(fmt: str | None, as_json: bool, out: Path | None) -> dict[str, Any]:
    if as_json and fmt is not None:
        raise Refused("--json and --format: give one of them")
    name = "json" if as_json else fmt or "table"
    if name in ("arrow", "parquet") and out is None and sys.stdout.isatty():
        raise Refused(
            f"--format {name} is no text for a terminal: send it to a program, or -o FILE"
        )
    return {"form": Form(name, out)}


class Writer:
    """Takes batches, one after the other, and writes each as JSON lines."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out

    def write(self, batch: pa.RecordBatch) -> None:
        for begin in range(0, batch.num_rows, _CHUNK):
            lines = json_rows(batch.slice(begin, _CHUNK))
            self._out.write("".join(line + "\n" for line in lines).encode())

    def flush(self) -> None:
        self._out.flush()

    def end(self) -> None:
        """Write the rest; without rows, the header alone, in a form that has one."""
        self.flush()


class _OneSchema(Writer):
    def __init__(
        self,
        out: IO[bytes],
        schema: pa.Schema,
        begin: Callable[[IO[bytes], pa.Schema], Any],
        change: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda batch: batch,
    ) -> None:
        super().__init__(out)
        self._schema, self._change = schema, change
        empty = pa.RecordBatch.from_pylist([], schema=schema)
        self._writer = begin(out, change(empty).schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Raises Failed where this form cannot go on with other columns."""
        if not self._schema.equals(batch.schema):
            raise Failed(
                "a writer added columns to the log, and this format says them once, in the "
                "beginning: begin again, or name the columns with --columns"
            )
        self._writer.write(self._change(batch))

    def end(self) -> None:
        self._writer.close()
        self.flush()


class _Table(Writer):
    """Lines that are not cut if `width`, the terminal's, is None."""

    def __init__(self, out: IO[bytes], schema: pa.Schema, width: int | None, styled: bool) -> None:
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
        most = None if self._width is None else max(self._width // batch.num_columns, _LEAST)
        for begin in range(0, batch.num_rows, _CHUNK):
            for row in zip(*map(bare_texts, batch.slice(begin, _CHUNK).columns), strict=True):
                cells = ("null" if text is None else escape(text) for text in row)
                self._waiting.append(tuple(_cut(cell, most) for cell in cells))
            if self._widths or len(self._waiting) >= _MEASURED:
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
        head, *others = map(self._line, [heads, ["─" * each for each in self._widths], *rows[1:]])
        return [click.style(head, bold=True) if self._styled else head, *others]

    def _line(self, row: Sequence[str]) -> str:
        cells = []
        for text, width, field in zip(row, self._widths, self._schema, strict=True):
            room = " " * (width - cell_len(text))
            right = any(is_of(field.type) for is_of in _NUMBERS)
            cells.append(room + text if right else text + room)
        return _cut("  ".join(cells).rstrip(), self._width)


def _cut(text: str, width: int | None) -> str:
    if width is None or cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + "…"


@contextmanager
def writer(form: Form, schema: pa.Schema) -> Iterator[Writer]:
    """What writes rows in this form, the first ones with `schema`. Raises as `whole_file`."""
    to = nullcontext(sys.stdout.buffer) if form.out is None else whole_file(form.out)
    with to as out:
        if form.name == "json":
            yield Writer(out)
        elif form.name == "csv":
            change = partial(csv_batch, terminal=form.out is None and sys.stdout.isatty())
            yield _OneSchema(out, schema, pyarrow.csv.CSVWriter, change)
        elif form.name == "parquet":
            yield _OneSchema(out, schema, pyarrow.parquet.ParquetWriter)
        elif form.name == "arrow":
            as_file = form.out is not None and form.out.suffix != ".arrows"
            yield _OneSchema(out, schema, pa.ipc.new_file if as_file else pa.ipc.new_stream)
        else:
            console = Console()
            terminal = form.out is None and console.is_terminal
            styled = terminal and console.color_system is not None and not console.no_color
            yield _Table(out, schema, console.width if terminal else None, styled)


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears whole or not at all, where a link leads to; a pipe or a device is written
    as it is.

    Raises Refused for a place where no file can be, Failed where the disk does not take it.
    """
    try:
        path = path.resolve()
        # There is nothing to rename over a pipe.
        special = path.exists() and not stat.S_ISREG(path.stat().st_mode)
        temporary = None if special else path.with_name(f".sparkwal-{uuid.uuid4().hex}")
        opened = (temporary or path).open("wb")
    except (OSError, RuntimeError) as error:  # the latter for links in a circle
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
