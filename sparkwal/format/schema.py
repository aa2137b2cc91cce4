"""Spark's schema JSON and the one Arrow schema that carries it.

The log stores Spark's schema; the Arrow schema of every object follows from it, so that any writer
and any reader agree. All columns are nullable: Spark's readers require it, writers may lack one.
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

# Of the JSON text that an object holds.
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
            # This tag is how Spark distinguishes a variant from a plain struct.
            pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
        ]
    ),
}
_DDL = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
DECIMAL = re.compile(r"decimal\(([0-9]{1,2}),\s*([0-9]{1,2})\)")
_DAY_TIME = re.compile(r"interval (day|hour|minute|second)( to (hour|minute|second))?")
_TIME = re.compile(r"time\([0-9]\)")
# What a nested type holds besides a struct's fields.
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
    """The normalized schema that an object or a table holds, whoever wrote it. Raises ValueError
    for one that no log has, OptionError where `normalize` does.

    Metadata of fields is left out: Spark and Delta Lake take SQL expressions from it. No type is a
    user's own: Spark loads the class that it names.
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
    """Spark's schema JSON, nullable, without metadata. Raises OptionError for what Arrow lacks."""
    document = json.loads(spark_schema) if isinstance(spark_schema, str) else spark_schema
    return _json(_normal_fields(document["fields"], ""))


def _json(fields: list[dict[str, Any]]) -> str:
    document = {"type": "struct", "fields": fields}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def _normal_fields(fields: list[dict[str, Any]], inside: str) -> list[dict[str, Any]]:
    names, found = set(), []
    for field in fields:
        name, path = field["name"], inside + field["name"]
        if name in names:
            raise OptionError(f"column {path!r} appears twice; give every column its own name")
        if collations := (field.get("metadata") or {}).get("__COLLATIONS"):
            collation = next(iter(collations.values())).rpartition(".")[2]
            # Without it the same texts would compare otherwise when they are read.
            raise OptionError(
                f"column {path!r} has the collation {collation}, which a log does not keep: write "
                f"{path} collate UTF8_BINARY, and collate when reading"
            )
        names.add(name)
        kind = _normal_type(field["type"], path)
        found.append({"name": name, "type": kind, "nullable": True, "metadata": {}})
    return found


def _normal_type(kind: Any, path: str) -> Any:
    what = "" if isinstance(kind, str) else kind["type"]
    if what == "struct":
        return {"type": what, "fields": _normal_fields(kind["fields"], f"{path}.")}
    if what in _PARTS:
        parts = {
            f"{part}Type": _normal_type(inner, f"{path}.{part}") for part, inner in inside(kind)
        }
        nulls = "containsNull" if what == "array" else "valueContainsNull"
        return {"type": what, **parts, nulls: True}
    if what == "udt":
        # Its class would have to be loaded, from the log, by every reader.
        raise OptionError(
            f"column {path!r} has a user-defined type ({kind.get('pyClass')}); a log holds no "
            "classes: convert it before writing, a vector for example with "
            "pyspark.ml.functions.vector_to_array"
        )
    # Through Arrow a char(n) or varchar(n) is a string like any other.
    if not what and re.fullmatch(r"(var)?char\(\d+\)", kind):
        return "string"
    if what or _leaf(kind) is None:
        raise OptionError(
            f"column {path!r} has type {what or kind}, which Spark's Python data source API cannot "
            "carry; cast it (for example to string or bigint) before writing"
        )
    return kind


def inside(kind: Any) -> list[tuple[str, Any]]:
    """(name, type) of what a type holds: a struct's fields, an array's element, a map's two."""
    if isinstance(kind, str):
        return []
    if kind["type"] == "struct":
        return [(field["name"], field["type"]) for field in kind["fields"]]
    return [(part, kind[f"{part}Type"]) for part in _PARTS[kind["type"]]]


def with_inside(kind: Any, parts: Mapping[str, Any]) -> Any:
    """A nested type with other types by the names that `inside` gives."""
    if kind["type"] == "struct":
        fields = [{**field, "type": parts[field["name"]]} for field in kind["fields"]]
        return {**kind, "fields": fields}
    return {**kind, **{f"{part}Type": inner for part, inner in parts.items()}}


