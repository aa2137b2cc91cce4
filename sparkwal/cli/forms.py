"""Where rows go: as a table, JSON lines, CSV, Arrow or Parquet, to standard output or a file."""

from __future__ import annotations

import functools
import os
import stat
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import click
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from rich.console import Console

from sparkwal.cli.texts import TableWriter, csv_batch, json_rows
from sparkwal.console.exit_codes import Failed, Refused

# Rows that are texts at once: those take many times what they are in Arrow.
_CHUNK = 2000


@dataclass(frozen=True)
class Form:
    name: str
    out: Path | None


def takes_form(*forms: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """--format, --json and -o; the command gets `form`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.option("--format", "fmt", type=click.Choice(forms),
                      help="arrow is an IPC stream; with -o an IPC file, unless it is named "
                      ".arrows.  [default: table]")  # fmt: skip
        @click.option("--json", "as_json", is_flag=True, help="JSON lines: --format json.")
        @click.option("-o", "--output", "out", metavar="FILE",
                      type=click.Path(dir_okay=False, path_type=Path),
                      help="A file, which appears when it is whole.  "
                      "[default: standard output]")  # fmt: skip
        @functools.wraps(command)
        def read(fmt: str | None, as_json: bool, out: Path | None, **others: Any) -> None:
            if as_json and fmt is not None:
                raise Refused("--json and --format: give one of them")
            name = "json" if as_json else fmt or "table"
            if name in ("arrow", "parquet") and out is None and sys.stdout.isatty():
                raise Refused(f"--format {name} is no text for a terminal: send it to a program, "
                              "or -o FILE")  # fmt: skip
            command(form=Form(name, out), **others)

        return read

    return decorate


class _Json:
    def __init__(self, out: IO[bytes]) -> None:
        self._out = out

    def write(self, batch: pa.RecordBatch) -> None:
        for begin in range(0, batch.num_rows, _CHUNK):
            lines = json_rows(batch.slice(begin, _CHUNK))
            self._out.write("".join(line + "\n" for line in lines).encode())

    def flush(self) -> None:
        self._out.flush()

    def end(self, columns: pa.Schema) -> None:
        """Write the rest; without rows, the header alone, in a form that has one."""
        self.flush()


class _OneSchema:
    """The columns are said once, in the beginning."""

    def __init__(
        self, out: IO[bytes], begin: Callable[[IO[bytes], pa.Schema], Any],
        change: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda batch: batch,
    ) -> None:  # fmt: skip
        self._out, self._begin, self._change = out, begin, change
        self._columns: pa.Schema | None = None
        self._writer: Any = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Raises Failed where this form cannot go on with other columns."""
        if self._columns is not None and not self._columns.equals(batch.schema):
            raise Failed(
                "a writer added columns to the log, and this format says them once, in the "
                "beginning: begin again, or name the columns with --columns"
            )
        changed = self._change(batch)
        if self._writer is None:
            self._columns, self._writer = batch.schema, self._begin(self._out, changed.schema)
        self._writer.write(changed)

    def flush(self) -> None:
        self._out.flush()

    def end(self, columns: pa.Schema) -> None:
        if self._writer is None:
            self.write(pa.RecordBatch.from_pylist([], schema=columns))
        self._writer.close()
        self.flush()


# Takes batches, one after the other.
Writer = _Json | _OneSchema | TableWriter


@contextmanager
def writer(form: Form, notify: Callable[[str], None]) -> Iterator[Writer]:
    """What writes rows in this form; `notify` takes what people should know beside them. Raises as
    `whole_file`."""
    to = nullcontext(sys.stdout.buffer) if form.out is None else whole_file(form.out)
    with to as out:
        if form.name == "json":
            yield _Json(out)
        elif form.name == "csv":
            yield _OneSchema(out, pyarrow.csv.CSVWriter, csv_batch)
        elif form.name == "parquet":
            yield _OneSchema(out, pyarrow.parquet.ParquetWriter)
        elif form.name == "arrow":
            as_file = form.out is not None and form.out.suffix != ".arrows"
            yield _OneSchema(out, pa.ipc.new_file if as_file else pa.ipc.new_stream)
        else:
            encoding, console = sys.stdout.encoding or "utf-8", Console()
            terminal = form.out is None and console.is_terminal
            styled = terminal and console.color_system is not None and not console.no_color
            yield TableWriter(
                lambda text: out.write(text.encode(encoding, "replace")),
                console.width if terminal else None, styled, notify,
            )  # fmt: skip


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears whole or not at all, where a link leads to; a pipe or a device is written
    as it is.

    Raises Refused for a place where no file can be, Failed where the disk does not take it.
    """
    temporary = None
    try:
        path = path.resolve()
        # There is nothing to rename over a pipe.
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            opened = path.open("wb")
        else:
            temporary = path.with_name(f".sparkwal-{uuid.uuid4().hex}")
            opened = temporary.open("xb")
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
