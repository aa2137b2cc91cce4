"""Rows that the table refuses step aside into a table of their own, each once, with kills."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from sparkwal.errors import ConfirmError, PlanError, SparkWalError, WriteError
from sparkwal.format import versions
from sparkwal.format.header import CRC_KEY, HEADER_KEY, crc_hex, document_in
from sparkwal.format.lifecycle_record import BesideTable, ChainRecord, decode, encode
from sparkwal.lifecycle.coordinator import Coordinator
from sparkwal.lifecycle.cycle import Run
from sparkwal.lifecycle.policy import ASIDE, Policy
from sparkwal.protocol.chain import newest_record, put_record
from sparkwal.protocol.lifecycle_steps import with_target
from sparkwal.testing.memory import MemoryStore
from tests.lifecycle.table import Died, dying_at
from tests.lifecycle.test_coordinator import Mortal
from tests.lifecycle.test_many_logs import Lives, compacted, kinds_of_chain

SETS_ASIDE = Policy(late_window_seconds=0, refused_rows=ASIDE)


class Tolerant(Lives):
    """Logs whose refused rows step aside."""

    def process(
        self, store: MemoryStore | None = None, *, name: str = "default", **others: object
    ) -> Coordinator:
        return super().process(store, name=name, **{"policy": SETS_ASIDE, **others})

    @property
    def aside(self) -> list[int]:
        """The rows of the table of refused rows that are in no log any more."""
        record = newest_record(self.root)
        cuts = {log.log_id: log.cut for log in record.logs.values()} if record else {}
        return sorted(row[3] for row in self.table.refused.rows if row[2] < cuts[row[1]])

    def check(self) -> None:
        """Each row is in the table, or aside if the table refuses it, once."""
        bad = self.table.refuses
        assert self.rows == [row for row in self.written if row not in bad]
        assert self.aside == [row for row in self.written if row in bad]
        record = newest_record(self.root)
        assert record is not None
        assert sum(log.rows_aside for log in record.logs.values()) == len(self.aside)


@pytest.fixture
def lives() -> Tolerant:
    return Tolerant()


def marks(lives: Tolerant, name: str = "b") -> tuple[bool, int]:
    record = newest_record(lives.root)
    assert record is not None
    return record.logs[name].refused_ms > 0, record.logs[name].aside


@pytest.mark.proves("aside-first")
def test_a_refused_row_steps_aside_in_the_same_run(lives: Tolerant) -> None:
    for name in "abcb":
        lives.write(name)
    lives.table.refuses = {1}
    results = lives.process().run_all()
    assert all(isinstance(run, Run) for run in results.values()), results
    assert compacted(results).keys() == {"a", "b", "c"}
    lives.check()
    assert marks(lives) == (False, 0)
    # The next range is an ordinary one.
    for name in "ab":
        lives.write(name)
    before = kinds_of_chain(lives)
    lives.process().run_all()
    assert kinds_of_chain(lives)[len(before) :] == ["intent", "done", "floor"]
    lives.check()


def test_a_log_alone_gives_its_range_up_and_goes_on(lives: Tolerant) -> None:
    lives.write("a", 3)
    lives.table.refuses = {1}
    run = lives.process(name="a").run_once()
    assert run.compacted is not None and run.compacted.k == 2
    lives.check()


def test_a_log_that_waited_goes_on_at_once(lives: Tolerant) -> None:
    for name in "ab":
        lives.write(name)
    lives.table.refuses = {1}
    assert isinstance(
        lives.process(policy=Policy(late_window_seconds=0)).run_all()["b"], WriteError
    )
    assert isinstance(lives.process().run_all()["b"], Run)
    lives.check()


def test_nothing_steps_aside_if_the_rows_are_not_the_cause(lives: Tolerant) -> None:
    for name in "ab":
        lives.write(name)

    def before(step: str) -> None:
        if step in ("write", "find"):
            raise WriteError("no row of the range is taken")

    lives.table.before = before
    results = lives.process().run_all()
    assert isinstance(results["b"], WriteError) and isinstance(results["a"], WriteError)
    assert lives.rows == lives.aside == [] and marks(lives)[0]
    # Both wait, as without the option.
    ranges = lives.table.ranges
    assert isinstance(lives.process().run_all()["b"], WriteError)
    assert lives.table.ranges == ranges
    lives.table.before = lambda step: None
    lives.later(60_000)
    lives.process().run_all()
    lives.check()


@pytest.mark.proves("aside-until-done")
def test_what_stepped_aside_from_a_range_that_was_given_up_is_removed(lives: Tolerant) -> None:
    for name in "aab":
        lives.write(name)
    lives.table.refuses = {1}

    def stricter(step: str) -> None:
        if step == "went aside":
            lives.table.refuses = {0, 1}

    lives.table.before = stricter
    error = lives.process(name="a").run_all()["a"]
    assert isinstance(error, WriteError)
    lives.table.before = lambda step: None
    # Row 1 is aside from a range without rows. Its log waits with it.
    assert [row[3] for row in lives.table.refused.rows] == [1] and lives.aside == []
    lives.table.refuses = {0}
    # Also a process without the option removes it.
    lives.later(60_000)
    lives.process(policy=Policy(late_window_seconds=0)).run_all()
    lives.check()
    assert [row[3] for row in lives.table.refused.rows] == [0]


def test_a_log_stays_alone_after_the_target_was_changed(lives: Tolerant) -> None:
    for name in "aab":
        lives.write(name)
    lives.table.refuses = {1}

    def stricter(step: str) -> None:
        if step == "went aside":
            lives.table.refuses = {0, 1}

    lives.table.before = stricter
    lives.process(name="a").run_all()
    lives.table.before = lambda step: None
    record = newest_record(lives.root)
    assert record is not None and record.logs["a"].aside
    changed = with_target(record, lives.table.target)
    assert put_record(lives.root, changed, lives.timed.clock, "here") is not None
    for name in "ab":
        lives.write(name)
    lives.table.refuses = {0}
    lives.process().run_all()
    lives.check()


@pytest.mark.parametrize(
    "step", ["look", "write", "find", "aside", "went aside", "written", "burn"]
)
def test_a_kill_at_every_call_of_the_table_is_survived(step: str) -> None:
    for nth in range(12):
        lives = Tolerant()
        for name in "abcb":
            lives.write(name)
        lives.table.refuses = {1}
        with dying_at(lives.table, step, nth), suppress(Died):
            lives.process().run_all()
        for name in "bd":
            lives.write(name)
        lives.table.refuses = {1, 5}
        for _ in range(2):
            lives.process().run_all()
        lives.check()


@pytest.mark.parametrize("answered", [True, False])
def test_a_kill_at_every_store_call_is_survived(*, answered: bool) -> None:
    for calls in range(1, 400):
        lives = Tolerant()
        for name in "abb":
            lives.write(name)
        lives.table.refuses = {1}
        try:
            lives.process(Mortal(lives.store, calls, answered)).run_all()
        except Died:
            pass
        else:
            assert calls > 20
            return
        for name in "ab":
            lives.write(name)
        lives.table.refuses = {1, 3, 4}
        for _ in range(2):
            lives.process().run_all()
        lives.check()
    pytest.fail("it never ended")


@pytest.mark.proves("aside-first")
def test_a_slow_process_sets_no_other_rows_aside(lives: Tolerant) -> None:
    """Two processes find different rows, because the table changed in between."""
    lives.write("a", 3)
    lives.table.refuses = {1}
    other = lives.process(name="a")

    def faster(step: str) -> None:
        if step == "aside":
            lives.table.before = lambda step: None
            lives.table.refuses = {2}
            other.run_once()

    lives.table.before = faster
    lives.process(name="a").run_once()
    lives.table.refuses = {2}
    lives.check()


def open_aside(lives: Tolerant, died_at: str) -> None:
    lives.write("a", 3)
    lives.table.refuses = {1}
    with dying_at(lives.table, died_at), pytest.raises(Died):
        # Twice written: the first time the table refuses the whole range.
        lives.process(name="a").run_once()


@pytest.mark.proves("beside-undoes-nothing")
@pytest.mark.parametrize("died_at", ["went aside", "written"])
def test_refused_rows_that_were_restored_stop_the_run(lives: Tolerant, died_at: str) -> None:
    open_aside(lives, died_at)
    refused = lives.table.refused
    versions_before = refused.versions
    refused.versions = (*versions_before, versions_before[0]._replace(undoes=True, restores=0))
    with pytest.raises(ConfirmError, match="memory://table_refused"):
        lives.process(name="a").run_once()
    # Put back, it goes on.
    refused.versions = versions_before
    lives.process(name="a").run_once()
    lives.check()


@pytest.mark.parametrize("died_at", ["went aside", "written"])
def test_refused_rows_that_were_dropped_stop_the_run(lives: Tolerant, died_at: str) -> None:
    open_aside(lives, died_at)
    lives.table.refused.versions = ()
    with pytest.raises(ConfirmError, match="memory://table_refused"):
        lives.process(name="a").run_once()


@pytest.mark.proves("accepted-aside-burned")
def test_after_the_refused_rows_were_dropped_an_open_range_is_accepted(lives: Tolerant) -> None:
    open_aside(lives, "went aside")
    lives.table.refused.versions = ()
    lives.process(name="a").accept_table()
    lives.process(name="a").run_once()
    lives.check()


@pytest.mark.proves("aside-not-lost")
def test_a_range_whose_rows_aside_were_dropped_is_not_accepted(lives: Tolerant) -> None:
    open_aside(lives, "written")
    lives.table.refused.versions = ()
    with pytest.raises(PlanError, match="lacks the rows that stepped aside"):
        lives.process(name="a").accept_table()
    # With the table restored too, it is.
    lives.table.restore(1)
    lives.process(name="a").accept_table()
    lives.process(name="a").run_once()
    lives.check()


def test_a_table_that_was_restored_before_its_open_range_is_accepted(lives: Tolerant) -> None:
    open_aside(lives, "written")
    lives.table.restore(1)
    with pytest.raises(ConfirmError):
        lives.process(name="a").run_once()
    lives.process(name="a").accept_table()
    lives.process(name="a").run_once()
    lives.check()


def test_a_user_gives_a_range_up_whose_rows_stepped_aside(lives: Tolerant) -> None:
    open_aside(lives, "went aside")
    closed = lives.process(name="a").give_up_range()
    assert closed is not None and not closed.is_written
    lives.table.refuses = {2}
    lives.process(name="a").run_once()
    lives.check()


def document_of(record: ChainRecord) -> dict[str, Any]:
    metadata = pa.ipc.open_file(encode(record)).schema.metadata
    return document_in(metadata, "it", versions.LIFECYCLE)


def test_only_a_chain_with_rows_aside_has_the_newer_format(lives: Tolerant) -> None:
    def format_of_chain() -> int:
        record = newest_record(lives.root)
        assert record is not None
        found = document_of(record)[versions.FIELD]
        assert isinstance(found, int)
        return found

    lives.write("a", 3)
    lives.process(name="a").run_once()
    assert format_of_chain() == 1
    lives.write("a")
    lives.table.refuses = {3}
    lives.process(name="a").run_once()
    assert format_of_chain() == 2


# As the first version that wrote it did.
OF_FORMAT_2 = """{"format":2,"kind":"intent","number":"18446744073709551610","record_id":"r",\
"gc_grace_ms":3600000,"timestamp_ms":5,"host":"h","log_id":{"b":"i"},"cut":{"b":2},"to":{"b":4},\
"floor":{"b":1},"refused_ms":{"b":3},"tried_ms":{"b":4},"aside":{"b":7},"rows_aside":{"b":2},\
"tables":[{"target":{"table":"t","mode":"append","keys":[],"sequence_by":"","delete_when":"",\
"partition_by":[],"cluster_by":[],"properties":[],"tombstone_horizon_ms":0},"app_id":"i","k":7,\
"table_id":"x","table_version":9,"tombstones_id":"","tombstones_version":-1,\
"refused":{"table_id":"y","version":3}}],"table":{"b":0}}"""


def test_a_record_of_format_2_stays_readable() -> None:
    metadata = {HEADER_KEY: OF_FORMAT_2, CRC_KEY: crc_hex(OF_FORMAT_2.encode())}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.schema([]).with_metadata(metadata)):
        pass
    record = decode(bytes(sink.getvalue()), "it")
    promise = record.promise("t")
    assert promise is not None and promise.is_aside and promise.table.k == 7
    assert promise.table.refused == BesideTable("y", 3)
    assert (record.logs["b"].aside, record.logs["b"].rows_aside) == (7, 2)
    assert document_of(record) == json.loads(OF_FORMAT_2)


@pytest.mark.parametrize("seed", range(10))
def test_thirty_logs_with_refused_rows_and_kills(seed: int) -> None:
    rng = random.Random(seed)
    lives = Tolerant()
    names = [f"log{number:02}" for number in range(30)]
    for _ in range(4):
        for name in rng.sample(names, 20):
            lives.write(name, rng.randint(1, 3))
        new = [row for row in lives.written if row not in {*lives.rows, *lives.aside}]
        lives.table.refuses |= {*rng.sample(new, rng.randint(0, 6))}
        for _ in range(rng.randint(0, 3)):
            step = rng.choice(["look", "write", "find", "aside", "went aside", "written", "burn"])
            with dying_at(lives.table, step, rng.randint(0, 12)), suppress(Died):
                lives.process().run_all()
            store = Mortal(lives.store, rng.randint(1, 150), rng.random() < 0.5)
            with suppress(Died, SparkWalError):
                lives.process(store).run_all()
        for _ in range(2):
            results = lives.process().run_all()
        assert all(isinstance(run, Run) for run in results.values()), (seed, results)
        lives.check()
