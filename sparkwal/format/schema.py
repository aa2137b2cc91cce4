"""Spark's schema JSON, and the Arrow schema that follows from it.

The log stores Spark's schema. The Arrow schema of every object follows from it, so that all writers
and readers agree. All columns are nullable, because Spark's readers require that, and a writer may
lack a column.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from math import inf
from typing import Any

import msgspec
import pyarrow as pa

from sparkwal.errors import OptionError
from sparkwal.format.arrow_types import DEEPEST, depth, field_json

# The most bytes of a schema's JSON in an object.
LONGEST = 4 * 2**20

_PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "void": pa.null(),
    "string": pa.string(),
    "binary": pa.binary(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "variant": pa.struct(
        [
            pa.field("value", pa.binary(), nullable=False),
            # By this tag Spark distinguishes a variant from a struct.
            pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
        ]
    ),
}
_DDL = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
DECIMAL = re.compile(r"decimal\(([0-9]{1,2}),\s*([0-9]{1,2})\)")
_DAY_TIME = re.compile(r"interval (day|hour|minute|second)( to (hour|minute|second))?")
_TIME = re.compile(r"time\([0-9]\)")
# The names of the types inside of an array and a map.
_PARTS = {"array": ("element",), "map": ("key", "value")}
_SPATIAL = re.compile(r"geometry\(\w+:-?\w+\)|geography\(\w+:-?\w+, \w+\)")


class _Array(msgspec.Struct, tag_field="type", tag="array"):
    elementType: "_Type"


class _Map(msgspec.Struct, tag_field="type", tag="map"):
    keyType: "_Type"
    valueType: "_Type"


class _Metadata(msgspec.Struct):
    collations: dict[str, str] = msgspec.field(default_factory=dict, name="__COLLATIONS")


class _Field(msgspec.Struct):
    name: str
    type: "_Type"
    metadata: _Metadata | None = None


class _Struct(msgspec.Struct, tag_field="type", tag="struct"):
    fields: list[_Field]


_Type = str | _Array | _Map | _Struct
_stored = msgspec.json.Decoder(_Struct)


@lru_cache(maxsize=64)
def read(text: bytes) -> str:
    """The normalized schema of an object or a table, whose writer may be hostile.

    Metadata of fields is left out, because Spark and Delta Lake evaluate SQL expressions in it.
    User-defined types are refused, because Spark would load their classes.

    Raises:
        ValueError: no log has such a schema.
        OptionError: as for `normalize`.
    """
    if len(text) > LONGEST:
        raise ValueError(f"{len(text)} bytes; at most {LONGEST} are read")
    try:
        normal = normalize(msgspec.to_builtins(_stored.decode(text)))
        levels = max(map(depth, to_arrow(normal).types), default=0)
    except RecursionError:
        levels = DEEPEST + 1
    if levels > DEEPEST:
        raise ValueError(f"more than {DEEPEST} levels")
    return normal


def normalize(spark_schema: str | dict[str, Any]) -> str:
    """Spark's schema JSON with nullable columns and without metadata.

    Raises:
        OptionError: a log cannot hold a column.
    """
    document = json.loads(spark_schema) if isinstance(spark_schema, str) else spark_schema
    return _json(_normal_fields(document["fields"], ""))


def _json(fields: list[dict[str, Any]]) -> str:
    document = {"type": "struct", "fields": fields}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def _normal_fields(fields: list[dict[str, Any]], inside: str) -> list[dict[str, Any]]:
    names = set()
    normal_fields = []
    for field in fields:
        name, path = field["name"], inside + field["name"]
        if name in names:
            raise OptionError(f"column {path!r} appears twice; give every column its own name")
        if collations := (field.get("metadata") or {}).get("__COLLATIONS"):
            collation = next(iter(collations.values())).rpartition(".")[2]
            # Without the collation, readers would compare the texts in another way.
            raise OptionError(
                f"column {path!r} has the collation {collation}, which a log does not keep: write "
                f"{path} collate UTF8_BINARY, and collate when reading"
            )
        names.add(name)
        kind = _normal_type(field["type"], path)
        normal_fields.append({"name": name, "type": kind, "nullable": True, "metadata": {}})
    return normal_fields


def _normal_type(kind: Any, path: str) -> Any:
    nesting = "" if isinstance(kind, str) else kind["type"]
    if nesting == "struct":
        return {"type": nesting, "fields": _normal_fields(kind["fields"], f"{path}.")}
    if nesting in _PARTS:
        parts = {
            f"{part}Type": _normal_type(inner, f"{path}.{part}") for part, inner in inside(kind)
        }
        nulls = "containsNull" if nesting == "array" else "valueContainsNull"
        return {"type": nesting, **parts, nulls: True}
    if nesting == "udt":
        # Every reader would have to load the class that the log names.
        raise OptionError(
            f"column {path!r} has a user-defined type ({kind.get('pyClass')}); a log holds no "
            "classes: convert it before writing, a vector for example with "
            "pyspark.ml.functions.vector_to_array"
        )
    # In Arrow, char(n) and varchar(n) are strings.
    if not nesting and re.fullmatch(r"(var)?char\(\d+\)", kind):
        return "string"
    if nesting or _leaf(kind) is None:
        raise OptionError(
            f"column {path!r} has type {nesting or kind}, which Spark's Python data source API "
            "cannot carry; cast it (for example to string or bigint) before writing"
        )
    return kind


def inside(kind: Any) -> list[tuple[str, Any]]:
    """The names and types inside of a type: a struct's fields, an array's element, a map's two."""
    if isinstance(kind, str):
        return []
    if kind["type"] == "struct":
        return [(field["name"], field["type"]) for field in kind["fields"]]
    return [(part, kind[f"{part}Type"]) for part in _PARTS[kind["type"]]]


