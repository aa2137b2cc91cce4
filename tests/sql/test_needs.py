"""The pushdown of a query equals the scans of DuckDB's plan, for every query."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkwal.sql.database import LAST, Condition, Pushdown, Range, Relation, run_query

LOG = pa.schema(
    [
        ("_wal_position", pa.int64()),
        ("_wal_timestamp", pa.timestamp("us", "UTC")),
        ("id", pa.int64()),
        ("name", pa.string()),
        ("a.b", pa.int64()),
        ('q"t', pa.int64()),
        ("s", pa.struct([("x", pa.int64()), ("y", pa.string())])),
    ]
)
RECORDS = pa.schema([("position", pa.int64()), ("time", pa.timestamp("us", "UTC"))])
P, T = "_wal_position", "_wal_timestamp"
MIDNIGHT = 1_769_817_600_000_000  # 2026-01-31


def pushdowns_of(query: str) -> dict[str, list[Pushdown]]:
    """The pushdown of each relation's scans, in the order in which they begin."""
    found: dict[str, list[Pushdown]] = {"log": [], "records": []}

    def made(name: str, schema: pa.Schema) -> Relation:
        def rows(pushdown: Pushdown) -> Iterator[pa.RecordBatch]:
            found[name].append(pushdown)
            # The condition excludes this row, so the result does not depend on it.
            yield pa.RecordBatch.from_pylist([{}], schema=schema)

        return Relation(schema, schema.names, rows)

    run_query(
        {"log": lambda: made("log", LOG), "records": lambda: made("records", RECORDS)}, query
    ).read_all()
    return found


@pytest.mark.parametrize(
    ("query", "columns", "ranges"),
    [
        ("SELECT count(*) FROM log", {P}, [{}]),
        ("SELECT id FROM log", {"id"}, [{}]),
        ("SELECT id FROM log WHERE name LIKE '%x'", {"id", "name"}, [{}]),
        ("SELECT id FROM log WHERE _wal_position BETWEEN 5 AND 9", {"id", P}, [{P: (5, 9)}]),
        ("SELECT id FROM log WHERE NOT _wal_position < 5", {"id", P}, [{P: (5, LAST)}]),
        ("SELECT id FROM log WHERE 5 < _wal_position", {"id", P}, [{P: (6, LAST)}]),
        ("SELECT id FROM log WHERE _wal_position IN (3, 9, 5)", {"id", P}, [{P: (3, 9)}]),
        (
            "SELECT id FROM log WHERE _wal_position = 3 OR _wal_position > 7",
            {"id", P},
            [{P: (3, LAST)}],
        ),
        ("SELECT id FROM log WHERE _wal_position = 3 OR id > 7", {"id", P}, [{}]),
        (
            "SELECT 1 FROM log WHERE _wal_position > 3 AND id = 5",
            {"id", P},
            [{P: (4, LAST), "id": (5, 5)}],
        ),
        ("SELECT 1 FROM log WHERE _wal_timestamp >= '2026-01-31'", {P, T}, [{T: (MIDNIGHT, LAST)}]),
        (
            "SELECT 1 FROM log WHERE _wal_timestamp < '2026-01-31 01:00:00+01'",
            {P, T},
            [{T: (0, MIDNIGHT - 1)}],
        ),
        ("SELECT 1 FROM log WHERE _wal_timestamp > '0044-03-15 (BC)'", {T}, [{}]),
        ("SELECT s.x FROM log", {"s"}, [{}]),
        ('SELECT "a.b" FROM log WHERE "q""t" = 4', {"a.b", 'q"t'}, [{'q"t': (4, 4)}]),
        # A text literal is no condition.
        ('SELECT 1 FROM log WHERE name = $$\') OR ("_wal_position" = 3$$', {"name", P}, [{}]),
        (
            "SELECT 1 FROM log WHERE name = 'it''s' AND _wal_position < 9",
            {"name", P},
            [{P: (0, 8)}],
        ),
        # Two scans of one relation: each what it pushdown itself.
        (
            "SELECT a.id FROM log a JOIN log b USING (id) WHERE a._wal_position = 3 AND "
            "b._wal_position = 7",
            {"id", P},
            [{P: (7, 7)}, {P: (3, 3)}],
        ),
        (
            "SELECT id FROM log WHERE _wal_position > (SELECT max(_wal_position) - 3 FROM log)",
            {"id", P},
            [{}, {}],
        ),
        (
            "WITH x AS (FROM log WHERE _wal_position > 7) SELECT sum(a.id) FROM x a, x b",
            {"id", P},
            [{P: (8, LAST)}],
        ),
    ],
)
def test_a_query_reads_only_its_columns_and_ranges(
    query: str, columns: set[str], ranges: list[dict[str, Range]]
) -> None:
    found = pushdowns_of(query)["log"]
    assert {name for each in found for name in each.columns} == columns
    assert sorted(map(_narrowed, found), key=str) == sorted(ranges, key=str)


