"""Headers: there and back, and nothing wrong gets through."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkwal.errors import InvalidLogError
from sparkwal.format import arrowfile, keys
from sparkwal.format.header import (
    CRC_KEY,
    HEADER_KEY,
    SCHEMA_KEY,
    Batch,
    CommitHeader,
    DataHeader,
    Frame,
    Header,
    Inline,
    LeaderHeader,
    check_parts,
    crc_hex,
    from_metadata,
    parse_text,
    to_json,
)
from tests.headers import COMMIT, DATA, LEADER, POSITION, SPARK_SCHEMA, WINDOW, golden, plain

counts = st.integers(0, 2**63 - 1)
crcs = st.integers(0, 2**32 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
txns = st.dictionaries(texts, st.tuples(st.integers(-1, 2**63 - 1), counts), max_size=4)


@st.composite
def batch_of(draw: st.DrawFn, partition: int, number: int) -> Batch:
    """The entry of a data object whose frames follow each other."""
    few = st.integers(0, 2**50)
    sizes = draw(st.lists(st.tuples(few, few, counts), max_size=3))
    offsets = accumulate((length for length, _, _ in sizes), initial=draw(few))
    frames = tuple(Frame(at, *size) for at, size in zip(offsets, sizes, strict=False))
    rows = sum(frame.rows for frame in frames)
    return Batch(number, partition, rows, draw(counts), draw(crcs), frames)


@st.composite
def headers(draw: st.DrawFn) -> Header:
    """A header of any kind with any values."""
    window = draw(st.sampled_from(keys.WINDOWS))
    position = draw(st.integers(0, keys.last_position(window)))
    common: dict[str, Any] = {
        "position": position,
        "window": window,
        "leader_id": draw(texts),
        "term": draw(st.integers(1, 2**63 - 1)),
        "plan_id": draw(texts),
        "in_flight_limit": draw(st.integers(1, 1000)),
        "timestamp_ms": draw(st.integers(0, (2**63 - 1) // 1000)),
        "schema_crc32": draw(crcs),
        "log_id": draw(texts),
        "decided": draw(st.integers(-1, position - 1)),
    }
    of_query = {"query_id": draw(texts), "batch_id": draw(st.integers(-1, 2**63 - 1))}
    match draw(st.sampled_from(["data", "commit", "leader"])):
        case "data":
            partition = draw(st.integers(0, window - 2))
            number = keys.data(position, window, partition)
            return DataHeader(
                number,
                **common,
                **of_query,
                partition=partition,
                rows=draw(counts),
                stage_attempt=draw(counts),
            )
        case "commit":
            few = st.integers(0, 2**50)
            partitions = draw(st.lists(st.integers(0, window - 2), max_size=6, unique=True))
            stored = draw(st.integers(0, len(partitions)))
            batches = tuple(
                draw(batch_of(partition, keys.data(position, window, partition)))
                for partition in sorted(partitions[:stored])
            )
            inline = tuple(
                draw(st.builds(Inline, st.just(partition), few, counts, counts, crcs))
                for partition in sorted(partitions[stored:])
            )
            rows = sum(part.rows for part in (*batches, *inline))
            numbers = st.one_of(counts, st.floats(allow_nan=False, allow_infinity=False))
            return CommitHeader(
                keys.slot(position, window),
                **common,
                **of_query,
                rows=rows,
                bytes=draw(counts),
                batches=batches,
                inline=inline,
                txns=draw(txns),
                metrics=draw(st.dictionaries(texts, numbers, max_size=3)),
            )
    return LeaderHeader(
        keys.slot(position, window),
        **common,
        prev_position=draw(st.integers(-1, 2**63 - 1)),
        txns=draw(txns),
        reason=draw(texts),
        host=draw(texts),
    )


def decode(text: bytes) -> Header:
    """The header of a JSON text whose checksums are right."""
    metadata = {HEADER_KEY: text, CRC_KEY: crc_hex(text)}
    document = json.loads(text)
    crc = document.get("schema_crc32") if isinstance(document, dict) else None
    if crc == zlib.crc32(SPARK_SCHEMA.encode()):
        metadata[SCHEMA_KEY] = SPARK_SCHEMA.encode()
    return from_metadata(metadata, "test")[0]


@given(headers())
def test_a_header_survives_encoding_and_decoding(header: Header) -> None:
    text = to_json(header)
    document = json.loads(text)
    back = parse_text(text, "test")
    assert back == header
    assert to_json(back) == text
    # 64-bit numbers would lose digits in JavaScript and jq.
    assert document["number"] == f"{header.number:020d}"


WRONG: list[Any] = [
    None,
    True,
    1.5,
    -2,
    2**63,
    10**30,
    "text",
    "0" * 20,
    [],
    {},
    [1],
    {"a": 1},
    [[1, 2]],
    {"q": [1]},
    {"q": [1, "2"]},
    {"q": [True, 1]},
    [{}],
    [None],
]


def accepts(field: str, value: Any) -> bool:
    """A second statement of the values that the format allows for a field."""
    whole = type(value) is int and 0 <= value < 2**63
    match field:
        case "log_id" | "leader_id" | "plan_id" | "query_id" | "reason" | "host":
            return isinstance(value, str)
        case "rows" | "bytes" | "stage_attempt":
            return whole
        case "timestamp_ms":
            return whole and value <= 2**63 // 1000
        case "batch_id" | "prev_position":
            return type(value) is int and -1 <= value < 2**63
        case "batches" | "inline":
            return value == []
        case "txns":
            return value == {}
        case "metrics":
            return value in ({}, {"a": 1})
    return False  # every wrong value contradicts number, position, window, limit or term


@pytest.mark.parametrize("header", [LEADER, COMMIT, DATA], ids=lambda h: h.kind)
def test_a_field_of_a_wrong_type_or_range_is_refused_by_name(header: Header) -> None:
    document = json.loads(to_json(header))
    for field in document:
        for value in WRONG:
            if accepts(field, value) or document[field] == value:
                continue
            text = json.dumps({**document, field: value}).encode()
            with pytest.raises(InvalidLogError) as caught:
                decode(text)
            if field not in ("batches", "inline", "kind", "window", "number", "format"):
                assert field in str(caught.value) or "number" in str(caught.value)
        if field == "decided":
            continue  # older versions wrote none
        without = {name: value for name, value in document.items() if name != field}
        with pytest.raises(InvalidLogError):
            decode(json.dumps(without).encode())


@pytest.mark.parametrize("field", ["batches", "txns", "rows", "number", "leader_id", "query"])
def test_a_lone_surrogate_is_refused(field: str) -> None:
    document = {**json.loads(to_json(COMMIT)), field: "\ud800"}
    with pytest.raises(InvalidLogError):
        decode(json.dumps(document).encode())


@pytest.mark.parametrize(
    "text",
    [
        to_json(COMMIT).replace(b'"host', b'"\xed\xa0\x80'),
        to_json(COMMIT).decode().encode("utf-16"),
        to_json(COMMIT).decode().encode("utf-8-sig"),
    ],
)
def test_bytes_that_are_no_utf_8_are_refused(text: bytes) -> None:
    with pytest.raises(InvalidLogError, match="no JSON"):
        decode(text)


@pytest.mark.parametrize("list_name", ["batches", "inline"])
def test_a_wrong_field_of_a_listed_batch_is_refused(list_name: str) -> None:
    document = json.loads(to_json(COMMIT))
    document["inline"] = [vars(Inline(1, 2, 3, 4, 5))]
    document["rows"] += 2
    decode(json.dumps(document).encode())
    for field in document[list_name][0]:
        for value in WRONG:
            allowed = (
                value == []
                if field == "frames"
                else value == "0" * 20
                if field == "number"
                else False
            )
            if allowed:
                continue
            changed = json.loads(json.dumps(document))
            changed[list_name][0][field] = value
            with pytest.raises(InvalidLogError):
                decode(json.dumps(changed).encode())
        changed = json.loads(json.dumps(document))
        del changed[list_name][0][field]
        with pytest.raises(InvalidLogError):
            decode(json.dumps(changed).encode())


def forged(**changes: Any) -> bytes:
    """COMMIT with these fields in its first object's entry, and its CRC-32 right."""
    document = json.loads(to_json(COMMIT))
    document["batches"][0] |= changes
    return json.dumps(document).encode()


