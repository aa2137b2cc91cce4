"""What a scan needs of the relation that it reads: which columns, and which range of them. Rows
outside of those ranges, and values of other columns, are not fetched.

DuckDB hands a condition of a scan over as an expression of pyarrow, and pyarrow knows whether that
can be true in a part of a dataset of which it is given no more than a range.
"""

import operator
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyarrow import dataset, fs

# Whole numbers from 0 on. Both ends belong to it.
Range = tuple[int, int]
LAST = 2**63 - 2


@dataclass(frozen=True)
class Needs:
    """Of one relation: the columns that are read, and a condition that all rows meet that count;
    `schema` is of the columns that it names."""

    columns: frozenset[str] = frozenset()
    condition: Any = None
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))

    def of(self, column: str) -> Range:
        """The range of a column of numbers, or of times (microseconds since 1970), outside of which
        the condition is never true."""
        return self._ranges.get(column, (0, LAST))

    @cached_property
    def _ranges(self) -> dict[str, Range]:
        kinds = (pa.types.is_int64, pa.types.is_timestamp)
        return {x.name: self._range(x) for x in self.schema if any(are(x.type) for are in kinds)}

    def _range(self, column: pa.Field) -> Range:
        def is_wanted(where: Callable[[Any, Any], Any], number: int) -> bool:
            value = where(dataset.field(column.name), pa.scalar(number, column.type))
            return bool(_wanted(self.condition, self.schema, value))

        numbers = range(LAST + 1)
        low = bisect_left(numbers, True, key=lambda x: is_wanted(operator.le, x))
        above = bisect_left(numbers, True, key=lambda x: not is_wanted(operator.ge, x))
        return low, above - 1


def _wanted(condition: Any, schema: pa.Schema, *where: Any) -> list[Any]:
    """Of parts of a dataset, in each of which one of `where` holds, those in which the condition
    may be true. Nothing is opened. Raises pa.ArrowInvalid for a column that is not there."""
    form, nowhere = dataset.IpcFileFormat(), fs.LocalFileSystem()
    parts = [form.make_fragment("", nowhere, each) for each in where]
    return list(dataset.FileSystemDataset(parts, schema, form, nowhere).get_fragments(condition))


def names_in(condition: Any, schema: pa.Schema, among: Sequence[str]) -> list[str]:
    """Which of these columns a condition names: without them it means nothing."""
    with suppress(pa.ArrowInvalid):
        _wanted(condition, pa.schema([each for each in schema if each.name not in among]))
        return []
    half = len(among) // 2
    halves = (among[:half], among[half:]) if half else ()
    return [x for each in halves for x in names_in(condition, schema, each)] or [*among]
