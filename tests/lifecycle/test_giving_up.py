"""A user gives a range up that the table refuses for ever. No row is lost."""

from __future__ import annotations

import random
from contextlib import suppress

import pyarrow as pa
import pytest

from sparkwal.errors import ConfirmError, PlanError, SparkWalError, WriteError
from sparkwal.lifecycle.cycle import Run
from sparkwal.protocol.chain import newest_record
from tests.chains import newest
from tests.lifecycle.table import Died, ModelTable, dying_at
from tests.lifecycle.test_coordinator import Life, Mortal
from tests.lifecycle.test_many_logs import Lives, compacted, kinds_of_chain
from tests.lifecycle.timed_log import SCHEMA

WIDE = pa.schema([*SCHEMA, ("w", pa.int64())])


@pytest.fixture
def life() -> Life:
    return Life()


@pytest.fixture
def lives() -> Lives:
    return Lives()


def refuse(table: ModelTable) -> None:
    """From now on the table takes no rows."""

    def before(step: str) -> None:
        if step == "write":
            raise WriteError("a CHECK constraint is violated")

    table.before = before


def take(table: ModelTable) -> None:
    table.before = lambda step: None


def refused(life: Life) -> None:
    """Range 2 is open, and the table refuses it."""
    life.write(2)
    life.process().run_once()
    life.write(2)
    refuse(life.table)
    for _ in range(2):
        with pytest.raises(WriteError):
            life.process().run_once()


def test_a_range_that_is_given_up_is_promised_again(life: Life) -> None:
    refused(life)
    before = newest(life.log)
    closed = life.process().give_up_range()
    assert before is not None and closed is not None
    assert (closed.k, closed.is_written) == (2, False)
    assert [(part.cut, part.to) for part in closed.parts] == [(before.cut, before.to)]
    state = newest(life.log)
    assert state is not None and (state.kind, state.cut, state.to) == (
        "burned",
        before.cut,
        before.cut,
    )
    take(life.table)
    life.write(1)
    run = life.process().run_once()
    assert run.compacted is not None
    assert (run.compacted.k, run.compacted.start) == (3, before.cut)
    assert life.table.rows == life.written


def test_without_an_open_range_nothing_is_given_up(life: Life) -> None:
    life.write(1)
    assert life.process().give_up_range() is None
    life.process().run_once()
    state = newest(life.log)
    assert life.process().give_up_range() is None
    assert newest(life.log) == state


def test_a_range_that_the_table_holds_is_done_and_not_given_up(life: Life) -> None:
    life.write(2)
    with dying_at(life.table, "written"), pytest.raises(Died):
        life.process().run_once()
    closed = life.process().give_up_range()
    assert closed is not None and closed.is_written and closed.k == 1
    state = newest(life.log)
    assert state is not None and state.kind == "done"
    life.process().run_once()
    assert life.table.rows == life.written


def test_a_slow_writer_is_faster_than_the_user(life: Life) -> None:
    refused(life)
    state = newest(life.log)
    assert state is not None

    def written(step: str) -> None:
        if step == "burn":
            take(life.table)
            life.table.write(state.promise)

    life.table.before = written
    closed = life.process().give_up_range()
    assert closed is not None and closed.is_written
    assert life.table.rows == life.written


def test_the_user_is_faster_than_a_slow_writer(life: Life) -> None:
    refused(life)
    state = newest(life.log)
    assert state is not None
    life.process().give_up_range()
    take(life.table)
    life.table.write(state.promise)
    life.process().run_once()
    life.table.write(state.promise)
    assert life.table.rows == life.written


@pytest.mark.parametrize("answered", [True, False])
def test_a_kill_at_every_store_call_is_survived(*, answered: bool) -> None:
    for calls in range(1, 50):
        life = Life()
        refused(life)
        take(life.table)
        try:
            life.process(Mortal(life.timed.store, calls, answered)).give_up_range()
        except Died:
            pass
        else:
            assert calls > 2
            return
        life.process().run_once()
        assert life.table.rows == life.written
    pytest.fail("it never ended")


