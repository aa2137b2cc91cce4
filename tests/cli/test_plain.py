"""Text of a log never controls the terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pyarrow as pa
import pytest
from reading.collected import move_floor

from sparkwal.cli import output
from sparkwal.cli.exit_codes import exit_for
from sparkwal.cli.open_logs import notify
from sparkwal.errors import FencedError, OptionError, escape
from sparkwal.format import arrowfile, keys
from sparkwal.format.header import LeaderHeader
from sparkwal.format.lifecycle_record import INTENT, Target
from sparkwal.format.schema import from_arrow
from sparkwal.protocol.clock import Clock
from tests.chains import newest, put_next
from tests.cli.logs import opened, ran
from tests.logs import append

# Clears the screen, sets the window's title, 8-bit CSI, turns the text around, markup of rich,
# half a character.
EVIL = "\x1b[2J\x1b]0;title\x07\x9b31m\u202eevil [red]x[/red] [link=file:///etc/passwd]y\r\n\x00é"
HARMLESS = re.compile(r"[\x20-\x7e\n…–─━═é ]*")


def evil_log(folder: Path, timestamp_ms: int = 1_700_000_000_000) -> Path:
    """A log with one leader record whose writer's name is hostile."""
    spark_schema = from_arrow(pa.schema([(EVIL.replace("\x00", ""), pa.int64())]))
    header = LeaderHeader(
        number=keys.slot(0, 1000),
        position=0,
        window=1000,
        leader_id=EVIL,
        term=1,
        plan_id=EVIL,
        in_flight_limit=1,
        timestamp_ms=timestamp_ms,
        schema_crc32=arrowfile.schema_crc(spark_schema),
        log_id=EVIL,
        prev_position=-1,
        txns={},
        reason=EVIL,
        host=EVIL,
    )
    (folder / "batches").mkdir(parents=True)
    file = folder / keys.key("", header.number)
    file.write_bytes(arrowfile.encode(header, spark_schema))
    return folder


def test_a_status_shows_names_without_obeying_them(tmp_path: Path) -> None:
    folder = evil_log(tmp_path / "log")
    shown = ran("status", str(folder))
    assert HARMLESS.fullmatch(shown), ascii(shown)
    assert "[red]x[/red]" in shown and r"\u001b[2J" in shown
    as_json = ran("status", str(folder), "--json")
    assert HARMLESS.fullmatch(as_json) and as_json.count("\n") == 1
    assert json.loads(as_json)["leader_id"] == EVIL


@pytest.mark.parametrize("command", [["status"], ["log"], ["show"], ["at", "1h"]])
def test_a_clock_beyond_the_calendar_is_at_its_end(tmp_path: Path, command: list[str]) -> None:
    name, *others = command
    assert "9999-12-31T23:59:59" in ran(
        name, str(evil_log(tmp_path / "log", timestamp_ms=10**15)), *others
    )


def test_tables_and_messages_are_plain(capsys: pytest.CaptureFixture[str]) -> None:
    output.table([{EVIL: EVIL}], EVIL)
    output.facts({EVIL: EVIL})
    for error in (FencedError(EVIL), OptionError(EVIL)):
        click.echo(exit_for(error).format_message())
    shown = capsys.readouterr().out
    assert HARMLESS.fullmatch(shown), ascii(shown)


def test_a_table_of_strangers_and_what_is_said_beside_rows_are_plain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append(str(tmp_path / "log"), *range(3))
    log = opened(tmp_path / "log")
    move_floor(log, 2)
    state = newest(log)
    assert state is not None
    target = Target(EVIL.replace("\x00", ""))
    assert put_next(log, state, INTENT, Clock(), "test", k=1, cut=2, to=3, target=target)
    (tmp_path / "log" / keys.key("", keys.slot(0, 1000))).unlink()
    shown = ran("show", str(tmp_path / "log"), "0", code=1)
    assert HARMLESS.fullmatch(shown) and "its rows were released after" in shown, ascii(shown)
    notify(EVIL)
    assert HARMLESS.fullmatch(capsys.readouterr().err)


def test_ordinary_text_is_printed_unchanged() -> None:
    for text in ("größe", "サイズ", "حجم", "s3://b/ä?x=[1]", "👍"):
        assert escape(text) == text
