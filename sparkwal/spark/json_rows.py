"""The values of refused rows as JSON, and back: each in the type of its column in the table."""

from collections.abc import Iterable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sparkwal.lifecycle.range_rows import REASON
from sparkwal.spark.refusing import tried

# The values of a row as JSON keep what these would lose.
JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_STRICT = {**JSON_OPTIONS, "mode": "FAILFAST"}
_TIMES = DateType | TimestampType | TimestampNTZType
_READABLE = StringType | BinaryType | BooleanType | NumericType | _TIMES


def with_values(rows: DataFrame, names: Iterable[str], table: StructType) -> DataFrame:
    """Convert the JSON of refused rows to the values that a table stores.

    Args:
        rows: rows with the column `values`.
        names: the columns in their JSON.
        table: the table's columns.

    Returns:
        The rows with these columns of the table instead of `values`, and with REASON: why the
            values of a row cannot be converted; null if they can.
    """
    in_table: Mapping[str, StructField] = {field.name.lower(): field for field in table.fields}
    reasons: list[Column] = []
    values: dict[str, list[Column]] = {}
    for name in names:
        field = in_table.get(name.lower())
        if field is not None and _is_readable(field.dataType):
            value = tried(_value(name, field.dataType))
            is_wrong = value.isNull()
            why = f"its {name} is no {field.dataType.simpleString()}"
            values.setdefault(field.name, []).append(value["value"])
        else:
            is_wrong = _parsed(name, StringType(), JSON_OPTIONS).isNotNull()
            why = f"the table has no column {name}"
            if field is not None:
                kind = field.dataType.simpleString()
                why = f"its {name} cannot be read back: the column is a {kind}"
                values.setdefault(field.name, []).append(F.lit(None).cast(field.dataType))
        reasons.append(F.when(is_wrong, F.lit(why)))
    columns = [F.coalesce(*candidates).alias(name) for name, candidates in values.items()]
    reason = F.coalesce(*reasons, F.lit(None).cast("string"))
    own = [name for name in rows.columns if name != "values"]
    return rows.select(*columns, *own, reason.alias(REASON))


def _is_readable(kind: DataType) -> bool:
    """Whether JSON keeps all of the values of a type."""
    match kind:
        case StructType():
            return all(_is_readable(field.dataType) for field in kind.fields)
        case ArrayType():
            return _is_readable(kind.elementType)
        case MapType():
            is_key = isinstance(kind.keyType, StringType | BooleanType | NumericType | _TIMES)
            return is_key and _is_readable(kind.valueType)
    return isinstance(kind, _READABLE)


def _value(name: str, kind: DataType) -> Column:
    """The value of a column in the JSON. It fails on a row whose JSON has no such value."""
    return _with_keys(_parsed(name, _in_json(kind), _STRICT), kind)


def _parsed(name: str, kind: DataType, options: Mapping[str, str]) -> Column:
    schema = StructType([StructField(name, kind)])
    return F.from_json(F.col("values"), schema, dict(options)).getField(name)


def _in_json(kind: DataType) -> DataType:
    """The type with texts as the keys of maps: JSON has no others."""
    match kind:
        case StructType():
            fields = [StructField(x.name, _in_json(x.dataType)) for x in kind.fields]
            return StructType(fields)
        case ArrayType():
            return ArrayType(_in_json(kind.elementType))
        case MapType():
            return MapType(StringType(), _in_json(kind.valueType))
    return kind


def _with_keys(value: Column, kind: DataType) -> Column:
    """A value of `_in_json` of a type as one of that type."""
    match kind:
        case StructType():
            fields = (
                _with_keys(value.getField(x.name), x.dataType).alias(x.name) for x in kind.fields
            )
            return F.when(value.isNotNull(), F.struct(*fields))
        case ArrayType():
            return F.transform(value, lambda x: _with_keys(x, kind.elementType))
        case MapType():
            value = F.transform_values(value, lambda _, x: _with_keys(x, kind.valueType))
            return F.transform_keys(value, lambda key, _: _key(key, kind.keyType))
    return value


def _key(text: Column, kind: DataType) -> Column:
    """A key of a map, as Spark's JSON writes it: times as their numbers."""
    match kind:
        case DateType():
            return F.date_from_unix_date(text.cast("int"))
        case TimestampType() | TimestampNTZType():
            return F.timestamp_micros(text.cast("bigint")).cast(kind)
    return text.cast(kind)
