"""The offsets of each source in the files of offsets/, in both versions that Spark writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwal.checkpoints import folder
from sparkwal.checkpoints.names import is_carried
from sparkwal.checkpoints.offsets import by_source, input_text, positions
from sparkwal.errors import OptionError

TIMES = b'{"batchWatermarkMs":0,"batchTimestampMs":%d,"conf":{}}'


def offsets(version: int, *lines: str, ms: int = 1) -> bytes:
    return b"\n".join([b"v%d" % version, TIMES % ms, *(line.encode() for line in lines)])


def test_version_1_pairs_offsets_with_sources_by_their_line() -> None:
    lines = ('{"logOffset":3}', "-", "7", '{"a:b":{"0":1}}')
    found = by_source(offsets(1, *lines))
    assert found == {str(n): line.encode() for n, line in enumerate(lines)}


def test_version_2_pairs_offsets_with_sources_by_their_name() -> None:
    found = by_source(offsets(2, '1:{"logOffset":3}', "orders:-", 'b_2:{"a:b":{"0":1}}'))
    assert found == {"1": b'{"logOffset":3}', "orders": b"-", "b_2": b'{"a:b":{"0":1}}'}


def test_two_plans_of_one_input_are_equal_in_any_order_of_the_sources() -> None:
    one, other = offsets(2, "a:1", "b:2"), offsets(2, "b:2", "a:1", ms=2)
    assert by_source(one) == by_source(other) and input_text(one) == input_text(other)
    assert input_text(one) != input_text(offsets(2, "a:2", "b:1"))
    # Records of earlier versions of sparkwal hold the CRC-32 of this text.
    assert input_text(offsets(1, "b", "a")) == b"b\na"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"v",
        b"v1",
        b"v2\n{}",
        offsets(1),
        offsets(2),
        offsets(2, '{"logOffset":3}'),
        offsets(2, "a:1", "b"),
        offsets(2, "a:1", "a:2"),
        offsets(2, "a/b:1"),
        offsets(2, ":1"),
        b"\0" * 20,
    ],
)
def test_a_torn_file_names_no_source(data: bytes) -> None:
    assert by_source(data) is None and input_text(data) is None


def test_an_offset_that_is_nested_too_deeply_is_of_no_log() -> None:
    assert positions(b"[" * 100_000) == {}


def test_a_version_that_sparkwal_does_not_know_is_refused() -> None:
    with pytest.raises(OptionError, match="version 3 .* reads 1 and 2.*Upgrade it"):
        by_source(offsets(3, "a:1"))


@pytest.mark.parametrize(
    "name, carried",
    [
        ("offsets/7", True),
        ("commits/7", True),
        ("sources/0/7", True),
        ("sources/orders/9.compact", True),
        ("sources/orders/_log/schema-1", True),
        ("_schema_log_1b4e/0", True),
        ("my schemas/orders/_schema_log_1b4e_orders/0", True),
        ("offsets/7/8", False),
        ("offsets/.7", False),
        ("sources/7", False),
        ("sources/a-b/7", False),
        ("sources/../x/7", False),
        ("state/0/_schema_log_1b4e/0", False),
        ("metadata/_schema_log_1b4e/0", False),
        ("_schema_log_1b4e/x", False),
        ("../_schema_log_1b4e/0", False),
        ("/_schema_log_1b4e/0", False),
        ("other/0", False),
        ("metadata", False),
        ("sources/orders/\ud800", False),
        ("sources/orders/" + "x" * 256, False),
    ],
)
def test_a_record_carries_only_the_names_of_a_checkpoint(name: str, carried: bool) -> None:
    assert is_carried(name) is carried


def fill(place: Path, name: str, data: bytes) -> None:
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).write_bytes(data)


def test_version_2_holds_what_a_rebuild_would_read_again(tmp_path: Path) -> None:
    log = '{"a":%d,"log_id:a":"A"}'
    fill(tmp_path, "offsets/4", offsets(2, "copy:" + log % 7, "files:3"))
    fill(tmp_path, "offsets/9", offsets(2, "files:8", "late:" + log % 2, "copy:" + log % 12))
    assert folder.spans(tmp_path, 4, 9) == {"A": [(0, 2), (7, 12)]}


def test_a_torn_plan_is_never_taken_for_nothing_to_hold(tmp_path: Path) -> None:
    fill(tmp_path, "offsets/4", offsets(2, "copy"))
    fill(tmp_path, "offsets/9", offsets(2, 'copy:{"a":7,"log_id:a":"A"}'))
    assert folder.spans(tmp_path, 4, 9) is None and folder.spans(tmp_path, 9, 4) is None


@pytest.mark.parametrize("name", ["0", "1", "orders"])
def test_version_2_misses_the_list_of_the_named_source(tmp_path: Path, name: str) -> None:
    other = "bills"
    for batch in (4, 5):
        lines = (f'{name}:{{"logOffset":{batch}}}', f'{other}:{{"logOffset":{batch}}}')
        fill(tmp_path, f"offsets/{batch}", offsets(2, *lines))
        fill(tmp_path, f"sources/{name}/{batch}", b"v1\n{}")
        fill(tmp_path, f"sources/{other}/{batch}", b"v1\n{}")
    fill(tmp_path, "commits/4", b"v1\n{}")
    fill(tmp_path, "metadata", b'{"id":"x"}')
    assert folder.torn(tmp_path) is None
    (tmp_path / f"sources/{name}/5").unlink()
    assert folder.torn(tmp_path) == f"sources/{name}"
    (tmp_path / "offsets/5").write_bytes(offsets(2, "orders"))
    assert folder.torn(tmp_path) == "offsets/5"
