"""The compaction's settings in a log, as a reader uses them: their writer may be hostile."""

from __future__ import annotations

import base64
import json
import pickle
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import sparkwal
from sparkwal.errors import OptionError, TableReadError
from sparkwal.format.lifecycle_record import FLOOR
from sparkwal.lifecycle.merging.keyed import holds
from sparkwal.spark.conditions import deletes
from sparkwal.spark.delta_writing import isolated_session
from tests.lifecycle.lakes import Lake, value

ROWS = pa.table(
    {
        "op": ["d", "u", None, "D ", "line\nend", "ä_%", ""],
        "n": pa.array([1, 2, None, -1, 2**31 - 1, 0, 7], pa.int32()),
        "big": pa.array([1, 2**53 + 1, None, -1, 2**40, 0, 7], pa.int64()),
        "Gone": [True, False, None, True, False, True, False],
        "day": [date(2024, 1, n) if n else None for n in (1, 2, 0, 3, 4, 5, 6)],
        "dec": pa.array([Decimal(n) / 4 for n in (6, 8, 0, -2, 1, 4, 3)], pa.decimal128(9, 2)),
        "s": [{"op": "d", "In": 1}, {"op": "u", "In": None}, None, None, None, None, None],
        "odd `name": ["it", "x", None, "y", "z", "", "it"],
        "f": [1.0, 2.5, None, float("nan"), -0.0, 0.0, 1e3],
    }
)
# Each is read by Spark as a text too.
CONDITIONS = [
    "op = 'd'",
    "'d' == OP",
    "op <> 'd'",
    "NOT op != 'd' OR gone",
    "NOT op = 'd' AND gone OR n > 1",
    "NOT (op = 'd' OR n > 1)",
    "op <=> null",
    "op IS NULL OR dec IS NOT NULL",
    "op IN ('d', 'u')",
    "op NOT IN ('d', NULL)",
    "n IN (1, 2147483648, null)",
    "op LIKE '%'",
    "op LIKE '_'",
    "op NOT LIKE 'line%'",
    "op LIKE '%\n%'",
    "op LIKE 'line_end'",
    "lower(trim(op)) = 'd'",
    "upper(op) IN ('D', 'U')",
    "length(op) > 1",
    "coalesce(gone, false)",
    "coalesce(op, `odd ``name`, 'x') = 'x'",
    "n = 1.0",
    "n < 1e0",
    "big = 9007199254740993",
    "dec >= 1.50",
    "dec IN (1, 1.5, 2)",
    "dec = 1.501",
    "day < '2024-01-03'",
    "day BETWEEN '2024-01-01' AND '2024-01-02'",
    "f = 1",
    "f <> f",
    "f >= 0.0",
    "s.op = 'd'",
    "S.`in` IS NULL",
    "gone",
    "gone <> TRUE",
    "(n = 1) = gone",
    "true AND n = 1",
    " AND ".join(["n >= 0"] * 300),
]


@pytest.mark.slow
def test_a_parsed_condition_selects_the_same_rows_as_its_text(delta: SparkSession) -> None:
    session = isolated_session(delta)
    rows = session.createDataFrame(ROWS)
    alone = ["day BETWEEN '2024-01-01' AND '2024-01-02'"]
    for text in alone:
        with pytest.raises(OptionError, match="more than a reader takes from a log"):
            deletes(text, rows.schema, is_own=False)
    texts = [text for text in CONDITIONS if text not in alone]
    as_text = [F.coalesce(F.expr(x).cast("boolean"), F.lit(False)).alias(x) for x in texts]
    as_tree = [deletes(x, rows.schema, is_own=False).alias(x) for x in texts]
    expected, found = (rows.select(*each).toPandas() for each in (as_text, as_tree))
    without_spark = 0
    for place, text in enumerate(texts):
        assert found.iloc[:, place].tolist() == expected.iloc[:, place].tolist(), text
        try:
            on_arrow = holds(text, ROWS).to_pylist()
        except OptionError:
            continue
        without_spark += 1
        assert on_arrow == expected.iloc[:, place].tolist(), text
    assert without_spark > 15


PROPERTY = "sparkwal.condition"
CALLS_JAVA = (
    f"coalesce(java_method('java.lang.System','setProperty','{PROPERTY}','set'), 'x') = 'never'"
)


def forged(lake: Lake, **changes: Any) -> None:
    """A lifecycle record with other settings of the table than the compaction's."""
    target = lake.head().target
    assert target is not None
    lake.put(FLOOR, target=replace(target, **changes))


def test_a_condition_that_calls_java_is_not_run_by_a_reader(
    delta: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, "id", spark=delta, delete_when="v = 'x'")
    lake.append([value(1)])
    lake.compact()
    lake.append([value(2)])
    forged(lake, delete_when=CALLS_JAVA)
    with pytest.raises(OptionError, match=r"it calls java_method.*read_current\(…, delete_when=…"):
        lake.current().collect()
    with pytest.raises(OptionError, match="cannot be evaluated without Spark"):
        sparkwal.Log(lake.path).current().to_arrow()
    jvm: Any = delta._jvm
    assert jvm.java.lang.System.getProperty(PROPERTY) is None
    # The caller's own text may be anything.
    assert {row.id for row in lake.current(delete_when=CALLS_JAVA).collect()} == {1, 2}
    assert jvm.java.lang.System.getProperty(PROPERTY) == "set"
    jvm.java.lang.System.clearProperty(PROPERTY)


def test_another_condition_than_the_logs_is_refused(delta: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path, "id", spark=delta, delete_when="v = 'x'")
    lake.append([value(1)])
    lake.compact()
    with pytest.raises(OptionError, match="delete_when is \"v = 'y'\".*has \"v = 'x'\""):
        lake.current(delete_when="v = 'y'")


def test_no_class_that_a_table_names_is_loaded(delta: SparkSession, tmp_path: Path) -> None:
    """PySpark unpickles the class of a user-defined type when it looks at a schema."""
    lake = Lake(tmp_path, spark=delta)
    lake.append([value(1)])
    lake.compact()
    made = tmp_path / "loaded"

    class Touches:
        def __reduce__(self) -> Any:
            return (Path.touch, (made,))

    kind = {
        "type": "udt",
        "pyClass": "here.Missing",
        "serializedClass": base64.b64encode(pickle.dumps(Touches())).decode(),
        "sqlType": "string",
    }
    log = tmp_path / "table" / "_delta_log"
    (first, *_) = sorted(log.glob("*.json"))
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            schema["fields"][1]["type"] = kind
            action["metaData"]["schemaString"] = json.dumps(schema)
    first.write_text("\n".join(map(json.dumps, actions)))
    (log / f".{first.name}.crc").unlink(missing_ok=True)
    with pytest.raises(TableReadError, match="udt"):
        lake.current().collect()
    assert not made.exists()
