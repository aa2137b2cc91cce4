"""Runs one SQL query over relations of a log, in a DuckDB that cannot reach anything else.

DuckDB may open no file, no network connection and no extension, and it cannot read Python
variables. Each scan receives a `Pushdown`: the columns and ranges that the query needs. DuckDB
passes its filter as a pyarrow expression. pyarrow can decide whether that expression may be true
for a fragment of which only a range is given, so the ranges come from there.
"""

import json
import operator
import os
import re
import shutil
import tempfile
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset, fs

from sparkwal.errors import OptionError, SparkWalError
from sparkwal.format.schema import conform, gathered
from sparkwal.sql.values import (
    check_maps,
    check_names,
    exact_intervals,
    has_sql_name,
    place_columns,
    quoted,
)
from sparkwal.store.threads import run_in_thread

# A log may have one row in each commit, so rows are joined into batches of this size for DuckDB.
_SCAN_ROWS = 16_384
_SCAN_BYTES = 8 * 2**20
# Rows of one batch of a query's result.
_RESULT_ROWS = 8192
# A forked process must not free its parent's results: that would wait for threads which the fork
# does not have. So it holds a reference to them.
_open_results: weakref.WeakSet[Any] = weakref.WeakSet()
_parent_results: list[Any] = []
os.register_at_fork(after_in_child=lambda: _parent_results.extend(_open_results))

# Integers from 0 on; both ends are included.
Range = tuple[int, int]
LAST = 2**63 - 2


@dataclass(frozen=True)
class Pushdown:
    """The columns and rows that one scan of a relation must read.

    Attributes:
        columns: the columns that the query reads.
        condition: a pyarrow expression; rows for which it is false are not needed.
        schema: the columns that `condition` names.
    """

    columns: frozenset[str] = frozenset()
    condition: Any = None
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))

    def range_of(self, column: str) -> Range:
        """The range of an integer or timestamp column outside of which the condition is false.

        Timestamps are microseconds since 1970.
        """
        return self._ranges.get(column, (0, LAST))

    @cached_property
    def _ranges(self) -> dict[str, Range]:
        return {
            column.name: self._search_range(column)
            for column in self.schema
            if pa.types.is_int64(column.type) or pa.types.is_timestamp(column.type)
        }

    def _search_range(self, column: pa.Field) -> Range:
        """Two binary searches: the least and the greatest value for which rows may match."""

        def may_match(compare: Callable[[Any, Any], Any], number: int) -> bool:
            guarantee = compare(dataset.field(column.name), pa.scalar(number, column.type))
            return bool(_matching_fragments(self.condition, self.schema, guarantee))

        numbers = range(LAST + 1)
        low = bisect_left(numbers, True, key=lambda number: may_match(operator.le, number))
        above = bisect_left(numbers, True, key=lambda number: not may_match(operator.ge, number))
        return low, above - 1


def _matching_fragments(condition: Any, schema: pa.Schema, *guarantees: Any) -> list[Any]:
    """The fragments in which `condition` may be true, of fragments with one guarantee each.

    No file is opened.

    Raises:
        pa.ArrowInvalid: the condition names a column that `schema` lacks.
    """
    file_format = dataset.IpcFileFormat()
    filesystem = fs.LocalFileSystem()
    fragments = [file_format.make_fragment("", filesystem, guarantee) for guarantee in guarantees]
    fragments_of_schema = dataset.FileSystemDataset(fragments, schema, file_format, filesystem)
    return list(fragments_of_schema.get_fragments(condition))


def names_in(condition: Any, schema: pa.Schema, candidates: Sequence[str]) -> list[str]:
    """Those of the candidate columns that a condition names.

    pyarrow does not list an expression's columns, so remove candidates from the schema and see
    whether the condition still resolves; halve the candidates until one is left.
    """
    with suppress(pa.ArrowInvalid):
        others = pa.schema([column for column in schema if column.name not in candidates])
        _matching_fragments(condition, others)
        return []
    half = len(candidates) // 2
    halves = (candidates[:half], candidates[half:]) if half else ()
    names = [name for part in halves for name in names_in(condition, schema, part)]
    return names or [*candidates]


@dataclass(frozen=True)
class Relation:
    """A table that a query may name.

    Attributes:
        schema: the cheapest column comes first, because `count(*)` reads the first column.
        order: the order of the columns for `SELECT *`.
        rows: returns at least the columns and rows that a pushdown needs.
    """

    schema: pa.Schema
    order: Sequence[str]
    rows: Callable[[Pushdown], Iterator[pa.RecordBatch]]