FOREIGN: dict[str, tuple[bytes, str]] = {
    "an object of the position before": (
        forged(number=keys.encode(keys.data(POSITION - 1, WINDOW, 0))),
        "the object of partition 0 has number",
    ),
    "an object of another partition": (
        forged(number=keys.encode(keys.data(POSITION, WINDOW, 4))),
        "the object of partition 0 has number",
    ),
    "a partition that no window holds": (forged(partition=WINDOW - 1), "partition 999 is outside"),
    "one object under two partitions": (
        to_json(replace(COMMIT, rows=8, batches=(COMMIT.batches[0],) * 2)),
        "not in the order of their partitions",
    ),
    "a frame twice": (
        forged(frames=[[432, 80, 2, 17], [432, 80, 2, 17]]),
        "frames of partition 0 do not follow each other",
    ),
    "other rows than its frames": (forged(rows=5), "the frames of partition 0 hold other rows"),
    "inlined rows twice": (
        to_json(replace(COMMIT, rows=10, inline=(Inline(1, 2, 1, 80, 5),) * 2)),
        "not in the order of their partitions",
    ),
    "a partition inlined and as an object": (
        to_json(replace(COMMIT, rows=8, inline=(Inline(5, 2, 1, 80, 5),))),
        "the rows of a partition are in two parts",
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_commit_that_names_rows_twice_or_those_of_another_is_refused(case: str) -> None:
    text, reason = FOREIGN[case]
    header = decode(text)
    assert isinstance(header, CommitHeader)
    with pytest.raises(InvalidLogError, match=reason):
        check_parts(header, "here")


def test_a_time_beyond_every_timestamp_is_refused() -> None:
    last = (2**63 - 1) // 1000  # a timestamp of microseconds holds no more
    assert decode(to_json(replace(LEADER, timestamp_ms=last))).timestamp_ms == last
    with pytest.raises(InvalidLogError, match="timestamp_ms"):
        decode(to_json(replace(LEADER, timestamp_ms=last + 1)))


@pytest.mark.parametrize("left_out", ["batches", "frames", "inline"])
def test_a_commit_that_counts_rows_which_it_does_not_list_is_refused(left_out: str) -> None:
    header = replace(COMMIT, rows=COMMIT.rows + 2, inline=(Inline(1, 2, 1, 80, 5),))
    document = json.loads(to_json(header))
    whole = decode(json.dumps(document).encode())
    assert whole == header and isinstance(whole, CommitHeader)
    check_parts(whole, "here")
    (document["batches"][1] if left_out == "frames" else document)[left_out].pop()
    reason = "8 rows, but its parts hold 6"
    if left_out == "frames":
        reason = "the frames of partition 5 hold other rows"
    lacking = decode(json.dumps(document).encode())
    assert isinstance(lacking, CommitHeader)
    with pytest.raises(InvalidLogError, match=reason):
        check_parts(lacking, "here")


@pytest.mark.parametrize("header", [LEADER, COMMIT, DATA], ids=lambda h: h.kind)
def test_a_number_that_contradicts_the_position_is_refused(header: Header) -> None:
    document = json.loads(to_json(header))
    for number in (header.number - 1, header.number + 1, 0):
        text = json.dumps({**document, "number": keys.encode(number)}).encode()
        with pytest.raises(InvalidLogError, match="the header has number"):
            decode(text)


def test_a_newer_format_advises_to_upgrade() -> None:
    document = {**json.loads(to_json(LEADER)), "format": 2}
    with pytest.raises(InvalidLogError, match="format 2, and this sparkwal reads up to 1.*Upgrade"):
        decode(json.dumps(document).encode())


def test_fields_of_later_versions_are_ignored() -> None:
    document = {**json.loads(to_json(LEADER)), "later": [1, 2, 3]}
    assert decode(json.dumps(document).encode()) == LEADER


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b'"x"', b"[" * 100_000, b"\xff\xfe"])
def test_a_text_that_is_no_header_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidLogError):
        metadata = {HEADER_KEY: text, CRC_KEY: crc_hex(text)}
        from_metadata(metadata, "test")


