"""Finds the rows that an Iceberg table refuses.

Only a write shows whether the table takes a row. A null in a required column is seen at once; all
else is found by halving: files of a part of the rows are written, and deleted again. No row is
found while none of the range is taken: then the rows are not the cause. Rows that are aside already
may all be refused again, for none of them moves then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from sparkwal.lifecycle.range_rows import LONGEST_REASON, MOST_TRIES, REASON, RowsNotFound


@dataclass
class Tries:
    """Writes that only show whether a table takes rows.

    Attributes:
        write: writes rows and removes them, and returns why the table does not take them, or "".
        count: how often it was called.
    """

    write: Callable[[pa.Table], str]
    count: int = field(default=0, init=False)

    def refusal(self, rows: pa.Table) -> str:
        """Why the table does not take these rows; "" if it takes them.

        Raises:
            RowsNotFound: it was asked too often.
        """
        if not rows.num_rows:
            return ""
        self.count += 1
        if self.count > MOST_TRIES:
            raise RowsNotFound("it refuses more rows than can be found one by one")
        return self.write(rows)[:LONGEST_REASON]


def refused_rows(
    parts: Iterable[pa.Table], required: Sequence[str], tries: Tries, *, are_aside: bool
) -> Iterator[pa.Table]:
    """Find the rows that a table refuses.

    Args:
        parts: rows as the table stores them.
        required: the columns in which it takes no null.
        tries: shows what the table takes.
        are_aside: the rows are aside already. So no row moves if the table refuses all of them.

    Yields:
        Refused rows, with REASON.

    Raises:
        RowsNotFound: the table refuses all rows, or not only those that were found.
    """
    taken: pa.Table | None = None
    refusals: list[pa.Table] = []
    for part in parts:
        for name in required:
            nulls = part[name].is_null()
            yield _with_reason(part.filter(nulls), f"{name} is null, and required")
            part = part.filter(pc.invert(nulls))
        why = tries.refusal(part)
        bad = dict(_halved(part, 0, why, tries)) if why else {}
        if why and not bad:
            raise RowsNotFound(f"it refuses the rows together and each of them alone not: {why}")
        are_taken = [number not in bad for number in range(part.num_rows)]
        others = part.filter(pa.array(are_taken, pa.bool_()))
        if why and (why := tries.refusal(others)):
            raise RowsNotFound(f"it also refuses the rows that it takes one by one: {why}")
        taken = others.slice(0, 1) if others.num_rows else taken
        refusals += (_with_reason(part.slice(number, 1), why) for number, why in bad.items())
    if refusals and taken is None and not are_aside:
        (why,) = refusals[0][REASON].to_pylist()
        raise RowsNotFound(
            f"it refuses each row of the range, so a row may not be the cause: {why}"
        )
    for row in refusals:
        if not tries.refusal(row.drop_columns([REASON])):
            raise RowsNotFound("it refused a row, and takes it now: something else was the cause")
    if refusals and taken is not None and (why := tries.refusal(taken)):
        raise RowsNotFound(f"it refuses each row now: {why}")
    yield from refusals


def _halved(rows: pa.Table, first: int, why: str, tries: Tries) -> Iterator[tuple[int, str]]:
    """Halve rows that the table refuses, until each part is one row.

    Args:
        rows: the rows.
        first: the number of the first one.
        why: the refusal of these rows.
        tries: shows what the table takes.
    """
    if rows.num_rows == 1:
        yield first, why
        return
    middle = rows.num_rows // 2
    for begin, part in ((first, rows.slice(0, middle)), (first + middle, rows.slice(middle))):
        if why_not := tries.refusal(part):
            yield from _halved(part, begin, why_not, tries)


def _with_reason(rows: pa.Table, why: str) -> pa.Table:
    return rows.append_column(REASON, pa.repeat(pa.scalar(why, pa.string()), rows.num_rows))