def _narrowed(pushdown: Pushdown) -> dict[str, Range]:
    every = ((name, pushdown.range_of(name)) for name in (P, T, "id", 'q"t'))
    return {name: found for name, found in every if found != (0, LAST)}


def test_each_relation_has_its_own_columns_and_ranges() -> None:
    found = pushdowns_of(
        "SELECT id FROM log JOIN records ON position = _wal_position WHERE position < 4 AND id > 7",
    )
    assert [each.range_of("position") for each in found["records"]] == [(0, 3)]
    assert [each.columns for each in found["log"]] == [{"id", P}]
    assert not any(
        pushdowns_of("SELECT 1 FROM log WHERE _wal_position > 5 AND _wal_position < 3").values()
    )


PLACES = st.integers(-3, 12)
CONDITIONS = st.recursive(
    st.one_of(
        st.builds(
            "_wal_position {} {}".format, st.sampled_from(["<", "<=", "=", ">", ">=", "<>"]), PLACES
        ),
        st.builds("{} > _wal_position".format, PLACES),
        st.builds("_wal_position BETWEEN {} AND {}".format, PLACES, PLACES),
        st.builds("_wal_position IN ({}, {})".format, PLACES, PLACES),
        st.builds(
            "_wal_timestamp {} to_timestamp({})".format, st.sampled_from(["<", "=", ">="]), PLACES
        ),
        st.builds("id {} {}".format, st.sampled_from(["<", "=", ">"]), PLACES),
        st.sampled_from(
            [
                "name IS NULL",
                "_wal_position % 2 = 1",
                "_wal_position::DOUBLE < 4.5",
                "name = ') OR (_wal_position = 3'",
                "_wal_position IS NOT NULL",
            ]
        ),
    ),
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=6,
)


@given(CONDITIONS)
def test_no_row_for_which_a_condition_is_true_is_outside_of_the_ranges(text: str) -> None:
    columns = pa.schema([LOG.field(n) for n in (P, T, "id", "name")])
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array(range(10)),
            pa.array([n * 1_000_000 for n in range(10)], columns.field(T).type),
            pa.array([(n * 7) % 5 for n in range(10)]),
            pa.array([None if n % 3 else "x" for n in range(10)]),
        ],
        schema=columns,
    )
    condition = Condition(text, columns)
    for row in condition.filter(rows).to_pylist():
        for name, value in ((P, row[P]), (T, row[P] * 1_000_000), ("id", row["id"])):
            low, high = condition.pushdown.range_of(name)
            assert low <= value <= high, text
    missing = set(columns.names) - condition.columns - {P}
    blank = rows
    for place, name in enumerate(columns.names):
        if name in missing:
            blank = blank.set_column(
                place, columns.field(name), pa.nulls(10, rows.column(name).type)
            )
    assert condition.filter(blank).column(P).equals(condition.filter(rows).column(P)), text