def with_inside(kind: Any, parts: Mapping[str, Any]) -> Any:
    """A nested type with other types inside, by the names of `inside`."""
    if kind["type"] == "struct":
        fields = [{**field, "type": parts[field["name"]]} for field in kind["fields"]]
        return {**kind, "fields": fields}
    return {**kind, **{f"{part}Type": inner for part, inner in parts.items()}}


def check_columns(spark_schema: str) -> None:
    """Check a writer's schema, because a log never loses a column.

    Raises:
        OptionError: there are no columns, two names differ only in case, a name has a null
            character, or a column has the type void, which could never change.
    """
    document = json.loads(spark_schema)
    if not document["fields"]:
        raise OptionError(
            "these rows have no columns, and no log of them could be read; write at least one"
        )
    _check_inside(document, "")


def _check_inside(kind: Any, path: str) -> None:
    paths: dict[str, str] = {}
    for name, inner in inside(kind):
        column = path + name
        if "\0" in name:
            # In Arrow's C interface, and so for DuckDB and polars, the name ends there.
            raise OptionError(
                f"column {column!r} has a null character in its name, where many readers end the "
                "name; rename it"
            )
        other = paths.setdefault(name.lower(), column)
        if other != column:
            raise OptionError(
                f"columns {other!r} and {column!r} differ only in case, and Spark reads names "
                "without regard to it; rename one of them"
            )
        if inner == "void":
            raise OptionError(
                f"column {column!r} has type void, and the type of a log's column never changes; "
                "cast it to the type that it will have, for example cast(null as string)"
            )
        _check_inside(inner, f"{column}.")


def _leaf(kind: str) -> pa.DataType | None:
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    if match := DECIMAL.fullmatch(kind):
        digits, scale = int(match[1]), int(match[2])
        return pa.decimal128(digits, scale) if 0 < digits <= 38 and scale <= digits else None
    if _DAY_TIME.fullmatch(kind):
        return pa.duration("us")
    if _TIME.fullmatch(kind):
        return pa.time64("ns")
    if _SPATIAL.fullmatch(kind):
        tag = kind.partition("(")[0]
        srid = pa.field("srid", pa.int32(), nullable=False)
        return pa.struct([srid, pa.field("wkb", pa.binary(), False, metadata={tag: "true"})])
    return None