@pytest.mark.parametrize("header", [LEADER, COMMIT], ids=lambda h: h.kind)
def test_every_flipped_bit_is_detected_or_harmless(header: Header) -> None:
    data = plain(header)
    detected = 0
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            opened = arrowfile.open_front(bytes(flipped), "test")
        except InvalidLogError:
            detected += 1
        else:
            assert (opened.header, opened.spark_schema) == (header, SPARK_SCHEMA), bit
    # All that a reader of records looks at, the front, is covered.
    assert detected > 8 * len(to_json(header))


def outcome(data: bytes) -> object:
    try:
        return arrowfile.open_front(data, "test")
    except InvalidLogError as error:
        return str(error)


def test_a_front_like_one_that_was_read_before_is_checked_as_the_first_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = plain(COMMIT)
    fronts = [data]
    for byte in range(arrowfile.needed(data)):
        fronts.append(data[:byte] + bytes([data[byte] ^ 1]) + data[byte + 1 :])
    # Another header of the same size, with its CRC-32 and without.
    other = to_json(COMMIT).replace(b'"host:12', b'"Host:12')
    assert other != to_json(COMMIT)
    fronts.append(data.replace(to_json(COMMIT), other))
    fronts.append(fronts[-1].replace(crc_hex(to_json(COMMIT)), crc_hex(other)))
    first_outcomes = []
    for front in fronts:
        monkeypatch.setattr(arrowfile, "_layouts", {})
        first_outcomes.append(outcome(front))
    layouts: dict[int, object] = {}
    monkeypatch.setattr(arrowfile, "_layouts", layouts)
    arrowfile.open_front(data, "test")
    assert layouts
    monkeypatch.setattr(arrowfile, "_remember", lambda layout: None)
    assert [outcome(front) for front in fronts] == first_outcomes
    assert isinstance(first_outcomes[-1], arrowfile.Opened)


@pytest.mark.parametrize("name", ["leader", "commit_batches", "commit_inline", "data"])
def test_every_truncation_is_detected(name: str) -> None:
    data = golden()[name]
    body = arrowfile.open_front(data, name).body
    for length in range(body):
        with pytest.raises(InvalidLogError):
            arrowfile.open_front(data[:length], name)
    # After the header the file's own reader sees it.
    for length in range(body, len(data)):
        with pytest.raises((pa.ArrowException, OSError)):
            pa.ipc.open_file(data[:length])


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    for candidate in (data, arrowfile.MAGIC + data, arrowfile.MAGIC + b"\xff" * 4 + data):
        with pytest.raises(InvalidLogError):
            arrowfile.open_front(candidate, "test")


def test_metrics_of_other_programs_may_be_no_numbers() -> None:
    for odd in (float("nan"), float("inf"), -1, 10**400):
        assert replace(COMMIT, metrics={"retries": odd}).metric("retries") is None
    header = replace(COMMIT, metrics={"retries": 2})
    assert header.metric("retries") == 2 and header.metric("put_ms") is None
