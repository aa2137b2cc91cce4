"""The messages of an appender with a journal name the location of the rows and what to do."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from sparkwal import Appender, Log
from sparkwal.errors import FencedError, OptionError
from sparkwal.events import Event, StoreAway
from sparkwal.testing.proxy import Fault, S3Proxy

SCHEMA = pa.schema([("v", pa.int64())])


def fenced_with_a_row_in_the_journal(path: Path) -> str:
    """The log has row 0 and the journal row 1. Returns the appender's error."""
    wal = Appender(str(path / "wal"), SCHEMA, producer_id="p", journal=str(path / "journal"))
    wal.append([{"v": 0}]).result()
    with Appender(str(path / "wal"), SCHEMA, producer_id="other"):
        ticket = wal.append([{"v": 1}])
        with pytest.raises(FencedError) as fenced:
            ticket.result()
    wal.close()
    return str(fenced.value)


def test_the_error_of_a_fenced_appender_names_the_rows_in_the_journal(tmp_path: Path) -> None:
    message = fenced_with_a_row_in_the_journal(tmp_path)
    assert f"are in the log or in the journal {tmp_path / 'journal'}" in message
    assert "is not in the log" not in message


def test_an_appender_that_is_closed_at_once_emits_replayed(tmp_path: Path) -> None:
    fenced_with_a_row_in_the_journal(tmp_path)
    reported: list[Event] = []
    Appender(
        str(tmp_path / "wal"),
        SCHEMA,
        producer_id="p",
        journal=str(tmp_path / "journal"),
        on_event=reported.append,
    ).close()
    assert [str(event) for event in reported if "replay" in event.name] == [
        f"replay_started path={tmp_path / 'journal'} first=1 last=1",
        f"replayed path={tmp_path / 'journal'} sequence=1",
    ]
    assert Log(str(tmp_path / "wal")).to_pandas()["v"].tolist() == [0, 1]


def test_a_second_opening_in_one_process_is_named_in_the_error(tmp_path: Path) -> None:
    journal = str(tmp_path / "journal")
    with Appender(str(tmp_path / "wal"), SCHEMA, producer_id="p", journal=journal) as wal:
        with pytest.raises(OptionError, match="held by this process: close the appender"):
            Appender(str(tmp_path / "wal"), SCHEMA, producer_id="p", journal=journal)
        wal.append([{"v": 1}]).result()


def test_an_appender_that_continues_does_not_advise_to_open_another(
    tmp_path: Path, s3_proxy: S3Proxy, s3_path: tuple[str, dict[str, str]]
) -> None:
    path, options = s3_path
    reasons: list[str] = []
    away = threading.Event()

    def reported(event: Event) -> None:
        if isinstance(event, StoreAway):
            reasons.append(event.reason)
            away.set()

    with Appender(
        path,
        SCHEMA,
        producer_id="p",
        journal=str(tmp_path / "journal"),
        on_event=reported,
        **{**options, "endpoint": s3_proxy.url},
    ) as wal:
        s3_proxy.faults = [Fault("reset", key_contains="batches/")]
        ticket = wal.append([{"v": 1}])
        away.wait()
        s3_proxy.faults = []
        ticket.result()
    assert reasons and not any("new appender" in reason for reason in reasons)
