"""Forged offsets in the checkpoint of a record: `queries`, `audit`, `diff` show or refuse them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from isal.isal_zlib import crc32

from sparkwal.checkpoints import packing
from sparkwal.cli.main import main
from sparkwal.format import arrowfile
from sparkwal.format.header import Checkpoint, CommitHeader
from sparkwal.format.limits import JSON_LEVELS, json_in
from tests.security.hostile_reader import SCHEMA, begin, common, put

QUERY = "forged-query"


def log_of(folder: Path, offsets: bytes, *others: str) -> str:
    """A log of one microbatch with these offsets, whose record names other queries too."""
    begin(folder)
    plan = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n'
    files = {"offsets/0": plan + b'{"t":{"0":0}}', "offsets/1": plan + offsets}
    block = packing.encode(files)
    entry = Checkpoint(1, 0, len(block), crc32(block), "", {}, {}, "orders")
    names = (QUERY, *others)
    header = CommitHeader(
        **{**common(1), "txns": dict.fromkeys(names, (1, 1_700_000_000_000))},
        query_id=QUERY,
        batch_id=1,
        rows=0,
        bytes=0,
        batches=(),
        inline=(),
        metrics={},
        checkpoints=dict.fromkeys(names, entry),
    )  # type: ignore[arg-type]
    put(folder, header.number, arrowfile.encode(header, SCHEMA, block))
    return str(folder)


@pytest.mark.parametrize(
    "offsets",
    [
        b'{"a":' * 500 + b"1" + b"}" * 500,
        b"[" * 960 + b"1" + b"]" * 960,
        b"[" * 100_000,
        b'{"t":NaN}',
        b'{"t":{"0":-Infinity}}',
        b'{"t":{"0":' + b"9" * 4300 + b"}}",
        b'{"\\u001b[2J":{"\\u202e":1}}',
        b"\x1b[2J\x07",
    ],
)
@pytest.mark.parametrize("command", ["queries", "audit", "diff"])
def test_offsets_of_any_form_are_shown_or_refused(
    tmp_path: Path, command: str, offsets: bytes
) -> None:
    path = log_of(tmp_path / "log", offsets)
    for more in ([], ["--json"]):
        other = [path] if command == "diff" else []
        ended = CliRunner().invoke(main, [command, path, *other, *more])
        assert ended.exception is None or isinstance(ended.exception, SystemExit)
        assert ended.output.replace("\n", "").isprintable()
        for line in ended.stdout.splitlines() if more else []:
            json_in(line.encode())


def test_a_record_carries_the_files_of_its_own_query_only(tmp_path: Path) -> None:
    """Otherwise each query that it names would unpack them again."""
    sound = log_of(tmp_path / "sound", b'{"t":{"0":5}}')
    assert CliRunner().invoke(main, ["queries", sound]).exit_code == 0
    path = log_of(tmp_path / "log", b'{"t":{"0":5}}', *(f"q{n}" for n in range(50)))
    ended = CliRunner().invoke(main, ["queries", path])
    assert ended.exit_code == 1 and "51 queries name the record of position 1" in ended.output


def test_a_json_text_has_a_limit_of_levels_that_brackets_in_texts_do_not_count_for() -> None:
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        most = opening * JSON_LEVELS + "1" + closing * JSON_LEVELS
        assert json.dumps(json_in(most.encode()), separators=(",", ":")) == most
        with pytest.raises(ValueError, match="too deeply"):
            json_in(f"[{most}]".encode())
    assert json_in(json.dumps(["[" * 100]).encode()) == ["[" * 100]