def test_a_table_that_was_restored_is_not_burned(life: Life) -> None:
    refused(life)
    life.table.restore(0)
    with pytest.raises(ConfirmError, match="is a RESTORE"):
        life.process().give_up_range()


def test_a_range_that_was_promised_meanwhile_is_not_given_up(life: Life) -> None:
    refused(life)
    other = life.process()

    def finished_elsewhere(step: str) -> None:
        if step == "burn":
            take(life.table)
            other.recover()
            life.write(1)
            with dying_at(life.table, "write"), suppress(Died):
                other.run_once()

    life.table.before = finished_elsewhere
    assert life.process().give_up_range() is None
    state = newest(life.log)
    assert state is not None and state.is_open and state.k == 3
    life.process().run_once()
    assert life.table.rows == life.written


def test_a_process_without_the_table_gives_nothing_up(life: Life) -> None:
    refused(life)
    with pytest.raises(PlanError, match="without a table"):
        life.process(table=None).give_up_range()


def test_a_range_of_several_logs_is_given_up_by_a_process_of_one(lives: Lives) -> None:
    for name in "ab":
        lives.write(name)
    with dying_at(lives.table, "write"), pytest.raises(Died):
        lives.process().run_all()
    closed = lives.process().give_up_range()
    assert closed is not None and [part.sequencer for part in closed.parts] == ["a", "b"]
    assert kinds_of_chain(lives) == ["intent", "burned"]
    assert compacted(lives.process().run_all()) == {"a": 2, "b": 2}
    assert lives.rows == lives.written


def test_a_log_that_does_not_fit_the_table_stops_no_other(lives: Lives) -> None:
    lives.write("a")
    lives.process().run_all()
    taken = lives.table.prepare

    def prepare(log: object, spark_schema: str, *, first: bool = False) -> None:
        if '"w"' in spark_schema:
            raise PlanError("column 'w' does not fit")
        taken(lives.root, spark_schema, first=first)

    lives.table.prepare = prepare  # type: ignore[method-assign,assignment]
    lives.write("a")
    lives.write("b", schema=WIDE)
    results = lives.process().run_all()
    assert compacted(results) == {"a": 2}
    assert isinstance(results["b"], PlanError)
    # Alone it is refused too, and no range is open.
    lives.write("b", schema=WIDE)
    results = lives.process().run_all()
    assert isinstance(results["b"], PlanError) and isinstance(results["a"], Run)
    del lives.table.prepare  # type: ignore[method-assign]
    assert compacted(lives.process().run_all()) == {"b": 3}
    assert lives.rows == lives.written


def good(lives: Lives) -> list[int]:
    return [row for row in lives.written if row not in lives.table.refuses]


def waiting(results: dict[str, Run | SparkWalError]) -> set[str]:
    """The logs that wait because the table refused their rows."""
    return {name for name, result in results.items() if isinstance(result, WriteError)}


def test_a_log_with_a_row_that_the_table_refuses_stops_no_other(lives: Lives) -> None:
    for name in "abc":
        lives.write(name)
    lives.table.refuses = {1}
    results = lives.process().run_all()
    assert waiting(results) == {"b"} and lives.rows == good(lives)
    chain = newest_record(lives.root)
    assert chain is not None and not any(log.is_open for log in chain.logs.values())
    # Alone it waits, and nothing is promised.
    lives.write("b")
    before = kinds_of_chain(lives)
    results = lives.process().run_all()
    assert "tried again in 59 s" in str(results["b"])
    assert kinds_of_chain(lives) == before and lives.rows == [0, 2]
    lives.write("a")
    assert waiting(lives.process().run_all()) == {"b"} and lives.rows == [0, 2, 4]
    lives.table.refuses = set()
    lives.later(60_000)
    assert compacted(lives.process().run_all()).keys() == {"b"}
    assert lives.rows == lives.written
    chain = newest_record(lives.root)
    assert chain is not None and chain.logs["b"].refused_ms == chain.logs["b"].tried_ms == 0


