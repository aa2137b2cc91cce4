"""Records that a collection must not delete lose their rows, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sparkwal.errors import CollectedError, InvalidLogError, OptionError
from sparkwal.format import arrowfile, keys
from sparkwal.format.header import CommitHeader
from sparkwal.lifecycle.collecting.erasing import erase_rows
from sparkwal.lifecycle.known_log import Collection
from sparkwal.protocol.commit_record import Carried, RecordContent, next_record
from sparkwal.protocol.erasing import without_rows
from sparkwal.protocol.leadership import Leadership
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.slots import SlotRecord, TornRecord, read_any, read_slot
from sparkwal.reading.rows import pieces_of
from sparkwal.reading.verification import verify_store
from sparkwal.store.base import LogStore, Transient
from sparkwal.store.config import RetryPolicy
from sparkwal.store.retry import RetryingStore
from sparkwal.testing.memory import MemoryStore
from tests.chains import newest
from tests.lifecycle.table import Died
from tests.lifecycle.test_coordinator import GRACE_MS, Life, Mortal

_ONCE = GRACE_MS + 5000
_TWICE = 2 * GRACE_MS + 5000


def with_rows(log: LogStore) -> list[int]:
    """The positions of the records that hold rows."""
    head = find_head(log)
    records = (read_slot(log, position, head.window) for position in range(head.gap))
    headers = [record.header for record in records if record is not None]
    return [h.position for h in headers if isinstance(h, CommitHeader) and h.inline]


@pytest.fixture
def life() -> Life:
    """A small log whose rows are in its table."""
    life = Life()
    life.write(4)
    life.process().run_once()
    return life


def collected(life: Life, store: MemoryStore | None = None, *, dry: bool = False) -> Collection:
    done = life.process(store).collect(dry_run=dry)
    assert done is not None
    return done


@pytest.mark.proves("erase-below-bound")
def test_the_rows_of_a_small_log_leave_it_after_twice_the_grace(life: Life) -> None:
    life.later(_TWICE)
    life.write(2)
    gap = find_head(life.log).gap
    done = life.process().run_once().collection
    assert done is not None and (done.objects, done.erased, done.with_rows) == (0, 4, 0)
    left = with_rows(life.log)
    assert left == [gap - 3, gap - 1]
    report = verify_store(life.log, "wal")
    assert report.ok
    life.write(1)
    life.process().run_once()
    assert life.table.rows == life.written
    assert find_head(life.log).gap == gap + 2


def test_a_record_keeps_its_rows_until_its_floor_is_twice_the_grace_old(life: Life) -> None:
    life.later(_ONCE)
    done = collected(life)
    # Leader records count too: only a GET shows what a record holds.
    assert (done.erased, done.with_rows) == (0, 8)
    assert done.held_by == "8 records that stay: their floor is younger than twice the grace"
    assert len(with_rows(life.log)) == 4
    life.later(_ONCE)
    done = collected(life)
    assert (done.erased, done.with_rows, done.held_by) == (4, 0, "")


def test_a_record_without_its_rows_has_all_else(life: Life) -> None:
    before = [read_slot(life.log, position, 1000) for position in range(8)]
    life.later(_TWICE)
    collected(life)
    for old in before:
        assert old is not None
        new = read_slot(life.log, old.header.position, 1000)
        assert new is not None
        if not isinstance(old.header, CommitHeader):
            assert new == old
            continue
        assert isinstance(new.header, CommitHeader)
        assert new.header == replace(
            old.header, inline=(), erased=old.header.inline, rows=0, bytes=0
        )
        assert new.spark_schema == old.spark_schema


def test_a_dry_run_counts_what_would_be_erased(life: Life) -> None:
    life.later(_TWICE)
    objects = dict(life.timed.store.objects)
    done = collected(life, dry=True)
    assert (done.erased, done.with_rows) == (4, 0)
    assert life.timed.store.objects == objects


def test_the_next_process_reads_no_record_again(life: Life) -> None:
    life.later(_TWICE)
    collected(life)
    state = newest(life.log)
    assert state is not None and state.without_rows == find_head(life.log).gap
    life.timed.requests()
    done = collected(life)
    assert (done.looked, done.erased, done.with_rows) == (0, 0, 0)
    assert life.timed.store.counts["PUT"] == 0
    life.write(2)
    life.process().run_once()
    life.later(_TWICE)
    done = collected(life)
    # The leader records of the new writers, and 2 commits.
    assert (done.looked, done.erased) == (4, 2)


def test_a_process_at_rest_makes_no_request_for_it(life: Life) -> None:
    process = life.process()
    process.run_once()
    life.later(_TWICE)
    done = process.run_once().collection
    assert done is not None and done.erased == 4
    life.timed.requests()
    assert process.run_once().collection is None
    assert life.timed.requests() <= 4


@pytest.mark.parametrize("answered", [True, False])
def test_a_kill_at_every_store_call_is_survived(answered: bool) -> None:
    for lives in range(1, 200):
        life = Life()
        life.write(2)
        life.process().run_once()
        life.later(_TWICE)
        life.write(1)
        try:
            life.process(Mortal(life.timed.store, lives, answered)).run_once()
        except Died:
            pass
        else:
            assert lives > 10
            return
        assert verify_store(life.log, "wal").ok
        life.process().run_once()
        life.later(_TWICE)
        life.process().run_once()
        assert with_rows(life.log) == [], lives
        assert life.table.rows == life.written
        assert verify_store(life.log, "wal").ok
    pytest.fail("it never ended")


@pytest.mark.proves("erase-if-match")
def test_two_collectors_at_once(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """One erases all between the GET and the PUT of the other."""
    life.later(_TWICE)
    store = life.timed.store
    original = store.get_tagged
    is_first = True

    def then_the_other(key: str) -> object:
        nonlocal is_first
        tagged = original(key)
        if is_first and "/batches/" in key and keys.slot(7, 1000) == int(key[-20:]):
            is_first = False
            assert collected(life).erased == 4
        return tagged

    monkeypatch.setattr(store, "get_tagged", then_the_other)
    done = collected(life)
    # Its own bytes are there: another process sent the same.
    assert (done.erased, done.with_rows) == (1, 0)
    assert with_rows(life.log) == []


def test_a_record_that_was_deleted_meanwhile_does_not_come_back(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.later(_TWICE)
    store = life.timed.store
    original = store.replace
    gone = life.log.key(keys.slot(1, 1000))

    def deleted_before(key: str, body: bytes, etag: str) -> bool:
        store.objects.pop(gone, None)
        return original(key, body, etag)

    monkeypatch.setattr(store, "replace", deleted_before)
    collected(life)
    assert gone not in store.objects


def test_a_lost_reply_is_read_back(life: Life) -> None:
    life.later(_TWICE)

    class Losing(MemoryStore):
        lost = 0

        def replace(self, key: str, body: bytes, etag: str) -> bool:
            replaced = super().replace(key, body, etag)
            if "/batches/" in key and replaced:
                self.lost += 1
                raise Transient("no reply")
            return replaced

    store = Losing("memory://losing")
    store.objects = life.timed.store.objects
    store.modified = life.timed.store.modified
    store.now_ms = life.timed.clock.now_ms
    retrying = RetryingStore(store, RetryPolicy(base_delay_ms=1), sleep=lambda _: None)
    done = life.process(retrying).collect(dry_run=False)  # type: ignore[arg-type]
    assert done is not None and (done.erased, done.with_rows, store.lost) == (4, 0, 4)


class Ignoring(MemoryStore):
    def replace(self, key: str, body: bytes, etag: str) -> bool:
        self.put(key, body)
        return True


class Lacking(MemoryStore):
    def replace(self, key: str, body: bytes, etag: str) -> bool:
        raise OptionError("the store refused the request (501 NotImplemented)")


@pytest.mark.parametrize("kind", [Ignoring, Lacking])
def test_rows_stay_in_a_store_that_lacks_the_condition(
    life: Life, kind: Callable[[str], MemoryStore]
) -> None:
    life.later(_TWICE)
    store = kind(f"memory://collected-{kind.__name__}")
    store.objects = life.timed.store.objects
    store.modified = life.timed.store.modified
    store.now_ms = life.timed.clock.now_ms
    done = collected(life, store)
    assert (done.erased, done.with_rows) == (0, 4)
    assert done.held_by.startswith("4 records that stay: ")
    assert "If-Match" in done.held_by or "501" in done.held_by
    assert len(with_rows(life.log)) == 4
    assert not [key for key in store.objects if "/proof/" in key]


@pytest.mark.proves("erased-not-empty")
def test_erased_rows_are_never_read_as_none(life: Life) -> None:
    """Not even if the lifecycle was deleted, and no floor shows that they left the log."""
    life.later(_TWICE)
    collected(life)
    for key in [key for key in life.timed.store.objects if "/lifecycle/" in key]:
        life.timed.store.delete(key)
    record = read_slot(life.log, 1, 1000)
    assert record is not None
    with pytest.raises(CollectedError, match="a collection erased the rows") as raised:
        pieces_of(life.log, record)
    assert raised.value.floor == 2
    problems = verify_store(life.log, "wal").problems
    assert len(problems) == 4 and "its rows were erased" in problems[0]


def test_the_segment_of_a_block_with_a_collected_position_is_deleted(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "BLOCK", 5)
    life.later(_TWICE)
    store = life.timed.store
    store.objects |= {keys.segment_key("wal", block, 1000): b"segment" for block in range(3)}
    life.write(8)
    # The floor of the old rows is 8: within the second block.
    assert collected(life).bound == 8
    assert [key for key in store.objects if "/segments/" in key] == [
        keys.segment_key("wal", 2, 1000)
    ]


@pytest.mark.proves("erase-this-log")
def test_a_record_of_another_log_stays(life: Life) -> None:
    log_id = newest(life.log).log_id  # type: ignore[union-attr]
    objects = dict(life.timed.store.objects)
    done = erase_rows(life.log, 1000, "another", [0, 1])
    assert done.left == (0, 1) and "it belongs to the log" in done.reason
    assert life.timed.store.objects == objects
    assert erase_rows(life.log, 1000, log_id, [0, 1]).erased == 1


def test_a_damaged_record_stays(life: Life) -> None:
    key = life.log.key(keys.slot(1, 1000))
    body = life.timed.store.objects[key]
    life.timed.store.objects[key] = body[:100] + bytes([body[100] ^ 1]) + body[101:]
    life.later(_TWICE)
    done = collected(life)
    assert (done.erased, done.with_rows) == (3, 1)
    assert "position 1" in done.held_by
    state = newest(life.log)
    assert state is not None and state.without_rows == 1


def test_a_torn_record_stays_torn_and_loses_its_rows(life: Life) -> None:
    key = life.log.key(keys.slot(3, 1000))
    record = read_slot(life.log, 3, 1000)
    assert isinstance(record, SlotRecord)
    life.timed.store.objects[key] = life.timed.store.objects[key][: record.size - 8]
    log_id = record.header.log_id
    assert erase_rows(life.log, 1000, log_id, [3]).erased == 1
    assert isinstance(read_any(life.log, 3, 1000), TornRecord)
    assert len(life.timed.store.objects[key]) == record.body
    assert erase_rows(life.log, 1000, log_id, [3]).erased == 0


def test_a_record_with_unknown_fields_stays(life: Life) -> None:
    """Those of a newer version: a head without them would lead its writers astray."""
    key = life.log.key(keys.slot(1, 1000))
    record = read_slot(life.log, 1, 1000)
    assert record is not None
    text = json.dumps({**json.loads(record.text), "newer": 1}, separators=(",", ":")).encode()
    text = text.ljust(len(record.text) + 64)
    import pyarrow as pa

    from sparkwal.format import schema
    from sparkwal.format.header import crc_hex, to_metadata

    metadata = to_metadata(text, crc_hex(text), record.spark_schema)
    sink = pa.BufferOutputStream()
    arrow = schema.to_arrow(record.spark_schema).with_metadata(metadata)
    with pa.ipc.new_file(sink, arrow) as writer:
        for batch in arrowfile.read_frames(record.inlined or b"", record.spark_schema, "it"):
            writer.write_batch(batch.replace_schema_metadata(metadata))
    with pytest.raises(InvalidLogError, match="a newer sparkwal wrote this"):
        without_rows(life.log, 1, 1000, bytes(sink.getvalue()), record.header.log_id)
    assert key in life.timed.store.objects


def test_a_record_keeps_the_checkpoint_of_its_query(life: Life) -> None:
    head = find_head(life.log)
    assert head.live is not None
    rows = read_slot(life.log, 1, 1000)
    assert rows is not None
    batches = [*arrowfile.read_frames(rows.inlined or b"", rows.spark_schema, "it")]
    header = head.live.header
    lead = Leadership(
        header.log_id,
        header.leader_id,
        "host",
        header.term,
        1000,
        began=0,
        next_position=head.gap,
        in_flight_limit=1,
        timestamp_ms=header.timestamp_ms,
        spark_schema=head.live.spark_schema,
        txns=header.txns,
        checkpoints=header.checkpoints,
        txns_archive="",
    )
    content = RecordContent("q", 0, [(0, batches)], {}, carried=Carried(b"the files", "", {}, {}))
    commit, body = next_record(lead, header.plan_id, content, 0, None, decided=head.position)
    life.timed.store.objects[life.log.key(commit.number)] = body
    assert erase_rows(life.log, 1000, header.log_id, [head.gap]).erased == 1
    record = read_slot(life.log, head.gap, 1000)
    assert record is not None
    stored = life.timed.store.objects[life.log.key(commit.number)]
    begin = arrowfile.block_offset(record.size)
    assert stored[begin : record.declared] == b"the files"


def test_a_folder_replaces_only_the_file_that_was_read(tmp_path: Path) -> None:
    from sparkwal.store.local import LocalStore

    store = LocalStore(tmp_path)
    store.put("key", b"first")
    tagged = store.get_tagged("key")
    store.put("key", b"other")
    assert not store.replace("key", b"second", tagged.etag)
    assert store.replace("key", b"second", store.get_tagged("key").etag)
    assert store.get("key") == b"second"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["key"]


def test_rows_that_a_backup_brought_back_are_erased_by_a_look_at_all_records(life: Life) -> None:
    life.later(_TWICE)
    store = life.timed.store
    key = life.log.key(keys.slot(1, 1000))
    backup = store.objects[key]
    collected(life)
    store.put(key, backup)
    assert collected(life).erased == 0 and with_rows(life.log) == [1]
    done = life.process().collect(dry_run=True, looks_again=True)
    assert done is not None and done.erased == 1
    done = life.process().collect(dry_run=False, looks_again=True)
    assert done is not None and (done.looked, done.erased, done.with_rows) == (8, 1, 0)
    assert with_rows(life.log) == []
    state = newest(life.log)
    assert state is not None and state.without_rows == find_head(life.log).gap


def test_a_log_with_a_damaged_head_is_not_taken_for_one_without_a_lifecycle(life: Life) -> None:
    key = life.log.key(keys.slot(7, 1000))
    body = life.timed.store.objects[key]
    life.timed.store.objects[key] = body[:100] + bytes([body[100] ^ 1]) + body[101:]
    with pytest.raises(InvalidLogError, match="position 7"):
        life.process().collect(dry_run=True)


def test_a_process_reads_a_record_that_keeps_its_rows_once(life: Life) -> None:
    """A damaged record, or a store without If-Match, costs no GETs in each run at rest."""
    process = life.process()
    process.run_once()
    key = life.log.key(keys.slot(1, 1000))
    body = life.timed.store.objects[key]
    life.timed.store.objects[key] = body[:100] + bytes([body[100] ^ 1]) + body[101:]
    life.later(_TWICE)
    done = process.run_once().collection
    assert done is not None and (done.erased, done.with_rows) == (3, 1)
    life.timed.requests()
    assert process.run_once().collection is None
    assert life.timed.requests() <= 4
    # It stays in the count, and in the chain.
    life.write(2)
    process.run_once()
    life.later(_TWICE)
    done = process.run_once().collection
    assert done is not None and (done.erased, done.with_rows) == (2, 1)
    assert "position 1" in done.held_by
    state = newest(life.log)
    assert state is not None and state.without_rows == 1
    life.timed.store.objects[key] = body
    assert collected(life).erased == 1
