"""Runs one query over relations in a DuckDB that knows nothing else: no file, network or extension,
and no variable of Python.

A scan asks a relation for the columns and ranges that it needs; no others are fetched. DuckDB hands
its condition over as an expression of pyarrow, and pyarrow knows whether that can be true in a part
of a dataset of which it is given no more than a range.
"""

import json
import operator
import os
import re
import tempfile
import uuid
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset, fs

from sparkwal.errors import OptionError, SparkWalError
from sparkwal.format.schema import conform, gathered

# Rows are handed over so many together, or so many bytes: a log may have one in each commit.
_ROWS, _BYTES = 16_384, 8 * 2**20
# Of an answer.
_BATCH = 8192
# A fork keeps its parent's answers: to free one would wait for threads that the fork does not have.
_open: weakref.WeakSet[Any] = weakref.WeakSet()
_of_parents: list[Any] = []
os.register_at_fork(after_in_child=lambda: _of_parents.extend(_open))

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


@dataclass(frozen=True)
class Relation:
    """What a query may read.

    Attributes:
        schema: the first column is the one that costs least: count(*) reads it.
        order: of the columns, for who asks for all.
        rows: at least the columns and ranges that are needed.
    """

    schema: pa.Schema
    order: Sequence[str]
    rows: Callable[[Needs], Iterator[pa.RecordBatch]]


class _Scan(dataset.Dataset):  # type: ignore[misc]
    """A relation as DuckDB reads it: each scan of a query asks for its columns and rows."""

    def __init__(self, relation: Relation, failed: list[SparkWalError]) -> None:
        self._relation, self._failed = relation, failed

    @property
    def schema(self) -> pa.Schema:
        return self._relation.schema

    def scanner(self, columns: list[str] | None, filter: Any) -> Any:
        """pyarrow's own scanner reads ahead, which takes requests and memory."""
        asked = self.schema.names if columns is None else columns
        met = [] if filter is None else names_in(filter, self.schema, self.schema.names)
        shown, of_filter = (pa.schema(map(self.schema.field, names)) for names in (asked, met))
        needs = Needs(frozenset((*asked, *met)), filter, of_filter)
        batches = self._batches(needs, asked)
        return SimpleNamespace(to_reader=partial(pa.RecordBatchReader.from_batches, shown, batches))

    def _batches(self, needs: Needs, asked: Sequence[str]) -> Iterator[pa.RecordBatch]:
        read = pa.schema([each for each in self.schema if each.name in needs.columns])
        try:
            for batch in together(self._relation.rows(needs)):
                found = pa.Table.from_batches([conform(batch, read)])
                if needs.condition is not None:
                    found = found.filter(needs.condition)
                yield from found.select(asked).to_batches()
        except SparkWalError as error:
            # Of an exception in a stream DuckDB knows the text alone.
            self._failed.append(error)
            raise


def together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for table in gathered(batches, _BYTES, _ROWS):
        yield from table.combine_chunks().to_batches()


def connect() -> duckdb.DuckDBPyConnection:
    """A DuckDB that reaches nothing but a folder of temporary files, which it removes."""
    connection = duckdb.connect(
        config={
            "enable_external_access": False,
            "python_enable_replacements": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "temp_directory": str(Path(tempfile.gettempdir(), f"sparkwal-sql-{uuid.uuid4().hex}")),
        }
    )
    # Where DuckDB takes Python for interactive, a bar would be printed among the rows.
    for each in ("TimeZone = 'UTC'", "enable_progress_bar = false", "lock_configuration = true"):
        connection.execute(f"SET {each}").fetchall()
    return connection


def select(connection: duckdb.DuckDBPyConnection, query: str) -> Any:
    """The tree of a query. Raises OptionError unless it is one SELECT."""
    statements = connection.extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise OptionError("a query is one SELECT: it reads, and there is nothing to change")
    (found,) = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    return json.loads(found[0])


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for each in tree:
            yield from nodes(each)


