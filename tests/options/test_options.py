"""Options: every wrong name, value and pair has its message."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparkwal
from sparkwal.errors import OptionError
from sparkwal.lifecycle.policy import LifecycleOptions
from sparkwal.options import types
from sparkwal.options.foreign_names import SAME, not_needed, same_option
from sparkwal.options.parsing import from_keywords, parse
from sparkwal.options.reading import SourceOptions
from sparkwal.options.store import StoreOptions
from sparkwal.options.writing import AppenderOptions, SinkOptions

KINDS: tuple[type[StoreOptions], ...] = (SinkOptions, SourceOptions, AppenderOptions)
SECRET = "correct-horse-battery-staple"


def specs(kind: type[StoreOptions]) -> dict[str, dict[str, Any]]:
    """Option name → its metadata and field name."""
    return {f.metadata["name"]: {**f.metadata, "field": f.name} for f in dataclasses.fields(kind)}


# Parser → what it refuses, and the words that say what it expects.
WRONG: dict[str, tuple[list[str], str]] = {
    "size": (["", "-1", "1.5mb", "mb", "1 elephant", "1e6", "1s", "٣mb;"], "a size such as 1mb"),
    "duration": (["", "-1", "1.5s", "s", "1 elephant", "1mb"], "a time such as 500ms"),
    "integer": (["", "-1", "1.0", "1e3", "many", "0x10"], "a whole number"),
    "boolean": (["", "yes", "1", "t", "on"], "true or false"),
    "text": (["", "  "], "a text that is not empty"),
    "secret": (["", "  "], "a text that is not empty"),
    "position": (["", "first", "-1", "1.5"], "earliest, latest, table or a position"),
    "timestamp": (["", "yesterday", "-1", "2026-13-01", "12:00"], "a time such as 2026-01-31"),
    "choice": (["", "snappy", "ignore"], " or "),
    "sequencer_name": (["", "*", "a/b", "..", "ä", "a b"], "a name of letters, digits, _ and -"),
    "consumer_name": (["", "*", "a/b", "..", "ä", "a b"], "a name of at most 200 letters"),
    "account_id": (["", "1", "1234-5678-9012", "١٢٣٤٥٦٧٨٩٠١٢"], "the 12 digits of an AWS account"),
    "sequencers": (
        ["", " , ", "**", "a,*", "a/b", "a,b c"],
        "* for all logs, or names with commas",
    ),
}
NAMES = {parser: name for name, parser in vars(types).items() if callable(parser)}
VALUES = [
    (kind, name, value, expected)
    for kind in KINDS
    for name, spec in specs(kind).items()
    for values, expected in [WRONG[NAMES.get(spec["parse"], "choice")]]
    for value in values
]


@pytest.mark.parametrize(("kind", "name", "value", "expected"), VALUES)
def test_a_wrong_value_is_named_with_what_is_expected(
    kind: type[StoreOptions], name: str, value: str, expected: str
) -> None:
    with pytest.raises(OptionError) as caught:
        parse(kind, {"path": "/log", name: value})
    message = str(caught.value)
    assert message.startswith(f"option {name} ")
    assert expected in message and message.endswith("is expected")
    assert specs(kind)[name]["parse"] is types.secret or repr(value) in message


PAIRS: list[tuple[type[StoreOptions], dict[str, str], str]] = [
    (SinkOptions, {"path": ""}, "option path"),
    (SinkOptions, {"maxInFlightRequests": "0"}, "1…1000 (recovery reads at most 1000 objects"),
    (SinkOptions, {"maxInFlightRequests": "1001"}, "1…1000 (recovery reads at most 1000 objects"),
    (SourceOptions, {"targetPoolSize": "49"}, "targetPoolSize 49 is below maxInFlightRequests 50"),
    (SourceOptions, {"targetPoolSize": "0"}, "greater than 0 is expected"),
    (AppenderOptions, {"journalSync": "none"}, "journalSync needs the option journal"),
    (
        SinkOptions,
        {"retryBaseDelayMs": "0"},
        "option retryBaseDelayMs is '0'; a value greater than 0 is expected",
    ),
    (SinkOptions, {"accessKeyId": SECRET}, "go together"),
    (SinkOptions, {"secretAccessKey": SECRET}, "go together"),
    (SinkOptions, {"sessionToken": SECRET}, "sessionToken needs"),
    (SinkOptions, {"profile": "p", "accessKeyId": "a", "secretAccessKey": SECRET}, "contradict"),
    (SinkOptions, {"kmsKeyId": "k"}, "kmsKeyId needs serverSideEncryption=aws:kms"),
    (SinkOptions, {"kmsKeyId": "k", "serverSideEncryption": "AES256"}, "kmsKeyId needs"),
    (SinkOptions, {"bucketKeyEnabled": "true"}, "bucketKeyEnabled needs serverSideEncryption"),
    (SinkOptions, {"bucketKeyEnabled": "true", "serverSideEncryption": "aws:kms:dsse"}, "needs"),
    (SinkOptions, {"endpoint": "localhost:9000"}, "must be a URL"),
    (
        SinkOptions,
        {"batchSizeThreshold": "0"},
        "option batchSizeThreshold is '0'; a value greater than 0 is expected",
    ),
    (
        SinkOptions,
        {"batchTimeoutMs": "0"},
        "option batchTimeoutMs is '0'; a value greater than 0 is expected",
    ),
    (SinkOptions, {"txnAppId": " append:a", "txnVersion": "1"}, "must not begin with 'append:'"),
    (SinkOptions, {"txnAppId": "a", "txnVersion": str(2**63)}, "at most 9223372036854775807"),
    (SinkOptions, {"planTtl": "0"}, "option planTtl is '0'; a time greater than 0 and at most"),
    (SinkOptions, {"windowSize": "100"}, "1000, 10000, 100000 or 1000000"),
    (SinkOptions, {"windowSize": "2000"}, "1000, 10000, 100000 or 1000000"),
    (SinkOptions, {"multipartThreshold": "4mb"}, "at least 5mb"),
    (SinkOptions, {"inlineThreshold": "17mb"}, "inlineThreshold is above multipartThreshold"),
    (SinkOptions, {"maxInFlightRequests": "8", "maxinflightrequests": "9"}, "is given twice"),
    (SinkOptions, {"txnAppId": "a"}, "txnAppId and txnVersion go together"),
    (SinkOptions, {"txnVersion": "1"}, "txnAppId and txnVersion go together"),
    (SourceOptions, {"startingPosition": "1", "startingTimestamp": "1"}, "give one of them"),
    (SourceOptions, {"endingPosition": "1", "endingTimestamp": "1"}, "give one of them"),
    (SourceOptions, {"startingPosition": "2", "endingPosition": "1"}, "lies before"),
    (SourceOptions, {"startingTimestamp": "2", "endingTimestamp": "1"}, "lies before"),
    (
        SourceOptions,
        {"maxRowsPerTrigger": "0"},
        "option maxRowsPerTrigger is '0'; a value greater than 0 is expected",
    ),
    (
        SourceOptions,
        {"maxBytesPerTrigger": "0"},
        "option maxBytesPerTrigger is '0'; a value greater than 0 is expected",
    ),
    (
        SourceOptions,
        {"maxCommitsPerTrigger": "0"},
        "option maxCommitsPerTrigger is '0'; a value greater than 0 is expected",
    ),
    (
        SourceOptions,
        {"minPartitions": "0"},
        "option minPartitions is '0'; a value greater than 0 is expected",
    ),
    (SourceOptions, {"onCorruption": "stop", "verifyChecksums": "false"}, "needs verifyChecksums"),
    (SinkOptions, {"startingPosition": "1"}, "'startingPosition' is for reading"),
    (SinkOptions, {"maxBufferedBytes": "1"}, "'maxBufferedBytes' is for the appender"),
    (AppenderOptions, {"inlineThreshold": "1"}, "'inlineThreshold' is for writing"),
    (AppenderOptions, {"maxBufferedBytes": "1"}, "below batchSizeThreshold"),
    (SourceOptions, {"sequencers": "*", "startingPosition": "1"}, "sequencers reads logs"),
    (SourceOptions, {"sequencers": "*", "endingPosition": "1"}, "sequencers reads logs"),
    (SourceOptions, {"consumer": "a", "lease": "1h"}, "a batch read takes lease"),
    (SourceOptions, {"consumer": "a", "sequencers": "a,b"}, "a consumer reads one log or all"),
    (
        SourceOptions,
        {"cursorInterval": "0"},
        "option cursorInterval is '0'; a value greater than 0 is expected",
    ),
    (SourceOptions, {"lease": "0"}, "option lease is '0'; a value greater than 0 is expected"),
    (SourceOptions, {"mergeSchema": "true"}, "'mergeSchema' is for writing"),
    (SinkOptions, {"batchSizeTreshold": "1mb"}, "did you mean 'batchSizeThreshold'?"),
    (SinkOptions, {"BATCHTIMEOUT": "1"}, "did you mean 'batchTimeoutMs'?"),
    (SinkOptions, {"zzz": "1"}, "known are path, endpoint, "),
    (
        SourceOptions,
        {"versionAsOf": "1"},
        "unknown option 'versionAsOf'; here it is 'endingPosition'",
    ),
    (SourceOptions, {"startingoffsets": "earliest"}, "here it is 'startingPosition'"),
    (SinkOptions, {"startingOffsets": "1"}, "here it is 'startingPosition', for reading"),
    (SourceOptions, {"maxFilesPerTrigger": "1"}, "here it is 'maxCommitsPerTrigger'"),
    (SourceOptions, {"ignoreDeletes": "true"}, "a log has no deletes: remove it"),
    (AppenderOptions, {"linger_ms": "1"}, "here it is 'batchTimeoutMs'"),
    (AppenderOptions, {"acks": "all"}, "acknowledged when it is durable, always: remove it"),
    (SinkOptions, {"kafka.bootstrap.servers": "b:9092"}, "a log has no brokers"),
    (SinkOptions, {"kafka.linger.ms": "1"}, "here it is 'batchTimeoutMs'"),
]


def known_options() -> set[str]:
    return {name for kind in KINDS for name in specs(kind)}


def foreign_names() -> list[str]:
    """The options in the left column of the pages for users of other systems."""
    pages = Path(sparkwal.__file__).parent / "docs"
    rows = "".join((pages / f"from-{system}.md").read_text() for system in ("kafka", "delta"))
    cells = re.findall(r"^\| (`.*?) \|", rows, re.MULTILINE)
    names = [name for cell in cells for name in re.findall(r"`([a-z][\w.]*)", cell)]
    assert len(names) > 15
    return names


@pytest.mark.parametrize("name", foreign_names())
def test_an_option_that_a_migration_page_names_gets_a_hint(name: str) -> None:
    assert name in known_options() or same_option(name) or not_needed(name)


def test_each_hint_names_an_option_that_exists() -> None:
    assert {*SAME.values()} <= known_options()


@pytest.mark.parametrize(("kind", "options", "says"), PAIRS, ids=[str(p[1]) for p in PAIRS])
def test_wrong_names_ranges_and_pairs_have_their_message(
    kind: type[StoreOptions], options: dict[str, str], says: str
) -> None:
    with pytest.raises(OptionError) as caught:
        parse(kind, {"path": "/log", **options})
    assert says in str(caught.value)
    assert SECRET not in str(caught.value)


def test_the_error_of_a_missing_path_names_the_option() -> None:
    with pytest.raises(OptionError, match=r'option path is missing: \.option\("path"'):
        parse(SinkOptions, {})


@pytest.mark.parametrize("path", [None, 5, True, b"/log", ["/log"]])
def test_a_path_that_is_no_text_is_refused(path: Any) -> None:
    with pytest.raises(OptionError, match="the path is a .*; a text such as s3://bucket/wal"):
        from_keywords(SourceOptions, path, {})
    assert from_keywords(SourceOptions, Path("/log"), {}).path == "/log"


@pytest.mark.parametrize("value", [None, b"a", ["a"], {"a": 1}])
def test_the_value_none_is_refused(value: object) -> None:
    """Its text would name a folder or a sequencer."""
    with pytest.raises(OptionError, match="option sequencer is a .* leave it out"):
        from_keywords(SourceOptions, "/log", {"sequencer": value})


def test_a_default_is_a_value_of_its_option() -> None:
    """A compaction gives Spark each option of the log as a text, also one that nobody set."""
    for kind in (*KINDS, LifecycleOptions):
        default = kind(path="/log")
        texts = {
            field.metadata["name"]: str(value)
            for field in dataclasses.fields(kind)
            if (value := getattr(default, field.name)) is not None
        }
        assert parse(kind, texts) == default


@pytest.mark.parametrize("limit", ["1", "1000"])
def test_the_ends_of_a_range_are_allowed(limit: str) -> None:
    assert parse(SinkOptions, {"path": "/log", "maxInFlightRequests": limit}).max_in_flight == int(
        limit
    )


def test_names_ignore_case_and_sparks_own_options_are_left_alone() -> None:
    texts = {
        "PATH": "/log",
        "inlinethreshold": "1KB",
        "checkpointLocation": "x",
        "queryName": "y",
    }
    assert parse(SinkOptions, texts).inline_threshold == 1024


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("64kb", 65_536), ("1 MiB", 2**20), ("2g", 2**31), ("1TB", 2**40), ("7b", 7)],
)
def test_a_size_is_parsed_with_its_unit(text: str, expected: int) -> None:
    assert types.size(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1),
        ("500ms", 500),
        ("2s", 2000),
        ("1 min", 60_000),
        ("1m", 60_000),
        ("1h", 3_600_000),
        ("2d", 172_800_000),
    ],
)
def test_a_duration_is_parsed_with_its_unit(text: str, expected: int) -> None:
    assert types.duration(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1000", 1000),
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T01:00:00.5+01:00", 500),
        ("1970-01-01T00:00:00Z", 0),
    ],
)
def test_a_timestamp_is_parsed_to_milliseconds(text: str, expected: int) -> None:
    assert types.timestamp(text) == expected


@given(st.text(max_size=12))
def test_any_text_is_a_value_or_a_readable_refusal(text: str) -> None:
    for kind in KINDS:
        for name in specs(kind):
            try:
                parse(kind, {"path": "/log", name: text})
            except OptionError as error:
                assert name in str(error)


def test_secrets_are_in_no_representation() -> None:
    options = {
        "path": "/log",
        "accessKeyId": SECRET,
        "secretAccessKey": SECRET,
        "sessionToken": SECRET,
    }
    for kind in KINDS:
        parsed = parse(kind, options)
        assert SECRET not in f"{parsed!r} {parsed} {parsed.s3!r}"


def test_a_plan_may_not_live_as_long_as_a_slot_that_is_not_free_yet() -> None:
    assert parse(SinkOptions, {"path": "p", "planTtl": "40min"}).plan_ttl_ms == 2_400_000
    with pytest.raises(
        OptionError, match="planTtl is '41min'; a time .* at most 40min .* no older plan"
    ):
        parse(SinkOptions, {"path": "p", "planTtl": "41min"})


@pytest.mark.parametrize("name", ["endingPosition", "startingTimestamp", "lease", "minPartitions"])
def test_a_number_of_too_many_digits_is_refused_and_not_repeated(name: str) -> None:
    # Python refuses to convert more than 4,300 digits.
    with pytest.raises(OptionError, match=f"option {name} is '9{{100}}'; a .* expected"):
        parse(SourceOptions, {"path": "/log", name: "9" * 5000})