class _Scan(dataset.Dataset):  # type: ignore[misc]
    """A relation as the dataset that DuckDB scans."""

    def __init__(self, relation: Relation, failed: list[SparkWalError]) -> None:
        self._relation, self._failed = relation, failed
        self._schema = pa.schema([x for x in relation.schema if has_sql_name(x.name)])

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(self, columns: list[str] | None, filter: Any) -> Any:
        """A reader of the columns. pyarrow's own scanner reads ahead, which costs requests."""
        selected = self.schema.names if columns is None else columns
        filtered = [] if filter is None else names_in(filter, self.schema, self.schema.names)
        selected_schema = pa.schema([self.schema.field(name) for name in selected])
        filter_schema = pa.schema([self.schema.field(name) for name in filtered])
        names = {*selected, *filtered}
        read = [column for column in self.schema if column.name in names]
        try:
            check_names(read)
        except OptionError as error:
            self._failed.append(error)
            raise
        names.update({*place_columns(read)} & {*self.schema.names})
        pushdown = Pushdown(frozenset(names), filter, filter_schema)
        batches = self._batches(pushdown, selected)
        to_reader = partial(pa.RecordBatchReader.from_batches, selected_schema, batches)
        return SimpleNamespace(to_reader=to_reader)

    def _batches(self, pushdown: Pushdown, selected: Sequence[str]) -> Iterator[pa.RecordBatch]:
        read = pa.schema([column for column in self.schema if column.name in pushdown.columns])
        try:
            for batch in join_batches(self._relation.rows(pushdown)):
                table = pa.Table.from_batches([conform(batch, read)])
                if pushdown.condition is not None:
                    table = table.filter(pushdown.condition)
                for needed in table.to_batches():
                    check_maps(needed)
                    yield needed.select(selected)
        except SparkWalError as error:
            # DuckDB reports only the text of an exception, so remember the exception itself.
            self._failed.append(error)
            raise