def answer(relations: Mapping[str, Callable[[], Relation]], query: str) -> pa.RecordBatchReader:
    """The rows of a query, as they are needed, over the relations that it names.

    Raises OptionError for a query that is wrong; and, also while it is read, what these raise.
    """
    failed: list[SparkWalError] = []
    connection = connect()
    try:
        with _our_errors(failed, relations):
            found = [x for x in nodes(select(connection, query)) if x.get("type") == "BASE_TABLE"]
            named = {each["table_name"].lower() for each in found}
            made = {name: make() for name, make in relations.items() if name in named}
            # For SHOW TABLES their names are enough.
            for name in () if made else relations:
                connection.execute(f"CREATE TEMP VIEW {name} AS SELECT NULL").fetchall()
            for name, relation in made.items():
                connection.register(f"_{name}", _Scan(relation, failed))
                names = (each.replace('"', '""') for each in relation.order)
                columns = ", ".join(f'"{each}"' for each in names)
                connection.execute(f"CREATE TEMP VIEW {name} AS SELECT {columns} FROM _{name}")
                connection.fetchall()
            answered = connection.sql(query)
            reader = _waited_for(connection, lambda: answered.to_arrow_reader(_BATCH))
    except BaseException:
        connection.close()
        raise

    process = os.getpid()
    _open.update((reader, connection))

    def one() -> pa.RecordBatch | None:
        if os.getpid() != process:
            raise OptionError("a fork cannot read an answer of its parent: ask again in the fork")
        return _waited_for(connection, lambda: next(reader, None))

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            with _our_errors(failed):
                while (batch := one()) is not None:
                    yield batch
        finally:
            if os.getpid() == process:
                reader.close()
                connection.close()

    return pa.RecordBatchReader.from_batches(reader.schema, batches())


def _waited_for(connection: duckdb.DuckDBPyConnection, call: Callable[[], Any]) -> Any:
    """What a call gives, in a thread of its own: Ctrl-C interrupts who waits, and then DuckDB."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(call)
        try:
            return future.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise


@contextmanager
def _our_errors(
    failed: Sequence[SparkWalError] = (), there: Iterable[str] = ("log",)
) -> Iterator[None]:
    """DuckDB's errors as this library's; what a relation raised as itself. `there`: the relations
    that a query may name."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        if failed:
            raise failed[0] from None
        if not isinstance(error, duckdb.Error):
            raise
        # Without the line of the query: the plan's has other words before it.
        said = str(error).partition("\n\nLINE ")[0]
        known = f"; there are {', '.join(there)}"
        said = re.sub("(Table with name .* does not exist).*", rf"\1{known}", said)
        raise OptionError(f"the query: {' '.join(said.split())}") from None


class Condition:
    """What may stand behind WHERE, for rows that come a batch at a time. Raises OptionError for one
    that is wrong, or looks at other rows than its own."""

    def __init__(self, text: str, columns: pa.Schema) -> None:
        if not text.strip():
            raise OptionError("the condition is empty")
        self._connection = connect()
        self._kept = f"SELECT coalesce(CAST(({text}\n) AS BOOLEAN), false) FROM log"
        query = f"SELECT 1 FROM log WHERE ({text}\n)"
        with _our_errors():
            tree = select(self._connection, query)
            # Alone, a parenthesis that would close those of the query is an error.
            select(self._connection, f"SELECT 1 WHERE {text}\n")
            if any(each.get("class") == "SUBQUERY" for each in nodes(tree)):
                raise OptionError("a condition looks at one row, and has no query in it: use sql")
            asked: list[Needs] = []

            def rows(needs: Needs) -> Iterator[pa.RecordBatch]:
                asked.append(needs)
                return iter(())

            relation = Relation(columns, columns.names, rows)
            self._connection.register("log", _Scan(relation, []))
            self._connection.execute(query).fetchall()
        named = (x["column_names"] for x in nodes(tree) if x.get("class") == "COLUMN_REF")
        words = {word.lower() for parts in named for word in (".".join(parts), *parts)}
        self.columns = frozenset(name for name in columns.names if name.lower() in words)
        # One that is never true has no scan.
        never = Needs(
            condition=pc.scalar(False), schema=pa.schema([columns.field("_wal_position")])
        )
        self.needs = asked[0] if asked else never

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows for which it is true. Raises OptionError."""
        named = [name for name in batch.schema.names if name in self.columns]
        with _our_errors():
            self._connection.register("log", pa.table(batch.select(named or [0])))
            kept = self._connection.sql(self._kept).to_arrow_reader(_BATCH).read_all()
        return batch.filter(kept.column(0).combine_chunks())
