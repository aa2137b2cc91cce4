"""Rows that stepped aside are written again after the table was changed, each once, with kills."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest

from sparkwal.errors import ConfirmError, InvalidLogError, PlanError, WriteError
from sparkwal.format import versions
from sparkwal.format.header import CRC_KEY, HEADER_KEY, crc_hex
from sparkwal.format.lifecycle_record import MERGE, Target, decode, encode
from sparkwal.lifecycle.cycle import Run
from sparkwal.lifecycle.known_log import Again
from sparkwal.lifecycle.policy import Policy
from sparkwal.protocol.chain import newest_record
from sparkwal.testing.memory import MemoryStore
from tests.lifecycle.table import Died, ModelTable, dying_at
from tests.lifecycle.test_coordinator import Mortal
from tests.lifecycle.test_many_logs import kinds_of_chain
from tests.lifecycle.test_stepping_aside import Tolerant, document_of

STEPS = ["look", "find", "aside", "went aside", "write", "written", "remove", "burn"]


class Mended(Tolerant):
    """Logs with rows aside."""

    @property
    def aside(self) -> list[int]:
        """The refused rows that count."""
        record = newest_record(self.root)
        logs = {log.log_id: log for log in record.logs.values()} if record else {}
        return sorted(
            value
            for k, log_id, position, value in self.table.refused.rows
            if position < logs[log_id].cut and k >= logs[log_id].taken
        )

    def stepped_aside(self, *values: int) -> None:
        """Two commits in each of two logs, of which the table refuses some rows."""
        for name in "abab":
            self.write(name)
        self.table.refuses = {*values}
        for _ in range(2):
            self.process().run_all()
        self.check()

    def check_waiting(self, *values: int) -> None:
        """Check that these rows wait, and that the table has the others."""
        assert self.aside == [*values]
        assert self.rows == [row for row in self.written if row not in values]

    def check_once(self) -> None:
        """Each row is in the table or waits, once, and the one that the table refused waits."""
        assert sorted([*self.rows, *self.aside]) == self.written
        assert {3} <= {*self.aside} <= {1, 3}
        record = newest_record(self.root)
        assert record is not None and not record.logs["b"].again
        assert sum(log.rows_aside for log in record.logs.values()) == len(self.aside)

    def again(self, name: str = "b", store: MemoryStore | None = None) -> Again:
        return self.process(store, name=name).refused_again()


@pytest.fixture
def lives() -> Mended:
    return Mended()


@pytest.mark.proves("taken-when-done")
def test_refused_rows_go_to_the_table_after_it_was_mended(lives: Mended) -> None:
    lives.stepped_aside(1, 3)
    lives.table.refuses = set()
    before = len(kinds_of_chain(lives))
    assert lives.again() == Again(2, 0)
    assert kinds_of_chain(lives)[before:] == ["intent", "done"]
    lives.check()
    assert lives.rows == [0, 1, 2, 3] and lives.table.refused.rows == []
    # There is nothing more to write.
    assert lives.again() == Again(0, 0)
    lives.write("b")
    assert all(isinstance(run, Run) for run in lives.process().run_all().values())
    lives.check()


def test_a_row_that_the_table_still_refuses_stays_aside(lives: Mended) -> None:
    lives.stepped_aside(1, 3)
    lives.table.refuses = {3}
    assert lives.again() == Again(1, 1)
    lives.check()
    lives.table.refuses = set()
    assert lives.again() == Again(1, 0)
    lives.check()


def test_only_rows_of_the_log_are_written_again(lives: Mended) -> None:
    lives.stepped_aside(0, 1)
    lives.table.refuses = set()
    assert lives.again("b") == Again(1, 0)
    assert lives.rows == [1, 2, 3] and lives.aside == [0]
    assert lives.again("a") == Again(1, 0)
    lives.check()


def test_a_log_without_refused_rows_has_nothing_to_write(lives: Mended) -> None:
    lives.write("a")
    with pytest.raises(PlanError, match="no table yet"):
        lives.again("a")
    lives.process().run_all()
    before = kinds_of_chain(lives)
    assert lives.again("a") == Again(0, 0) and kinds_of_chain(lives) == before


def test_refused_rows_of_a_log_that_is_gone_stay_aside(lives: Mended) -> None:
    lives.stepped_aside(1)
    for key in [key for key in lives.store.objects if "/sequencers/b/" in key]:
        del lives.store.objects[key]
    with pytest.raises(PlanError, match="there is no log"):
        lives.again()
    assert lives.aside == [1]


@pytest.mark.proves("burned-again-waits")
def test_a_range_that_the_table_refuses_is_given_up_and_its_rows_wait(lives: Mended) -> None:
    """The table becomes stricter between the two writes of the range."""
    lives.stepped_aside(1, 3)
    lives.table.refuses = {3}

    def stricter(step: str) -> None:
        if step == "went aside":
            lives.table.refuses = {1, 3}

    lives.table.before = stricter
    with pytest.raises(WriteError, match="refuses the row 1"):
        lives.again()
    lives.table.before = lambda step: None
    lives.check()
    # Its log does not wait.
    record = newest_record(lives.root)
    assert record is not None and not record.logs["b"].refused_ms
    lives.table.refuses = set()
    assert lives.again() == Again(2, 0)
    lives.check()


def test_rows_left_of_a_range_that_was_given_up_are_not_written_again(lives: Mended) -> None:
    """They are in the log, from which the next range brings them."""
    lives.stepped_aside(1)
    for name in "ab":
        lives.write(name, 2)
    lives.table.refuses = {1, 6}

    def stricter(step: str) -> None:
        if step == "went aside":
            lives.table.refuses = {1, 6, 7}

    lives.table.before = stricter
    assert isinstance(lives.process().run_all()["b"], WriteError)
    lives.table.before = lambda step: None
    assert [row[3] for row in lives.table.refused.rows] == [1, 6]
    lives.table.refuses = set()
    assert lives.again() == Again(1, 0)
    assert lives.aside == [] and lives.rows == [0, 1, 2, 3, 4, 5]
    lives.later(60_000)
    lives.process().run_all()
    lives.check()
    assert lives.table.refused.rows == []


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("finisher", ["again", "run"])
def test_a_kill_at_every_call_of_the_table_is_survived(step: str, finisher: str) -> None:
    for nth in range(3):
        lives = Mended()
        lives.stepped_aside(1, 3)
        lives.table.refuses = {3}
        with dying_at(lives.table, step, nth), suppress(Died):
            lives.again()
        if finisher == "again":
            lives.again()
        else:
            # Also a process without the option finishes it.
            lives.write("b")
            lives.process(policy=Policy(late_window_seconds=0)).run_all()
        lives.check_once()
        lives.table.refuses = set()
        lives.again()
        lives.check()


@pytest.mark.proves("taken-when-done", "burned-again-waits")
@pytest.mark.parametrize("answered", [True, False])
def test_a_kill_at_every_store_call_is_survived(*, answered: bool) -> None:
    for calls in range(1, 200):
        lives = Mended()
        lives.stepped_aside(1, 3)
        lives.table.refuses = {3}
        try:
            lives.again(store=Mortal(lives.store, calls, answered))
        except Died:
            pass
        else:
            assert calls > 3
            return
        lives.write("b")
        for _ in range(2):
            lives.process().run_all()
        lives.check_once()
        lives.table.refuses = set()
        lives.again()
        lives.check()
    pytest.fail("it never ended")


@pytest.mark.proves("aside-first")
def test_a_slow_process_takes_the_rows_that_the_first_write_left(lives: Mended) -> None:
    """Two processes find different rows, because the table changed in between."""
    lives.stepped_aside(1, 3)
    lives.table.refuses = {3}
    other = lives.process(name="b")

    def faster(step: str) -> None:
        if step == "aside":
            lives.table.before = lambda step: None
            lives.table.refuses = {1}
            other.recover()

    lives.table.before = faster
    lives.again()
    lives.table.refuses = {1}
    lives.check()


def open_again(lives: Mended, died_at: str) -> None:
    lives.stepped_aside(1, 3)
    lives.table.refuses = {3}
    with dying_at(lives.table, died_at), pytest.raises(Died):
        lives.again()


def test_a_slow_first_write_of_a_range_that_was_given_up_changes_nothing(lives: Mended) -> None:
    open_again(lives, "aside")
    record = newest_record(lives.root)
    assert record is not None
    promise = record.promise("memory://table")
    assert promise is not None and promise.is_again
    closed = lives.process(name="b").give_up_range()
    assert closed is not None and not closed.is_written
    lives.table.refused.write(promise)
    lives.check_waiting(1, 3)
    lives.table.refuses = set()
    assert lives.again() == Again(2, 0)
    lives.check()


def test_a_range_that_another_user_gives_up_is_not_promised_again(lives: Mended) -> None:
    lives.stepped_aside(1, 3)
    lives.table.refuses = {3}
    other = lives.process(name="b")

    def given_up(step: str) -> None:
        if step == "write":
            lives.table.before = lambda step: None
            assert other.give_up_range() is not None

    lives.table.before = given_up
    ranges = len(lives.table.ranges)
    with pytest.raises(WriteError, match="another process gave the range of refused rows up"):
        lives.again()
    assert len(lives.table.ranges) == ranges + 1
    lives.check_waiting(1, 3)


@pytest.mark.parametrize("died_at", ["went aside", "write"])
def test_a_user_gives_the_range_up_between_its_writes(lives: Mended, died_at: str) -> None:
    open_again(lives, died_at)
    closed = lives.process(name="b").give_up_range()
    assert closed is not None and not closed.is_written
    lives.check_waiting(1, 3)
    assert lives.again() == Again(1, 1)
    lives.check()


@pytest.mark.parametrize("died_at", ["went aside", "written"])
def test_refused_rows_that_were_restored_stop_the_run(lives: Mended, died_at: str) -> None:
    open_again(lives, died_at)
    refused = lives.table.refused
    there = refused.versions
    refused.versions = (*there, there[-2]._replace(undoes=True, restores=len(there) - 2))
    with pytest.raises(ConfirmError, match="memory://table_refused"):
        lives.again()
    refused.versions = there
    lives.again()
    lives.check()


@pytest.mark.proves("accepted-aside-burned")
def test_a_table_that_was_restored_before_the_open_range_is_accepted(lives: Mended) -> None:
    lives.stepped_aside(1, 3)
    confirmed = len(lives.table.versions) - 1
    lives.table.refuses = {3}
    with dying_at(lives.table, "written"), pytest.raises(Died):
        lives.again()
    lives.table.restore(confirmed)
    with pytest.raises(ConfirmError):
        lives.again()
    lives.process(name="b").accept_table()
    lives.process(name="b").recover()
    lives.table.refuses &= {*lives.aside}
    lives.check()
    lives.table.refuses = set()
    lives.again()
    lives.check()


@pytest.mark.proves("aside-not-lost")
def test_a_range_whose_marked_rows_were_dropped_is_not_accepted(lives: Mended) -> None:
    open_again(lives, "written")
    lives.table.refused.versions = ()
    with pytest.raises(PlanError, match="lacks the rows that stepped aside"):
        lives.process(name="b").accept_table()


def test_only_a_chain_with_rows_again_has_the_newest_format(lives: Mended) -> None:
    def format_of_chain() -> int:
        record = newest_record(lives.root)
        assert record is not None and decode(encode(record), "it") == record
        return int(document_of(record)[versions.FIELD])

    lives.stepped_aside(1)
    assert format_of_chain() == 2
    lives.table.refuses = set()
    lives.again()
    assert format_of_chain() == versions.VERSIONS[versions.LIFECYCLE] == 3


# As the first version that wrote it did.
OF_FORMAT_3 = """{"format":3,"kind":"intent","number":"18446744073709551610","record_id":"r",\
"gc_grace_ms":3600000,"timestamp_ms":5,"host":"h","log_id":{"b":"i"},"cut":{"b":4},"to":{"b":4},\
"floor":{"b":1},"rows_aside":{"b":2},"again":{"b":7},"taken":{"b":5},\
"tables":[{"target":{"table":"t","mode":"append","keys":[],"sequence_by":"","delete_when":"",\
"partition_by":[],"cluster_by":[],"properties":[],"tombstone_horizon_ms":0},"app_id":"i","k":7,\
"table_id":"x","table_version":9,"tombstones_id":"","tombstones_version":-1,\
"refused":{"table_id":"y","version":3}}],"table":{"b":0}}"""


def test_a_record_of_format_3_stays_readable() -> None:
    metadata = {HEADER_KEY: OF_FORMAT_3, CRC_KEY: crc_hex(OF_FORMAT_3.encode())}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.schema([]).with_metadata(metadata)):
        pass
    record = decode(bytes(sink.getvalue()), "it")
    promise = record.promise("t")
    assert promise is not None and promise.is_open and promise.is_again and promise.is_aside
    assert [(part.cut, part.to) for part in promise.ranges] == [(4, 4)]
    assert (record.logs["b"].again, record.logs["b"].taken) == (7, 5)
    assert document_of(record) == json.loads(OF_FORMAT_3)


def test_a_record_with_two_open_ranges_of_a_log_is_refused(lives: Mended) -> None:
    lives.stepped_aside(1)
    record = newest_record(lives.root)
    assert record is not None
    both = replace(record.logs["b"], again=3, to=record.logs["b"].cut + 1)
    with pytest.raises(InvalidLogError, match="two open ranges"):
        decode(encode(replace(record, logs={**record.logs, "b": both})), "it")


def test_refused_rows_are_not_written_again_by_keys_without_a_sequence(lives: Mended) -> None:
    lives.table = ModelTable(lives.root, Target("memory://table", MERGE, ("v",)))
    lives.write("b")
    lives.process().run_all()
    before = kinds_of_chain(lives)
    with pytest.raises(PlanError, match="has keys and no sequence_by"):
        lives.again()
    assert kinds_of_chain(lives) == before
