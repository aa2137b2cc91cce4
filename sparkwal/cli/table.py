"""Rows as a table of text, row by row: a terminal shows what fits, a pipe gets everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click
import pyarrow as pa
from rich.cells import cell_len, chop_cells

from sparkwal.cli.literals import is_number
from sparkwal.cli.plain import plain
from sparkwal.cli.values import bare_texts

# So many rows tell how wide each column is; a terminal cuts what comes later.
_MEASURED = 200
_LEAST = 8
_GAP = "  "


class TableWriter:
    """Writes batches as lines.

    Args:
        write: takes lines.
        width: of the terminal; None: nothing is cut.
        styled: bold and dim text.
        tell: takes what people should know, beside the table.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        width: int | None,
        styled: bool,
        tell: Callable[[str], None],
    ) -> None:
        self._write, self._width, self._tell, self._has_styles = write, width, tell, styled
        self._columns: pa.Schema | None = None
        self._waiting: list[tuple[str | None, ...]] = []
        self._widths: list[int] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._columns is None or not self._columns.equals(batch.schema):
            self.flush()
            self._columns, self._widths = batch.schema, None
        for begin in range(0, batch.num_rows, 1000):
            part = batch.slice(begin, 1000)
            cells = [[self._cell(text) for text in bare_texts(each)] for each in part.columns]
            self._waiting.extend(zip(*cells, strict=True))
            if self._widths is not None or len(self._waiting) >= _MEASURED:
                self.flush()

    def _cell(self, text: str | None) -> str | None:
        if text is None:
            return None
        # Nobody looks at a megabyte that is cut to some letters.
        return plain(text if self._width is None else text[: self._width + 1])

    def flush(self) -> None:
        """Everything that was given is written."""
        if self._columns is None:
            return
        if self._widths is None:
            self._widths = self._measured(self._columns)
            self._head(self._columns, self._widths)
        right = [is_number(each.type) for each in self._columns]
        for row in self._waiting:
            self._line([
                self._padded("null" if cell is None else cell, width, at_right, cell is None)
                for cell, width, at_right in zip(row, self._widths, right, strict=False)
            ])  # fmt: skip
        self._waiting = []

    def end(self, columns: pa.Schema) -> None:
        """Nothing more comes; a table without rows still has its head."""
        self._columns = self._columns if self._columns is not None else columns
        self.flush()

    def _measured(self, columns: pa.Schema) -> list[int]:
        heads = [plain(name) for name in columns.names]
        widths = [
            max(cell_len("null" if text is None else text) for text in column)
            for column in zip(heads, *self._waiting, strict=True)
        ]
        if self._width is None or _total(widths) <= self._width:
            return widths
        fits = max(
            (most for most in range(_LEAST, self._width + 1)
             if _total([min(width, most) for width in widths]) <= self._width),
            default=_LEAST,
        )  # fmt: skip
        widths = [min(width, fits) for width in widths]
        while len(widths) > 1 and _total(widths) > self._width:
            widths.pop()
        if hidden := columns.names[len(widths) :]:
            self._tell(
                f"{len(hidden)} more columns do not fit: {plain(', '.join(hidden))}; choose "
                "with --columns"
            )
        return widths

    def _head(self, columns: pa.Schema, widths: Sequence[int]) -> None:
        right = [is_number(each.type) for each in columns]
        heads = [
            self._padded(plain(name), width, at_right)
            for name, width, at_right in zip(columns.names, widths, right, strict=False)
        ]
        self._line([self._styled(head, bold=True) for head in heads])
        self._line(["─" * width for width in widths])

    def _line(self, cells: Sequence[str]) -> None:
        self._write(_GAP.join(cells).rstrip() + "\n")

    def _padded(self, text: str, width: int, at_right: bool, dim: bool = False) -> str:
        length = cell_len(text)
        if self._width is not None and length > width:
            text = (chop_cells(text, width - 1)[0] if width > 1 else "") + "…"
            length = cell_len(text)
        room = " " * (width - length)
        text = self._styled(text, dim=True) if dim else text
        return room + text if at_right else text + room

    def _styled(self, text: str, **style: bool) -> str:
        return click.style(text, **style) if self._has_styles else text


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)
