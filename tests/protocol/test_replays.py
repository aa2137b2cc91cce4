"""A microbatch that the log has already: the same one, or another under its number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sparkwal.checkpoints.carry import StreamCheckpoint
from sparkwal.errors import DivergedCheckpointError, OptionError
from sparkwal.protocol import archive
from sparkwal.protocol.takeover import Claim, lead
from sparkwal.testing.memory import MemoryStore
from tests.protocol.query import LIMITS, SCHEMA, TTL_MS, Query, hints_in


@dataclass(frozen=True)
class Machine:
    """One machine's checkpoint of the query, and the query on it."""

    folder: Path
    query: Query

    def planned(self, batch_id: int, offset: int) -> None:
        """Write Spark's files of before microbatch `batch_id`, which ends at this offset."""
        (self.folder / "offsets").mkdir(parents=True, exist_ok=True)
        (self.folder / "metadata").write_text('{"id":"query"}')
        (self.folder / "offsets" / str(batch_id)).write_text(f'v1\n{{}}\n{{"end":{offset}}}')


def machine(store: MemoryStore, folder: Path) -> Machine:
    carrier = StreamCheckpoint(str(folder), "query", 2**20)
    query = Query(store, hints_in(folder), limits=replace(LIMITS, inline_threshold=2**16))
    return Machine(folder, replace(query, leader_id=folder.name, carrier=carrier))


def test_a_replay_with_the_same_offsets_is_skipped(store: MemoryStore, tmp_path: Path) -> None:
    one = machine(store, tmp_path / "one")
    one.planned(0, 2)
    assert one.query.microbatch(0, (1, 2)) == 1
    again = replace(one.query, leader_id="restarted")
    assert again.microbatch(0, (1, 2)) is None


def test_a_checkpoint_from_a_backup_gives_the_number_to_other_rows(
    store: MemoryStore, tmp_path: Path
) -> None:
    one = machine(store, tmp_path / "one")
    one.planned(0, 2)
    one.query.microbatch(0, (1, 2))
    one.planned(0, 3)
    with pytest.raises(DivergedCheckpointError, match="position 1 of the log holds another"):
        replace(one.query, leader_id="restarted").microbatch(0, (1, 2, 3))


def test_a_checkpoint_from_an_older_backup_is_detected_without_a_request(
    store: MemoryStore, tmp_path: Path
) -> None:
    one = machine(store, tmp_path / "one")
    for batch_id in (0, 1):
        one.planned(batch_id, batch_id)
        one.query.microbatch(batch_id, (batch_id,))
    with pytest.raises(DivergedCheckpointError, match="microbatches up to 1"):
        replace(one.query, leader_id="restarted").microbatch(0, (0,))


def test_a_checkpoint_elsewhere_is_compared_by_its_rows(store: MemoryStore, tmp_path: Path) -> None:
    one = machine(store, tmp_path / "one")
    remote = replace(one.query, carrier=StreamCheckpoint("s3a://bucket/ck", "query", 2**20))
    remote.microbatch(0, (1, 2), (3,))
    assert replace(remote, leader_id="restarted").microbatch(0, (1,), (2, 3)) is None
    with pytest.raises(DivergedCheckpointError, match="it has 4 rows now, but 3"):
        replace(remote, leader_id="again").microbatch(0, (1, 2), (3, 4))


def test_a_machine_that_slept_in_its_put_does_not_skip_rows_of_another(
    store: MemoryStore, tmp_path: Path
) -> None:
    one, two = machine(store, tmp_path / "one"), machine(store, tmp_path / "two")
    one.planned(0, 2)
    one.query.microbatch(0, (1, 2))
    one.planned(1, 3)
    two.planned(1, 9)
    put = store.put_if_absent

    def sleeping(key: str, body: bytes) -> bool:
        store.put_if_absent = put  # type: ignore[method-assign]
        two.query.microbatch(1, (3, 4, 5))
        # Collected: the sleeper's record is outside of the log.
        store.objects.pop(key)
        one.query.clock.since_boot_ms += TTL_MS
        return put(key, body)

    plan = one.query.plan()
    result = one.query.task(plan, 1, 0, 3)
    store.put_if_absent = sleeping  # type: ignore[method-assign]
    with pytest.raises(DivergedCheckpointError):
        one.query.commit([result])


def test_a_folder_on_another_file_system_of_spark_is_reported(
    store: MemoryStore, tmp_path: Path
) -> None:
    one = machine(store, tmp_path / "one")
    one.planned(0, 2)
    (one.folder / "sparkwal.json").write_text('{"log":"a","log_id":"b","name":"c"}')
    other = replace(one.query, carrier=StreamCheckpoint(str(one.folder), "other", 2**20))
    with pytest.raises(OptionError, match="file://"):
        other.microbatch(0, (1, 2))
    assert store.counts["PUT"] == 1  # its leader record


def test_two_copies_of_one_folder_do_not_double_rows(store: MemoryStore, tmp_path: Path) -> None:
    one, two = machine(store, tmp_path / "one"), machine(store, tmp_path / "two")
    for each in (one, two):
        each.planned(0, 2)
    one.query.microbatch(0, (1, 2))
    one.planned(1, 3)
    one.query.microbatch(1, ())  # a filter left none of its rows
    two.planned(1, 4)
    two.query.microbatch(1, (3, 4))
    one.planned(2, 4)
    with pytest.raises(DivergedCheckpointError, match="another offsets/1 than the one at"):
        replace(one.query, leader_id="restarted").microbatch(2, (4,))


def test_a_deleted_log_is_not_begun_again_in_the_middle(store: MemoryStore, tmp_path: Path) -> None:
    query = machine(store, tmp_path / "one").query
    claim = Claim("a", "host", "1", SCHEMA, False, None, 1, "test", "log", continues=True)
    with pytest.raises(DivergedCheckpointError, match="there is no log"):
        lead(query.open(), claim, query.clock, TTL_MS)
    began = lead(query.open(), replace(claim, continues=False), query.clock, TTL_MS)
    assert began.log_id == "log"


def test_a_query_of_the_archive_is_held_against_what_the_log_has_of_it(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = machine(store, tmp_path / "one")
    one.planned(0, 2)
    one.query.microbatch(0, (1, 2))
    monkeypatch.setattr(archive, "MOST", 2)
    monkeypatch.setattr(archive, "KEPT", 1)
    for number in range(4):
        one.query.clock.wall_ms += 1000
        other = replace(one.query.restarted(), query_id=f"q{number}", carrier=None)
        other.microbatch(0, (number,))
    one.planned(0, 3)
    one.planned(1, 4)
    with pytest.raises(DivergedCheckpointError, match="another offsets/0 than the one at"):
        replace(one.query, leader_id="restarted").microbatch(1, (4,))