def _arrow_type(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        leaf = _leaf(kind)
        assert leaf is not None, kind
        return leaf
    parts = [pa.field(name, _arrow_type(inner)) for name, inner in inside(kind)]
    if kind["type"] == "struct":
        return pa.struct(parts)
    if kind["type"] == "array":
        return pa.list_(*parts)
    key, value = parts
    return pa.map_(key.with_nullable(False), value)


@lru_cache(maxsize=64)
def to_arrow(spark_schema: str) -> pa.Schema:
    """The Arrow schema of a normalized Spark schema."""
    return pa.schema(list(_arrow_type(json.loads(spark_schema))))


def from_arrow(arrow_schema: pa.Schema) -> str:
    """The normalized Spark schema that holds every value of an Arrow schema.

    Raises:
        OptionError: the log cannot hold the values of a column (unsigned 64-bit numbers,
            nanoseconds), or a name appears twice.
    """
    fields = [field_json(field, field.name) for field in arrow_schema]
    return normalize({"type": "struct", "fields": fields})


def columns(spark_schema: str) -> dict[str, Any]:
    """Spark's JSON of each column's type, by name, in order."""
    return {field["name"]: field["type"] for field in json.loads(spark_schema)["fields"]}


def type_name(kind: Any) -> str:
    """A type for people, as in Spark's DDL."""
    if isinstance(kind, str):
        return _DDL.get(kind, kind)
    has_names = kind["type"] == "struct"
    parts = ", ".join(f"{name}: " * has_names + type_name(part) for name, part in inside(kind))
    return f"{kind['type']}<{parts}>"


def quoted(name: str) -> str:
    """A column's name in Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def append_fields(spark_schema: str, new: list[dict[str, Any]]) -> str:
    return _json(json.loads(spark_schema)["fields"] + new)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a batch to a schema. Columns match by name, and missing columns become null.

    If only nullability, field names or time zones differ, no data is copied.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return with_offsets(batch)
    arrays = _by_name(schema, batch.schema, batch.column, batch.num_rows)
    if not arrays:
        # This keeps the number of rows of a batch without columns.
        return pa.RecordBatch.from_struct_array(pa.nulls(batch.num_rows, pa.struct([])))
    return with_offsets(pa.RecordBatch.from_arrays(arrays, schema=schema))


def with_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add the offsets that inner lists without elements may lack to a batch.

    Arrow for Java before version 19, which Spark 4.0 and 4.1 have, leaves these offsets out. Then
    pyarrow's `nbytes` follows a null pointer, and the process crashes.
    """
    if not any(field.type.num_fields for field in batch.schema):
        return batch
    arrays = [_with_offsets(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _with_offsets(array: pa.Array) -> pa.Array:
    kind = array.type
    if not (pa.types.is_struct(kind) or pa.types.is_list(kind) or pa.types.is_map(kind)):
        return array
    if not len(array):
        return pa.array([], kind)
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            return array
        children = [_with_offsets(array.field(index)) for index in range(kind.num_fields)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_list(kind):
        inner = _with_offsets(array.values)
    else:
        inner = pa.StructArray.from_arrays(
            [_with_offsets(array.keys), _with_offsets(array.items)],
            fields=[kind.key_field, kind.item_field],
        )
    return pa.Array.from_buffers(
        kind, len(array), array.buffers()[:2], array.null_count, array.offset, [inner]
    )


def _by_name(
    fields: Iterable[pa.Field], parent: Any, child: Callable[[int], pa.Array], length: int
) -> list[pa.Array]:
    """The children of a batch or a struct for some fields, by name. A missing child is null.

    Args:
        parent: the schema of the batch, or the type of the struct.
        child: returns a child by its index.
    """
    columns = ((parent.get_field_index(field.name), field.type) for field in fields)
    return [
        pa.nulls(length, kind) if index < 0 else _cast(child(index), kind)
        for index, kind in columns
    ]


def gathered(
    batches: Iterable[pa.RecordBatch], most_bytes: int, most_rows: float = inf, most_ms: float = inf
) -> Iterator[pa.Table]:
    """Gather the rows of batches into tables.

    A table is complete when it has so many bytes or rows, or when its first batch is so old.
    """
    waiting = list[pa.RecordBatch]()
    rows = 0
    size = 0
    began = 0.0
    for batch in batches:
        began = began if waiting else time.monotonic()
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        waited_ms = (time.monotonic() - began) * 1000
        if rows >= most_rows or size >= most_bytes or waited_ms >= most_ms:
            yield pa.Table.from_batches(waiting)
            waiting = []
            rows = 0
            size = 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def cut(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch into batches of at most `most_bytes`, or of one row."""
    if batch.nbytes <= most_bytes or batch.num_rows < 2:
        yield batch
        return
    half = batch.num_rows // 2
    yield from cut(batch.slice(0, half), most_bytes)
    yield from cut(batch.slice(half), most_bytes)


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast an array. The buffers of nested types are not copied if their layout is the same."""
    if array.type.equals(target, check_metadata=True):
        return array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not target.num_fields or array.type.id != target.id:
        return array.cast(target)
    if pa.types.is_struct(target):
        child = partial(pa.StructArray.field, array)
        children = _by_name(target, array.type, child, len(array))
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)
    if pa.types.is_list(target):
        inner = _cast(array.values, target.value_type)
    else:
        inner = pa.StructArray.from_arrays(
            [_cast(array.keys, target.key_type), _cast(array.items, target.item_type)],
            fields=[target.key_field, target.item_field],
        )
    return pa.Array.from_buffers(
        target, len(array), array.buffers()[:2], array.null_count, array.offset, [inner]
    )
