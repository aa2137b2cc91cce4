"""What the mutations of each kind put into inputs: JSON values and rules of a grammar."""

from __future__ import annotations

from typing import Any

from tests.fuzz.mutations import Mutation, grammar, json_lines

_TYPES: tuple[Any, ...] = (
    *("boolean", "void", "string", "binary", "byte", "short", "integer", "long", "float"),
    *("double", "date", "timestamp", "timestamp_ntz", "variant", "null", "char(3)", "varchar(9)"),
    *("decimal(38,18)", "decimal(0,0)", "decimal(1,2)", "decimal(38,38)", "decimal(10, 2)"),
    *("interval day to second", "interval second to day", "interval year", "time(6)", "time(9)"),
    *("geometry(4326)", "geometry(OGC:CRS84)", "geography(OGC:CRS84, SPHERICAL)", "calendar"),
    *("string collate UTF8_LCASE", "struct<a:int>", "array<int>", "udt"),
    {"type": "array", "elementType": "long", "containsNull": False},
    {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
    {"type": "map", "keyType": {"type": "struct", "fields": []}, "valueType": "void"},
    {"type": "struct", "fields": []},
    {"type": "udt", "class": "java.lang.Runtime", "pyClass": "os.system", "sqlType": "long"},
)
_FIELDS = tuple(
    {"name": name, "type": kind, "nullable": True, "metadata": {}}
    for kind in (*_TYPES[:12], *_TYPES[-5:])
    for name in ("v", "V", "a.b", "`")
)
_METADATA = (
    {"__COLLATIONS": {"v": "icu.UNICODE_CI"}},
    {"__COLLATIONS": {}},
    {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"},
    {"CURRENT_DEFAULT": "java_method('java.lang.System', 'exit', 1)"},
    {"delta.generationExpression": "reflect('java.lang.System', 'exit')"},
    {"delta.columnMapping.physicalName": "../x", "delta.columnMapping.id": 2**63},
)
_POSITIONS = (
    *("00000000000000000000", "00000000000000000001", "18446744073709551615", f"{2**63:020}"),
    *("9999999999999999999", "-0000000000000000001", "００００００００００００００００００００"),
)
_FRAME = [0, 0, 0, 0]
_HEADERS = (
    *_POSITIONS,
    *(_FRAME, [2**63 - 1, 2**63 - 1, 2**63 - 1, 0], [300, -200, 2, 1], [300, 200, 2, 2**32]),
    {"partition": 0, "rows": 2, "record_batches": 1, "bytes": 200, "crc32": 1},
    {"number": _POSITIONS[1], "partition": 0, "rows": 0, "bytes": 0, "crc32": 0, "frames": []},
    {"q": [0, 0], "append:x": [-1, 0], "other": [2**63 - 1, 1]},
    {
        "query": {
            "position": 1,
            "rows": 0,
            "bytes": 10,
            "crc32": 1,
            "reason": "",
            "files": {"sources/0/9.compact": [-2, 5], "../x": [-1, 1]},
            "inputs": {"offsets/0": 1},
            "name": "n",
        }
    },
    *("commit", "leader", "data", "a-0", "../../x", "seal"),
)
_TARGETS = (
    *("merge", "append", "intent", "done", "floor", *_POSITIONS, {"default": 1}, {"": 1}),
    *(["v"], ["`v`"], ["v", "V"], ["a\nb"], [["delta.appendOnly", "true"]], [["a", "b", "c"]]),
    *("file:///etc", "s3://key:secret@b/t", "http://localhost/x", "jdbc:h2:mem", "s3a://b/t?X=1"),
    *("java_method('a', 'b')", "v = 1 or reflect('a', 'b')", "not " * 40 + "v"),
)
_PLANS = (
    {"spark.sql.shuffle.partitions": "2"},
    {"spark.sql.streaming.stateStore.providerClass": "evil.Class"},
    {"spark.sql.streaming.internal.stateStore.partitions": "0"},
    {"spark.sql.streaming.queryEvolution.enableSourceEvolution": "true\n"},
    {"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}},
    {"logOffset": 3},
    {"logOffset": -1},
    {"path": "file:///etc/passwd", "timestamp": 1, "batchId": 3},
    {"log_id:default": "log", "default": 5},
    *("conf", "v1", "v2", "v3", "-", "spark.sql.extensions"),
)
_ACTIONS = (
    {"txn": {"appId": "log", "version": 2**63}},
    {"txn": {"appId": "log", "version": "1"}},
    {"remove": {"path": "a", "deletionTimestamp": "now"}},
    {"remove": {"path": ["a"], "deletionVector": "x"}},
    {"add": {"path": "a", "size": -1, "stats": "{}"}},
    {"sidecar": {"path": "../x.parquet", "sizeInBytes": 1}},
    {"checkpointMetadata": {"version": 0}},
    {"protocol": {"minReaderVersion": 99, "readerFeatures": ["x"]}},
    {"commitInfo": {"operation": "RESTORE", "operationParameters": {"version": '"-1"'}}},
    {"commitInfo": {"operation": "CREATE OR REPLACE TABLE", "timestamp": 10**400}},
    {"version": 0, "size": 1},
    {"version": -1},
    {"version": "1e3"},
    {"delta.deletedFileRetentionDuration": "interval 1 day"},
    '{"log_id":"log","k":9223372036854775808,"cut":-1,"to":true}',
    *("WRITE", "MERGE", "RESTORE", "Overwrite", "Complete", "٣", "²"),
)
_NOTES = (
    *("quarantine/00000000000000000003.wal", "quarantine/../x", "00000000000000000003.wal"),
    {"name": "quarantine/00000000000000000003.wal", "first": 1, "last": 2, "files": []},
)
_CONDITIONS = {
    "literal": ("1", "null", "true", "FALSE", "'d'", "''", "'%'", "'a%b%'", "1.5", "-1e400", "1e9"),
    "column": ("op", "n", "gone", "f", "day", "money", "`op`", "s.x", "`a``b`", "OP", "nothing"),
    "sign": ("=", "==", "<=>", "<>", "!=", "<", "<=", ">", ">="),
    "value": ("<literal>", "<column>", "<call>", "(<condition>)"),
    "choices": ("<literal>", "<literal>, <choices>"),
    "call": ("lower(<column>)", "coalesce(<value>, <value>)", "trim(<value>)", "exec(<value>)"),
    "predicate": (
        "<column> = <literal>",
        "<value>",
        "<value> <sign> <value>",
        "<column> <sign> <literal>",
        "<literal> <sign> <column>",
        "<column> in (<choices>)",
        "<column> not in (<choices>)",
        "<column> like '<pattern>'",
        "<column> is null",
        "<column> is not null",
    ),
    "pattern": ("d%", "%d", "_", "%%", "a%b%", "%a%b%", "(.*)*", "é", "[", "{1"),
    "condition": (
        "<predicate>",
        "not <predicate>",
        "<predicate> and <condition>",
        "<predicate> or <condition>",
        "(<condition>)",
        "not (<condition>)",
    ),
}
_JSON = {
    "header": (*_HEADERS, *_FIELDS),
    "schema": (*_TYPES, *_FIELDS, *_METADATA),
    "lifecycle": _TARGETS,
    "consumer": (*_POSITIONS, "lease-x", "daily.all"),
    "plan": _PLANS,
    "checkpoint": (*_PLANS, "offsets/7", "sources/../x", "sources/0/9.compact", "metadata"),
    "journal": (*_NOTES, *_POSITIONS),
    "segment": (*_HEADERS, *_FIELDS, "", "0", "1", "01", "2"),
    "table": (*_ACTIONS, *_TYPES),
}
MUTATIONS: dict[str, Mutation] = {
    **{kind: json_lines(fragments) for kind, fragments in _JSON.items()},
    "condition": grammar(_CONDITIONS, "condition"),
}