def join_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer, larger batches.

    Rows that were read before an error come before the error: a query with a LIMIT may need no
    more.
    """
    failed: list[SparkWalError] = []

    def until_error() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except SparkWalError as error:
            failed.append(error)

    for table in gathered(until_error(), _SCAN_BYTES, _SCAN_ROWS):
        yield from table.combine_chunks().to_batches()
    if failed:
        raise failed[0]


def connect() -> duckdb.DuckDBPyConnection:
    """A DuckDB that can reach nothing but a temporary folder of its own.

    What does not fit into memory goes there. Only this user may read the folder, and it is removed
    with the connection.
    """
    folder = tempfile.mkdtemp(prefix="sparkwal-sql-")
    connection = duckdb.connect(
        config={
            "enable_external_access": False,
            "python_enable_replacements": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "temp_directory": folder,
        }
    )
    weakref.finalize(connection, _remove_folder, folder, os.getpid())
    # DuckDB may take Python for interactive and print a progress bar among the rows.
    connection.execute("SET enable_progress_bar = false").fetchall()
    connection.execute("SET TimeZone = 'UTC'").fetchall()
    connection.execute("SET lock_configuration = true").fetchall()
    return connection


def _remove_folder(folder: str, process: int) -> None:
    """Remove a connection's folder. A fork leaves the folder to its parent."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def parse_select(connection: duckdb.DuckDBPyConnection, query: str) -> Any:
    """The syntax tree of a query.

    Raises:
        OptionError: the text is not exactly one SELECT.
    """
    statements = connection.extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise OptionError("a query is one SELECT: it can read, and it cannot change anything")
    (row,) = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    return json.loads(row[0])


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All nodes of a syntax tree."""
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for child in tree:
            yield from nodes(child)


def run_query(relations: Mapping[str, Callable[[], Relation]], query: str) -> pa.RecordBatchReader:
    """The rows of a query over the relations that it names, read as the caller consumes them.

    Raises:
        OptionError: the query is wrong.
        SparkWalError: a relation could not be read; also raised while the rows are consumed.
    """
    failed: list[SparkWalError] = []
    connection = connect()
    try:
        with _translated_errors(failed, relations):
            tree = parse_select(connection, query)
            tables = [node for node in nodes(tree) if node.get("type") == "BASE_TABLE"]
            names = {node["table_name"].lower() for node in tables}
            opened = {name: open_() for name, open_ in relations.items() if name in names}
            if not opened:
                # SHOW TABLES needs only the names.
                for name in relations:
                    connection.execute(f"CREATE TEMP VIEW {name} AS SELECT NULL").fetchall()
            for name, relation in opened.items():
                connection.register(f"_{name}", _Scan(relation, failed))
                columns = ", ".join(map(quoted, filter(has_sql_name, relation.order)))
                connection.execute(f"CREATE TEMP VIEW {name} AS SELECT {columns} FROM _{name}")
                connection.fetchall()
            result = exact_intervals(connection.sql(query))
            reader = _interruptible(connection, lambda: result.to_arrow_reader(_RESULT_ROWS))
    except BaseException:
        connection.close()
        raise

    process = os.getpid()
    _open_results.update((reader, connection))

    def next_batch() -> pa.RecordBatch | None:
        if os.getpid() != process:
            raise OptionError(
                "a forked process cannot read its parent's result: run the query in the fork"
            )
        return _interruptible(connection, lambda: next(reader, None))

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            with _translated_errors(failed):
                while (batch := next_batch()) is not None:
                    yield batch
        finally:
            if os.getpid() == process:
                reader.close()
                connection.close()

    return pa.RecordBatchReader.from_batches(reader.schema, batches())


def _interruptible(connection: duckdb.DuckDBPyConnection, call: Callable[[], Any]) -> Any:
    """The result of a call that runs in a thread, so that Ctrl-C can interrupt DuckDB."""
    called = run_in_thread(call)
    try:
        return called.result()
    except KeyboardInterrupt:
        connection.interrupt()
        # The connection is closed next, so the call must have ended.
        wait([called])
        raise


@contextmanager
def _translated_errors(
    failed: Sequence[SparkWalError] = (), relations: Iterable[str] = ("log",)
) -> Iterator[None]:
    """Raise DuckDB's errors as OptionError, and errors of a relation unchanged.

    Args:
        failed: errors that relations raised while DuckDB read them.
        relations: the names that a query may use, for the message.
    """
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        if failed:
            raise failed[0] from None
        if not isinstance(error, duckdb.Error):
            raise
        # Omit the quoted line, because it shows the rewritten query and not the user's.
        message = str(error).partition("\n\nLINE ")[0]
        advice = f"; there are {', '.join(relations)}"
        message = re.sub("(Table with name .* does not exist).*", rf"\1{advice}", message)
        raise OptionError(f"the query: {' '.join(message.split())}") from None


class Condition:
    """A condition as in WHERE, applied to one batch of rows at a time.

    Attributes:
        columns: the columns to read for it: those that it names, and with a map those of its row.
        pushdown: the columns and ranges outside of which it is never true.

    Raises:
        OptionError: the condition is wrong, contains a query, or names a column that SQL cannot
            hold.
    """

    def __init__(self, text: str, columns: pa.Schema) -> None:
        if not text.strip():
            raise OptionError("the condition is empty")
        self._connection = connect()
        self._mask = f"SELECT coalesce(CAST(({text}\n) AS BOOLEAN), false) FROM log"
        query = f"SELECT 1 FROM log WHERE ({text}\n)"
        with _translated_errors():
            tree = parse_select(self._connection, query)
            # Parse the text alone too: a parenthesis that closes those of the query is an error.
            parse_select(self._connection, f"SELECT 1 WHERE {text}\n")
            if any(node.get("class") == "SUBQUERY" for node in nodes(tree)):
                raise OptionError("a condition cannot contain a query: use sparkwal sql")
            pushdowns: list[Pushdown] = []

            def rows(pushdown: Pushdown) -> Iterator[pa.RecordBatch]:
                pushdowns.append(pushdown)
                return iter(())

            relation = Relation(columns, columns.names, rows)
            self._connection.register("log", _Scan(relation, []))
            self._connection.execute(query).fetchall()
        references = (x["column_names"] for x in nodes(tree) if x.get("class") == "COLUMN_REF")
        words = {word.lower() for parts in references for word in (".".join(parts), *parts)}
        named = [column for column in columns if column.name.lower() in words]
        check_names(named)
        position_columns = {*place_columns(named)} & {*columns.names}
        self.columns = frozenset((*position_columns, *(column.name for column in named)))
        # DuckDB does not scan at all for a condition that is always false.
        never = Pushdown(
            condition=pc.scalar(False), schema=pa.schema([columns.field("_wal_position")])
        )
        self.pushdown = pushdowns[0] if pushdowns else never

    def filter(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch for which the condition is true.

        Raises:
            OptionError: the condition fails on a row.
        """
        names = [name for name in batch.schema.names if name in self.columns]
        check_maps(batch.select(names))
        with _translated_errors():
            self._connection.register("log", pa.table(batch.select(names or [0])))
            mask = self._connection.sql(self._mask).to_arrow_reader(_RESULT_ROWS).read_all()
        return batch.filter(mask.column(0).combine_chunks())
