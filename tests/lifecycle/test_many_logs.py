"""All logs under a path in one chain and one table: every step may be the last."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest

from sparkwal.appender.appender import Appender
from sparkwal.errors import InvalidLogError, PlanError, SparkWalError
from sparkwal.format import keys
from sparkwal.format.consumer_record import LogPosition
from sparkwal.format.lifecycle_record import MERGE, Target
from sparkwal.lifecycle import cycle as cycles
from sparkwal.lifecycle.coordinator import Coordinator
from sparkwal.lifecycle.cycle import Run
from sparkwal.lifecycle.known_log import Collection
from sparkwal.lifecycle.policy import Policy
from sparkwal.protocol.chain import newest_record, record_at
from sparkwal.protocol.recovery import find_head
from sparkwal.store.base import Entry, LogStore, Page
from sparkwal.testing.memory import MemoryStore
from tests.chains import newest
from tests.consumers import consumer, publish
from tests.lifecycle.inside import known_head
from tests.lifecycle.table import Died, ModelTable, dying_at
from tests.lifecycle.test_coordinator import Mortal
from tests.lifecycle.timed_log import SCHEMA, TimedLog

TARGET = Target("memory://table")
AT_ONCE = Policy(late_window_seconds=0)
GRACE_MS = 3_600_000


class Listed(MemoryStore):
    """A store that lists ETags, as S3 does."""

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        page = super().list(prefix, limit, after)
        entries = [
            Entry(entry.key, entry.size, str(hash(self.objects[entry.key])))
            for entry in page.entries
        ]
        return Page(entries, page.more)


class Lives:
    """Logs under one path, their table, and processes that come and go."""

    def __init__(self) -> None:
        self.timed = TimedLog()
        self.store = Listed()
        self.store.now_ms = self.timed.clock.now_ms
        self.root = LogStore(self.store, "wal")
        self.table = ModelTable(self.root)
        self.written: list[int] = []

    def write(self, name: str, commits: int = 1, schema: pa.Schema = SCHEMA) -> None:
        log = self.root.sequencer(name)
        with Appender(
            log, schema, producer_id="p", clock=self.timed.clock, maxInFlightRequests=1
        ) as wal:
            for _ in range(commits):
                self.later(1000)
                wal.append([{"v": len(self.written)}]).result()
                self.written.append(len(self.written))

    def process(
        self, store: MemoryStore | None = None, *, name: str = keys.ROOT, **others: object
    ) -> Coordinator:
        """A coordinator, which was opened for the log of this name."""
        arguments = {"policy": AT_ONCE, "table": self.table, **others}
        arguments = {"gc_grace_ms": GRACE_MS, "clock": self.timed.clock, **arguments}
        root = LogStore(store, "wal") if store is not None else self.root
        log = root if name == keys.ROOT else root.sequencer(name)
        return Coordinator(log, host="here", **arguments)  # type: ignore[arg-type]

    def later(self, ms: int) -> None:
        self.timed.clock.wall_ms += ms
        self.timed.clock.since_boot_ms += ms

    def requests(self) -> Counter[str]:
        made = Counter(self.store.counts)
        self.store.counts.clear()
        return made

    @property
    def rows(self) -> list[int]:
        return sorted(self.table.rows)


@pytest.fixture
def lives() -> Lives:
    return Lives()


def compacted(results: dict[str, Run | Exception]) -> dict[str, int]:
    """By log, the range that the run wrote."""
    return {
        name: run.compacted.k
        for name, run in results.items()
        if isinstance(run, Run) and run.compacted is not None
    }


def test_all_that_is_due_makes_one_version(lives: Lives) -> None:
    for name in ("default", "a", "b"):
        lives.write(name, 2)
    process = lives.process()
    results = process.run_all()
    assert compacted(results) == {"default": 1, "a": 1, "b": 1}
    assert lives.rows == lives.written and lives.table.ranges == [1]
    chain = newest_record(lives.root)
    assert chain is not None and {*chain.logs} == {"default", "a", "b"}
    for name, log in chain.logs.items():
        gap = find_head(lives.root.sequencer(name)).gap
        assert log.cut == log.to == log.floor == gap
    # Only one log has new commits: the others appear in no range.
    lives.write("b")
    assert compacted(process.run_all()) == {"b": 2}
    assert lives.rows == lives.written and lives.table.ranges == [1, 2]


@pytest.mark.parametrize("compacted_before", [True, False])
def test_a_copy_of_a_log_under_another_name_goes_into_no_table(
    lives: Lives, compacted_before: bool
) -> None:
    for name in ("a", "b"):
        lives.write(name)
    if compacted_before:
        lives.process().run_all()
        lives.write("b")
    prefix = keys.batches_prefix("wal/sequencers/b")
    for key in [key for key in lives.store.objects if key.startswith(prefix)]:
        lives.store.objects[key.replace("/b/", "/copy/")] = lives.store.objects[key]
    results = lives.process().run_all()
    error = results.pop("copy")
    assert isinstance(error, PlanError) and "a copy of sequencer b" in str(error)
    assert all(isinstance(run, Run) for run in results.values())
    assert lives.rows == lives.written
    alone = Coordinator(lives.root.sequencer("copy"), AT_ONCE, table=lives.table, host="here")
    with pytest.raises(PlanError, match="a copy of sequencer b"):
        alone.run_once()
    assert lives.rows == lives.written


def test_a_log_whose_column_has_another_type_stops_no_other(lives: Lives) -> None:
    kinds = {"a": pa.int32(), "b": pa.string(), "c": pa.int64()}
    for name, kind in kinds.items():
        lives.write(name, schema=SCHEMA.append(pa.field("x", kind)))
    wanted = [0, 2]
    for _ in range(2):
        results = lives.process().run_all()
        error = results.pop("b")
        assert isinstance(error, SparkWalError) and "x" in str(error) and "b" in str(error)
        # A whole number with more bytes fits.
        assert all(isinstance(run, Run) for run in results.values()), results
        assert lives.rows == wanted
        lives.write("c", schema=SCHEMA.append(pa.field("x", pa.int64())))
        wanted = [0, 2, 3]


@pytest.mark.parametrize("logs", [1, 50])
def test_each_cycle_makes_exactly_these_requests(lives: Lives, logs: int) -> None:
    """Without those of the table, which reads the rows by another store."""
    names = [f"s{number:02d}" for number in range(logs)]
    for name in names:
        lives.write(name)
    aside = MemoryStore()
    aside.objects = lives.store.objects
    lives.table = ModelTable(LogStore(aside, "wal"))
    process = lives.process()
    lives.requests()
    assert {*compacted(process.run_all())} == {*names}
    # LISTs: the log at the path, those under it, and the chain; then the consumers of the path and
    # of the logs under it. GETs: each head, and the ages of two records. PUTs: intent, done, floor.
    assert lives.requests() == {"LIST": 5, "GET": logs + 2, "PUT": 3}
    before = newest_record(lives.root)
    lives.requests()
    assert compacted(process.run_all()) == {}
    # The same three LISTs, the newest record of the chain, and the two ages.
    assert lives.requests() == {"LIST": 3, "GET": 3}
    assert newest_record(lives.root) == before
    for _ in range(2):
        lives.later(GRACE_MS + 1)
        process.run_all()
    # A record without rows is another object: the heads are read again, once.
    process.run_all()
    lives.requests()
    assert compacted(process.run_all()) == {}
    # Nothing waits for the grace any more.
    assert lives.requests() == {"LIST": 3, "GET": 1}


def at_rest(lives: Lives, logs: int) -> list[str]:
    """So many logs whose rows are in the table."""
    names = [f"s{number:02d}" for number in range(logs)]
    for name in names:
        lives.write(name)
    lives.process().run_all()
    lives.requests()
    return names


@pytest.mark.parametrize("logs", [1, 50])
def test_a_new_process_reads_no_log_at_rest(lives: Lives, logs: int) -> None:
    at_rest(lives, logs)
    results = lives.process().run_all()
    assert {run.found for run in results.values() if isinstance(run, Run)} == {"at rest"}
    # As in the process that brought the rows: the path, the chain, and the ages of two records.
    assert lives.requests() == {"LIST": 3, "GET": 3}


def test_what_time_frees_of_logs_at_rest_is_collected_by_new_processes(lives: Lives) -> None:
    names = at_rest(lives, 20)
    made = []
    for _ in range(2):
        lives.later(GRACE_MS + 1)
        for _ in range(2):
            results = lives.process().run_all()
            assert all(isinstance(run, Run) for run in results.values()), results
            made.append(lives.requests())
    deleting, waiting, erasing, again = made
    assert deleting.total() <= 3 * 20 + 15 and waiting.total() <= 15
    assert erasing["PUT"] >= 20
    # The newest object of each log is another one now.
    assert again["GET"] <= 20 + 5
    lives.process().run_all()
    assert lives.requests() == {"LIST": 3, "GET": 1}
    for name in names:
        done = lives.process(name=name).collect(dry_run=True)
        assert done is not None and (done.objects, done.with_rows) == (0, 0)


def test_a_new_process_brings_the_rows_of_the_logs_that_changed(lives: Lives) -> None:
    names = at_rest(lives, 20)
    for name in names[:3]:
        lives.write(name)
    lives.requests()
    assert {*compacted(lives.process().run_all())} == {*names[:3]}
    assert lives.rows == lives.written
    lives.process().run_all()
    assert lives.requests()["GET"] <= 30


def test_leader_records_alone_are_read_by_one_new_process(lives: Lives) -> None:
    names = at_rest(lives, 20)
    for name in names:
        lives.write(name, 0)
    lives.requests()
    lives.process().run_all()
    assert lives.requests()["GET"] >= 20
    assert {*lives.process().run_all()} == {*names}
    assert lives.requests() == {"LIST": 3, "GET": 3}


def test_a_log_at_rest_that_was_recreated_with_as_many_records_is_read(lives: Lives) -> None:
    at_rest(lives, 2)
    prefix = keys.batches_prefix("wal/sequencers/s01")
    before = [key for key in lives.store.objects if key.startswith(prefix)]
    for key in before:
        lives.store.delete(key)
    lives.write("s01")
    assert before == [key for key in lives.store.objects if key.startswith(prefix)]
    results = lives.process().run_all()
    assert isinstance(results["s01"], PlanError) and "recreated" in str(results["s01"])
    assert isinstance(results["s00"], Run)


def test_where_a_list_shows_no_etag_each_head_is_read(lives: Lives) -> None:
    at_rest(lives, 20)
    plain = MemoryStore()
    plain.objects = lives.store.objects
    lives.process(plain).run_all()
    assert plain.counts["GET"] >= 20


def test_a_log_whose_floor_a_consumer_holds_is_read(lives: Lives) -> None:
    lives.write("a")
    live = find_head(lives.root.sequencer("a")).live
    assert live is not None
    logs = {"a": LogPosition(live.header.log_id, 1)}
    publish(lives.root, consumer("all", {}, logs=logs), is_of_all=True)
    lives.process().run_all()
    publish(lives.root, consumer("all", {}), is_of_all=True)
    lives.store.delete("wal/consumers/all.all")
    run = lives.process().run_all()["a"]
    assert isinstance(run, Run) and run.floor == run.cut == 2


def test_a_chain_of_too_many_logs_keeps_no_notes(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_rest(lives, 20)
    sizes = [len(body) for key, body in lives.store.objects.items() if "/lifecycle/" in key]
    # Twice, because Arrow stores the header twice.
    assert max(sizes) - min(sizes) <= 20 * 100
    before = newest_record(lives.root)
    assert before is not None and all(log.at_rest for log in before.logs.values())
    monkeypatch.setattr(cycles, "_MOST_NOTED", 19)
    lives.write("s00")
    lives.process().run_all()
    after = newest_record(lives.root)
    assert after is not None and not any(log.at_rest for log in after.logs.values())


def test_a_run_of_one_log_after_a_run_of_all_finds_its_new_rows(lives: Lives) -> None:
    lives.write("a")
    process = lives.process(name="a")
    process.run_all()
    process.run_all()
    lives.write("a")
    assert process.run_once().compacted is not None
    assert lives.rows == lives.written


def test_many_new_commits_of_a_writer_with_one_in_flight_cost_one_get(lives: Lives) -> None:
    lives.write("a")
    process = lives.process()
    process.run_all()
    lives.write("a", 10)
    lives.requests()
    made = list[int]()
    lives.table.before = lambda step: made.append(lives.store.counts["GET"])
    process.run_all()
    assert lives.rows == lives.written
    # The chain, the newest record, the free slot, and the first new record for the policy.
    assert made[0] <= 4


def test_a_new_commit_of_a_long_log_is_read_without_a_look_back(lives: Lives) -> None:
    wal = Appender(
        lives.root.sequencer("a"),
        SCHEMA,
        producer_id="p",
        clock=lives.timed.clock,
        maxInFlightRequests=50,
    )
    process = lives.process()
    with wal:
        for value in range(60):
            wal.append([{"v": value}]).result()
        process.run_all()
        for commits in (1, 2, 16, 17):
            values = [*range(len(lives.table.rows), len(lives.table.rows) + commits)]
            for value in values:
                wal.append([{"v": value}]).result()
            lives.requests()
            made = list[int]()
            lives.table.before = lambda step: made.append(lives.store.counts["GET"])  # noqa: B023
            assert set(compacted(process.run_all())) == {"a"}
            assert lives.rows == [*range(values[-1] + 1)]
            # Before the table is asked: the chain, the new records, the free slot, and the first
            # new record for the policy.
            assert made[0] <= commits + 3 or commits == 17
    # Its next leader makes records that count no more dead, as a look finds them.
    lives.write("a")
    process.run_all()
    head = known_head(process, "a")
    found = find_head(lives.root.sequencer("a"))
    assert head is not None and (head.position, head.live) == (found.position, found.live)


def test_single_runs_and_runs_of_all_share_a_table(lives: Lives) -> None:
    for name in ("a", "b"):
        lives.write(name)
    for name in ("a", "b"):
        log = lives.root.sequencer(name)
        process = Coordinator(log, AT_ONCE, table=lives.table, host="here")
        assert process.run_once().compacted is not None
    lives.write("a")
    lives.write("c")
    assert compacted(lives.process().run_all()) == {"a": 3, "c": 3}
    assert lives.rows == lives.written and lives.table.ranges == [1, 2, 3]


def test_a_log_of_the_path_cannot_fill_the_table_in_another_way(lives: Lives) -> None:
    lives.write("a")
    lives.process().run_all()
    lives.write("b")
    other = replace(TARGET, mode=MERGE, keys=("v",))
    process = Coordinator(
        lives.root.sequencer("b"), AT_ONCE, table=ModelTable(lives.root, other), host="here"
    )
    with pytest.raises(PlanError, match="fixed its target"):
        process.run_once()


@pytest.mark.parametrize("answered", [True, False])
def test_a_kill_at_every_store_call_is_survived(answered: bool) -> None:
    for calls in range(1, 400):
        lives = Lives()
        for name in ("a", "b"):
            lives.write(name)
        lives.process().run_all()
        for name in ("b", "c"):
            lives.write(name, 2)
        store = Mortal(lives.store, calls, answered)
        try:
            lives.process(store).run_all()
        except Died:
            pass
        else:
            assert calls > 10
            return
        lives.write("a")
        lives.process().run_all()
        lives.write("c")
        lives.process().run_all()
        assert lives.rows == lives.written, calls
        ranges = lives.table.ranges
        assert ranges == [*range(1, len(ranges) + 1)]
    pytest.fail("it never ended")


@pytest.mark.parametrize("step", ["prepare", "look", "write", "written"])
def test_a_kill_at_every_call_of_the_table_is_survived(lives: Lives, step: str) -> None:
    for nth in range(4):
        for name in "abc":
            lives.write(name)
        with dying_at(lives.table, step, nth), suppress(Died):
            lives.process().run_all()
        lives.write("b")
        # A run of one log finishes the range of all.
        log = lives.root.sequencer("c")
        Coordinator(log, AT_ONCE, table=lives.table, host="here").run_once()
        lives.process().run_all()
        assert lives.rows == lives.written


def test_a_damaged_log_stops_no_other(lives: Lives) -> None:
    for name in "abc":
        lives.write(name)
    log = lives.root.sequencer("b")
    for number in (keys.MAX, keys.MAX - 1000):
        key = log.key(number)
        body = bytearray(lives.store.objects[key])
        body[60] ^= 255
        lives.store.delete(key)
        lives.store.put_if_absent(key, bytes(body))
    results = lives.process().run_all()
    assert isinstance(results["b"], InvalidLogError)
    assert compacted(results) == {"a": 1, "c": 1}
    assert lives.rows == [0, 2]


def test_a_compacted_log_whose_records_are_all_cut_off_is_named(lives: Lives) -> None:
    for name in "ab":
        lives.write(name)
    process = lives.process()
    process.run_all()
    lives.write("b")
    prefix = lives.root.sequencer("b").key(keys.MAX).rpartition("/")[0]
    for key in [key for key in lives.store.objects if key.startswith(prefix)]:
        lives.store.put(key, b"")
    lives.write("a")
    for run in (process, lives.process()):
        error = run.run_all()["b"]
        assert isinstance(error, InvalidLogError) and "restore the object" in str(error)
    assert lives.rows == [0, 1, 3]


def damage(lives: Lives, name: str, position: int) -> bytes:
    """Flip a bit of the rows of a record, and return the sound record."""
    key = lives.root.sequencer(name).key(keys.slot(position, 1000))
    sound = lives.store.objects[key]
    body = bytearray(sound)
    at = sound.rindex((len(lives.written) - 1).to_bytes(8, "little"))
    body[at] ^= 64
    lives.store.put(key, bytes(body))
    return sound


@pytest.mark.proves("burned-has-no-rows", "unreadable-marked", "marked-read-first")
def test_a_log_whose_rows_are_damaged_stops_no_other(lives: Lives) -> None:
    for name in "acb":
        lives.write(name)
    sound = damage(lives, "b", 1)
    process = lives.process()
    results = process.run_all()
    assert isinstance(results["b"], SparkWalError)
    # Range 1 was given up, and range 2 has the others.
    assert compacted(results) == {"a": 2, "c": 2}
    assert lives.rows == [0, 1]
    chain = kinds_of_chain(lives)
    assert chain[:4] == ["intent", "burned", "intent", "done"]
    # Each process leaves the log out as long as it is damaged, also beside new rows.
    lives.write("a")
    results = lives.process().run_all()
    assert isinstance(results["b"], SparkWalError) and compacted(results) == {"a": 3}
    log = lives.root.sequencer("b")
    with pytest.raises(SparkWalError):
        alone = Coordinator(log, AT_ONCE, table=lives.table, host="here")
        alone.run_once()
    assert kinds_of_chain(lives).count("burned") == 1
    assert unreadable(lives) == {"b": 1}
    lives.store.put(log.key(keys.slot(1, 1000)), sound)
    assert compacted(lives.process().run_all()) == {"b": 4}
    assert lives.rows == lives.written
    assert unreadable(lives) == {}


def unreadable(lives: Lives) -> dict[str, int]:
    """The logs that the chain marks as unreadable, with the range that was given up for each."""
    chain = newest_record(lives.root)
    assert chain is not None
    return {name: log.unreadable for name, log in chain.logs.items() if log.unreadable}


def test_a_run_of_one_log_gives_up_a_range_that_another_damaged_log_holds_open(
    lives: Lives,
) -> None:
    for name in "ab":
        lives.write(name)
    with dying_at(lives.table, "write"), pytest.raises(Died):
        lives.process().run_all()
    damage(lives, "b", 1)
    process = Coordinator(lives.root.sequencer("a"), AT_ONCE, table=lives.table, host="here")
    run = process.run_once()
    assert run.compacted is not None and lives.rows == [0]


@pytest.mark.proves("burn-in-table")
@pytest.mark.parametrize("step", ["burn", "burned"])
def test_a_kill_while_a_range_is_given_up_is_survived(lives: Lives, step: str) -> None:
    for name in "ab":
        lives.write(name)
    damage(lives, "b", 1)
    with dying_at(lives.table, step), pytest.raises(Died):
        lives.process().run_all()
    results = lives.process().run_all()
    assert isinstance(results["b"], SparkWalError)
    assert lives.rows == [0]
    assert unreadable(lives) == {"b": 1 if step == "burned" else lives.table.ranges[-2]}


def test_a_slow_writer_of_a_range_that_is_given_up_changes_nothing(lives: Lives) -> None:
    for name in "ab":
        lives.write(name)
    sound = damage(lives, "b", 1)
    log = lives.root.sequencer("b")

    def repaired_elsewhere(step: str) -> None:
        if step == "burned":
            lives.table.before = lambda step: None
            # A writer that has read the sound record writes the burned range.
            lives.store.put(log.key(keys.slot(1, 1000)), sound)
            state = newest(log)
            assert state is not None and state.is_open
            lives.table.write(state.promise)

    lives.table.before = repaired_elsewhere
    lives.process().run_all()
    lives.process().run_all()
    assert lives.rows == lives.written


def kinds_of_chain(lives: Lives) -> list[str]:
    """The kinds of the records of the chain, oldest first."""
    chain = newest_record(lives.root)
    assert chain is not None
    numbers = range(keys.MAX, chain.number - 1, -1)
    records = (record_at(lives.root, number) for number in numbers)
    return [record.kind for record in records if record]


def test_a_consumer_holds_only_its_log_and_one_of_all_each_unseen_log(lives: Lives) -> None:
    for name in "abc":
        lives.write(name, 3)
    heads = {name: find_head(lives.root.sequencer(name)) for name in "abc"}
    ids = {name: head.live.header.log_id for name, head in heads.items() if head.live}
    publish(lives.root.sequencer("a"), consumer("r", {"a": 1}, ids["a"]))
    lives.process().run_all()
    floors = {name: newest(lives.root.sequencer(name)) for name in "abc"}
    assert {name: state.floor for name, state in floors.items() if state} == {
        "a": 1,
        "b": heads["b"].gap,
        "c": heads["c"].gap,
    }
    publish(lives.root, consumer("all", {}), is_of_all=True)
    lives.write("d")
    assert isinstance(lives.process().run_all()["d"], Run)
    new = newest(lives.root.sequencer("d"))
    assert new is not None and new.cut == 2 and new.floor == 0


@pytest.mark.parametrize("key", ["wal/sequencers/b/consumers/r", "wal/consumers/r.all"])
def test_a_damaged_consumer_stops_only_the_floors_that_it_protects(lives: Lives, key: str) -> None:
    for name in "abc":
        lives.write(name, 3)
    process = lives.process()
    process.run_all()
    before = newest_record(lives.root)
    lives.later(GRACE_MS + 1)
    for name in "abc":
        lives.write(name, 3)
    lives.store.put(key, b"?")
    results = process.run_all()
    protected = "b" if "sequencers" in key else "abc"
    for name in "abc":
        result = results[name]
        if name in protected:
            assert isinstance(result, InvalidLogError) and f"{key}: " in str(result)
        else:
            assert isinstance(result, Run) and result.collection is not None
    # All rows reached the table.
    after = newest_record(lives.root)
    assert lives.rows == lives.written and before is not None and after is not None
    for name in "abc":
        moved = after.logs[name].floor > before.logs[name].floor
        assert moved == (name not in protected)
        assert after.logs[name].cut > before.logs[name].cut
    lives.store.delete(key)
    assert all(isinstance(run, Run) for run in process.run_all().values())


def test_a_damaged_consumer_stops_a_collection_that_needs_no_floor(lives: Lives) -> None:
    for name in "ab":
        lives.write(name, 3)
    lives.process().run_all()
    lives.later(GRACE_MS + 1)
    lives.store.put("wal/sequencers/b/consumers/r", b"?")
    results = lives.process().run_all()
    assert isinstance(results["a"], Run) and results["a"].collection is not None
    assert isinstance(results["b"], InvalidLogError)


def test_consumers_of_many_logs_are_read_once_for_a_path(lives: Lives) -> None:
    names = [f"s{number:02d}" for number in range(20)]
    for name in names:
        lives.write(name)
    ids = {}
    for name in names:
        live = find_head(lives.root.sequencer(name)).live
        assert live is not None
        ids[name] = live.header.log_id
    logs = {name: LogPosition(log_id, 1) for name, log_id in ids.items()}
    publish(lives.root, consumer("all", {}, logs=logs), is_of_all=True)
    reads = Counter[str]()
    get_range = lives.store.get_range

    def counted(key: str, offset: int, length: int) -> bytes:
        reads[key] += 1
        return get_range(key, offset, length)

    lives.store.get_range = counted  # type: ignore[method-assign]
    process = lives.process(consumer_expiry_ms=10 * GRACE_MS)
    process.run_all()
    lives.later(GRACE_MS + 1)
    for run in process.run_all().values():
        assert isinstance(run, Run) and run.floor == 1
        assert run.collection is not None and run.collection.held_by == "all"
    # For the floors, and twice more: for the floors and the collection of the second run.
    assert reads["wal/consumers/all.all"] == 3


def test_collection_of_all_frees_each_log(lives: Lives) -> None:
    for name in "ab":
        lives.write(name, 3)
    process = lives.process()
    process.run_all()
    lives.later(GRACE_MS + 1)
    results = process.run_all()
    for run in results.values():
        assert isinstance(run, Run) and run.collection is not None
        assert run.collection.bound == run.floor


def test_a_collection_of_many_small_logs_costs_two_requests_a_log(lives: Lives) -> None:
    names = [f"log-{number:03d}" for number in range(60)]
    for name in names:
        lives.write(name)
    process = lives.process()
    process.run_all()
    # Objects of earlier microbatches, which no record needs.
    for name in names:
        lives.store.put(lives.root.sequencer(name).key(keys.data(0, 1000, 7)), b"left")
    lives.later(GRACE_MS + 1)
    lives.requests()
    deleting = process.run_all().values()
    made = lives.requests()
    collections = [run.collection for run in deleting if isinstance(run, Run)]
    assert all(done and (done.objects, done.erased) == (1, 0) for done in collections)
    # The LIST of a log, and its DELETE.
    assert made["DELETE"] == 60
    assert made.total() <= 2 * 60 + 15
    lives.later(GRACE_MS + 1)
    erasing = process.run_all().values()
    made = lives.requests()
    collections = [run.collection for run in erasing if isinstance(run, Run)]
    assert all(done and (done.looked, done.erased) == (2, 1) for done in collections)
    # The LIST of a log, and a GET of each record, and a PUT of the one with rows.
    assert made.total() <= 4 * 60 + 40
    # The newest object of each log has another ETag now: its head is read again, once.
    process.run_all()
    lives.requests()
    process.run_all()
    assert lives.requests().total() <= 10


def test_a_collection_of_many_logs_looks_at_the_chain_and_the_table_once(lives: Lives) -> None:
    names = [f"log{number}" for number in range(20)]
    for name in names:
        lives.write(name, 2)
    lives.process().run_all()
    lives.later(2 * GRACE_MS + 5000)
    before = newest_record(lives.root)
    lives.requests()
    results = lives.process().collect_all(names, dry_run=False)
    made = lives.requests()
    assert {*results} == {*names}
    assert all(isinstance(done, Collection) and done.erased == 2 for done in results.values())
    # Of each log: its head, three records; a LIST of its objects, of segments, of consumers.
    assert made["GET"] <= 20 * 5 + 20 and made["LIST"] <= 20 * 3 + 5
    after = newest_record(lives.root)
    assert before is not None and after is not None and after.number == before.number - 1
    assert lives.process().collect_all(["log3"], dry_run=True).keys() == {"log3"}


def test_a_damaged_log_stops_the_collection_of_no_other(lives: Lives) -> None:
    for name in ("a", "b"):
        lives.write(name, 2)
    lives.process().run_all()
    lives.later(2 * GRACE_MS + 5000)
    log = lives.root.sequencer("a")
    key = log.key(keys.slot(find_head(log).position, 1000))
    body = lives.store.objects[key]
    lives.store.put(key, body[:100] + bytes([body[100] ^ 1]) + body[101:])
    results = lives.process().collect_all(["a", "b"], dry_run=False)
    assert isinstance(results["a"], InvalidLogError)
    done = results["b"]
    assert isinstance(done, Collection) and done.erased == 2


def test_a_look_again_deletes_the_segments_of_a_deleted_log_under_short_ones(lives: Lives) -> None:
    for name in ("a", "b"):
        lives.write(name, 2)
    lives.process().run_all()
    lives.later(2 * GRACE_MS + 5000)
    segment = keys.segment_key("wal/sequencers/a", 5, 1000)
    lives.store.put(segment, b"rows of a log that was deleted")
    lives.process().collect_all(["a", "b"], dry_run=False)
    assert segment in lives.store.objects
    lives.process().collect_all(["a", "b"], dry_run=False, looks_again=True)
    assert segment not in lives.store.objects
