"""A batch append that would stop a stream is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sparkwal.checkpoints.carry import StreamCheckpoint
from sparkwal.errors import OptionError
from sparkwal.format.header import ANONYMOUS
from sparkwal.protocol.hint import Hints, note_ended
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.stream_leader import BATCH_APPEND, STREAM_START, refuse_stream_leader
from sparkwal.testing.memory import MemoryStore
from tests.protocol.query import TTL_MS, Query, StoppedClock


@pytest.fixture
def ended(tmp_path: Path) -> Path:
    return tmp_path / "ended"


@pytest.fixture
def stream(tmp_path: Path, ended: Path) -> Query:
    hints = Hints("wal", tmp_path / "hints", ended)
    carrier = StreamCheckpoint("s3a://bucket/checkpoint", "query", 10**6)
    return Query(MemoryStore(), hints, carrier=carrier, reason=STREAM_START)


def check_may_append(stream: Query, is_gone: Callable[[str], bool] = lambda _: False) -> None:
    """The steps of a batch append before it takes the log over."""
    log, clock = stream.open(), StoppedClock()
    clock.wall_ms = stream.clock.wall_ms
    refuse_stream_leader(log, find_head(log), stream.hints, clock, TTL_MS, is_gone)


def test_a_log_that_a_stream_leads_takes_no_batch_append(stream: Query) -> None:
    stream.microbatch(0, (1,))
    stream.clock.wall_ms += TTL_MS - 1
    with pytest.raises(OptionError, match="host:1:1:x on host host wrote position 1 599 s ago"):
        check_may_append(stream)
    with pytest.raises(OptionError, match="option sequencer.*takeOver=true"):
        check_may_append(stream)


def test_a_stream_that_has_just_started_leads_already(stream: Query) -> None:
    stream.plan()
    with pytest.raises(OptionError, match="a stream leads"):
        check_may_append(stream)


def test_a_clock_that_is_behind_the_streams_changes_nothing(stream: Query) -> None:
    stream.microbatch(0, (1,))
    stream.clock.wall_ms -= 3_600_000
    with pytest.raises(OptionError, match="0 s ago"):
        check_may_append(stream)


def test_an_empty_log_and_one_that_no_stream_leads_take_it(stream: Query) -> None:
    check_may_append(stream)
    batch = replace(stream, query_id=f"{ANONYMOUS}1", carrier=None, reason=BATCH_APPEND)
    batch.plan()
    check_may_append(stream)
    batch.microbatch(0, (1,))
    check_may_append(stream)
    stream.microbatch(0, (2,))
    replace(batch, leader_id="host:2:2:y", query_id="nightly").microbatch(0, (3,))
    check_may_append(stream)


def test_a_stream_that_wrote_nothing_for_long_leads_no_more(stream: Query) -> None:
    stream.microbatch(0, (1,))
    stream.clock.wall_ms += TTL_MS
    check_may_append(stream)


def test_a_stream_whose_run_has_ended_leads_no_more(stream: Query, ended: Path) -> None:
    stream.microbatch(0, (1,))
    note_ended(ended, "another run")
    with pytest.raises(OptionError, match="a stream leads"):
        check_may_append(stream)
    note_ended(ended, stream.run_id)
    check_may_append(stream)


def test_a_stream_of_an_ended_application_no_longer_leads(stream: Query) -> None:
    stream.microbatch(0, (1,))
    check_may_append(stream, is_gone=lambda leader_id: leader_id == stream.leader_id)
