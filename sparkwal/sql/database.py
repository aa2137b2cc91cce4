"""Runs one query over relations in a DuckDB that knows nothing else: no file, network or extension,
and no variable of Python."""

import os
import re
import tempfile
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset

from sparkwal.errors import OptionError, SparkWalError
from sparkwal.format.schema import conform, gathered
from sparkwal.sql.needs import NOTHING, Needs, columns_in, needs_of, nodes, parsed

# Rows are handed over so many together, or so many bytes: a log may have one in each commit.
_ROWS, _BYTES = 16_384, 8 * 2**20
# Of an answer.
_BATCH = 8192
# A fork keeps its parent's answers: to free one would wait for threads that the fork does not have.
_open: weakref.WeakSet[Any] = weakref.WeakSet()
_of_parents: list[Any] = []
os.register_at_fork(after_in_child=lambda: _of_parents.extend(_open))


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


class _Scan:
    """A relation as DuckDB reads it: an Arrow stream, opened anew by each scan of a query."""

    def __init__(self, relation: Relation, needs: Needs, failed: list[SparkWalError]) -> None:
        self._relation, self._needs, self._failed = relation, needs, failed

    def __arrow_c_schema__(self) -> Any:
        return self._relation.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        reader = pa.RecordBatchReader.from_batches(self._relation.schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in together(self._relation.rows(self._needs)):
                yield conform(batch, self._relation.schema)
        except SparkWalError as error:
            # Of an exception in a stream DuckDB knows the text alone.
            self._failed.append(error)
            raise


def together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for table in gathered(batches, _ROWS, _BYTES):
        yield from table.combine_chunks().to_batches()


def connect() -> duckdb.DuckDBPyConnection:
    """A DuckDB that reaches nothing but a folder of temporary files, which it removes."""
    connection = duckdb.connect(config={
        "enable_external_access": False, "python_enable_replacements": False,
        "autoinstall_known_extensions": False, "autoload_known_extensions": False,
        "temp_directory": str(Path(tempfile.gettempdir(), f"sparkwal-sql-{uuid.uuid4().hex}")),
    })  # fmt: skip
    # Where DuckDB takes Python for interactive, a bar would be printed among the rows.
    for each in ("TimeZone = 'UTC'", "enable_progress_bar = false", "lock_configuration = true"):
        connection.execute(f"SET {each}").fetchall()
    return connection


def select(connection: duckdb.DuckDBPyConnection, query: str) -> Any:
    """The tree of a query. Raises OptionError unless it is one SELECT."""
    statements = connection.extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise OptionError("a query is one SELECT: it reads, and there is nothing to change")
    return parsed(connection, query)


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
            # In one transaction now() is one moment, for the plan and for the answer.
            connection.begin()
            for name, relation in made.items():
                empty = pyarrow.dataset.dataset(relation.schema.empty_table())
                connection.register(f"_{name}", empty)
                names = (each.replace('"', '""') for each in relation.order)
                columns = ", ".join(f'"{each}"' for each in names)
                connection.execute(f"CREATE TEMP VIEW {name} AS SELECT {columns} FROM _{name}")
                connection.fetchall()
            needs = needs_of(connection, query, {name: x.schema for name, x in made.items()})
            for name, relation in made.items():
                scan = _Scan(relation, needs.get(name, Needs()), failed)
                connection.register(f"_{name}", scan)
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
            if any(each.get("class") == "SUBQUERY" for each in nodes(tree)):
                raise OptionError("a condition looks at one row, and has no query in it: use sql")
            self._connection.register("log", pyarrow.dataset.dataset(columns.empty_table()))
            found = needs_of(self._connection, query, {"log": columns})
        words = {word.lower() for name in columns_in(tree) for word in (name, *name.split("."))}
        self.columns = frozenset(name for name in columns.names if name.lower() in words)
        # Of a condition that is never true the plan has no scan.
        ranges = found["log"].ranges if "log" in found else {"_wal_position": NOTHING}
        self.needs = Needs(self.columns, ranges)

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows for which it is true. Raises OptionError."""
        named = [name for name in batch.schema.names if name in self.columns]
        with _our_errors():
            self._connection.register("log", pa.table(batch.select(named or [0])))
            kept = self._connection.sql(self._kept).to_arrow_reader(_BATCH).read_all()
        return batch.filter(kept.column(0).combine_chunks())