def test_a_run_of_a_refused_log_alone_tries_it_at_once(lives: Lives) -> None:
    for name in "ab":
        lives.write(name)
    lives.table.refuses = {1}
    lives.process().run_all()
    lives.table.refuses = set()
    assert lives.process(name="b").run_once().compacted is not None
    assert lives.rows == lives.written


def test_a_refused_log_is_tried_more_and_more_rarely(lives: Lives) -> None:
    for name in "ab":
        lives.write(name)
    lives.table.refuses = {1}
    process = lives.process()
    process.run_all()
    began = lives.timed.clock.wall_ms
    tried = []
    while lives.timed.clock.wall_ms < began + 5 * 3_600_000:
        lives.later(60_000)
        lives.write("a")
        before = lives.table.ranges
        assert waiting(process.run_all()) == {"b"}
        # The range of a, and a second one that was burned.
        if lives.table.ranges[-1] > before[-1] + 1:
            tried.append((lives.timed.clock.wall_ms - began) // 60_000)
    # In minutes.
    assert tried[:6] == [1, 2, 4, 8, 16, 32] and len(tried) == 10, tried
    assert lives.rows == good(lives)


@pytest.mark.parametrize("seed", range(8))
def test_bad_logs_among_many_are_found_by_halving(seed: int) -> None:
    rng = random.Random(seed)
    lives = Lives()
    names = [f"log{number:02}" for number in range(40)]
    for name in names:
        lives.write(name)
    bad = rng.sample(range(40), rng.randint(1, 6))
    lives.table.refuses = {*bad}
    process = lives.process()
    results = process.run_all()
    assert waiting(results) == {names[number] for number in bad}
    assert lives.rows == good(lives)
    # A range of 40 logs has at most 6 halves on the way to each bad log.
    tried = lives.table.ranges[-1]
    assert tried <= 1 + 2 * 6 * len(bad), tried
    for name in names:
        lives.write(name)
    assert waiting(process.run_all()) == {names[number] for number in bad}
    assert lives.rows == [row for row in good(lives) if row < 40 or row - 40 not in bad]
    lives.table.refuses = set()
    lives.later(3_600_000)
    assert not waiting(process.run_all())
    assert lives.rows == lives.written


def test_a_table_that_takes_no_rows_marks_few_logs(lives: Lives) -> None:
    """The rows are not the cause: a run does not try them all."""
    for number in range(100):
        lives.write(f"log{number:02}")
    refuse(lives.table)
    with pytest.raises(WriteError):
        lives.process().run_all()
    chain = newest_record(lives.root)
    assert chain is not None
    assert sum(log.refused_ms > 0 for log in chain.logs.values()) == 8
    take(lives.table)
    lives.later(60_000)
    assert not waiting(lives.process().run_all()) and lives.rows == lives.written


def test_a_write_whose_answer_is_lost_is_done_and_marks_no_log(lives: Lives) -> None:
    for name in "ab":
        lives.write(name)
    lives.process().run_all()
    lives.write("a")

    def lost(step: str) -> None:
        if step == "written":
            raise WriteError("the connection was reset")

    lives.table.before = lost
    assert compacted(lives.process().run_all()) == {"a": 2}
    assert "burned" not in kinds_of_chain(lives)
    assert lives.rows == lives.written


@pytest.mark.parametrize("answered", [True, False])
def test_a_kill_at_every_store_call_of_a_halving_is_survived(*, answered: bool) -> None:
    for calls in range(1, 300):
        lives = Lives()
        for name in "abcd":
            lives.write(name)
        lives.table.refuses = {2}
        store = Mortal(lives.store, calls, answered)
        try:
            lives.process(store).run_all()
        except Died:
            pass
        else:
            assert calls > 20
            return
        results = lives.process().run_all()
        assert waiting(results) == {"c"} and lives.rows == [0, 1, 3]
    pytest.fail("it never ended")