def check_columns(spark_schema: str) -> None:
    """For writers: a log keeps its columns for ever. Raises OptionError for no columns at all, for
    names that differ only in case, and for a column of nulls only, whose type could not change."""
    document = json.loads(spark_schema)
    if not document["fields"]:
        raise OptionError(
            "these rows have no columns, and no log of them could be read; write at least one"
        )
    _check_inside(document, "")


def _check_inside(kind: Any, path: str) -> None:
    known: dict[str, str] = {}
    for name, inner in inside(kind):
        here = path + name
        other = known.setdefault(name.lower(), here)
        if other != here:
            raise OptionError(
                f"columns {other!r} and {here!r} differ only in case, and Spark reads names "
                "without regard to it; rename one of them"
            )
        if inner == "void":
            raise OptionError(
                f"column {here!r} has type void, and the type of a log's column never changes; "
                "cast it to the type that it will have, for example cast(null as string)"
            )
        _check_inside(inner, f"{here}.")


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
    """The normalized Spark schema whose `to_arrow` holds every value of `arrow_schema`. Raises
    OptionError naming the first column whose values the log could not keep (unsigned 64-bit
    numbers, nanoseconds), or a name that appears twice."""
    fields = [field_json(field, field.name) for field in arrow_schema]
    return normalize({"type": "struct", "fields": fields})


def columns(spark_schema: str) -> dict[str, Any]:
    """Column name → Spark's JSON of its type, in order."""
    return {field["name"]: field["type"] for field in json.loads(spark_schema)["fields"]}


def type_name(kind: Any) -> str:
    """A type for people, as in Spark's DDL."""
    if isinstance(kind, str):
        return _DDL.get(kind, kind)
    named = kind["type"] == "struct"
    inner = ", ".join(f"{name}: " * named + type_name(each) for name, each in inside(kind))
    return f"{kind['type']}<{inner}>"


def append_fields(spark_schema: str, new: list[dict[str, Any]]) -> str:
    return _json(json.loads(spark_schema)["fields"] + new)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`batch` with exactly `schema`: columns by name, those it lacks as null. Zero-copy where only
    nullability, field names or time zones differ."""
    if batch.schema.equals(schema, check_metadata=True):
        return with_offsets(batch)
    arrays = _by_name(schema, batch.schema, batch.column, batch.num_rows)
    if not arrays:
        # A batch without columns still has rows.
        return pa.RecordBatch.from_struct_array(pa.nulls(batch.num_rows, pa.struct([])))
    return with_offsets(pa.RecordBatch.from_arrays(arrays, schema=schema))


def with_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """`batch` with offsets for each list that lies in another and has no elements.

    Arrow for Java before version 19, as Spark 4.0 and 4.1 have it, leaves these offsets out.
    pyarrow's `nbytes` follows a null pointer then, and the process ends.
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
    wanted: Iterable[pa.Field], known: Any, child: Callable[[int], pa.Array], length: int
) -> list[pa.Array]:
    """The children of a batch or a struct that `known`, its schema or type, names so; or null."""
    places = ((known.get_field_index(field.name), field.type) for field in wanted)
    return [pa.nulls(length, kind) if at < 0 else _cast(child(at), kind) for at, kind in places]


def gathered(
    batches: Iterable[pa.RecordBatch], most_bytes: int, most_rows: float = inf, most_ms: float = inf
) -> Iterator[pa.Table]:
    """The rows of batches, as soon as they are so many bytes or rows, or the first came so long
    ago."""
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
    """The rows of a batch in batches of at most so many bytes, or of one row."""
    if batch.nbytes <= most_bytes or batch.num_rows < 2:
        yield batch
        return
    half = batch.num_rows // 2
    yield from cut(batch.slice(0, half), most_bytes)
    yield from cut(batch.slice(half), most_bytes)


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    """`array` as `target`; nested types keep their buffers where the layout is the same."""
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
