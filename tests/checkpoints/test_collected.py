"""A query whose last record is far below the log's floor: a collection leaves it there."""

from __future__ import annotations

import shutil
from dataclasses import replace

from sparkwal.format import keys
from sparkwal.protocol.hint import Hints
from sparkwal.protocol.recovery import find_head
from tests.checkpoints.conftest import Room
from tests.protocol.query import LIMITS, Query
from tests.reading.collected import collect, move_floor


def test_a_folder_is_rebuilt_from_a_record_below_the_floor(room: Room) -> None:
    place = room.checkpoint()
    room.stream(place).run(range(12))
    limits = replace(LIMITS, inline_threshold=2**20)
    query = Query(room.store, Hints("wal", room.tmp / "other"), query_id="q2", limits=limits)
    for batch_id in range(1100):
        query.microbatch(batch_id, (batch_id,))
    head = find_head(room.log)
    assert head.live is not None
    entries = head.live.header.checkpoints.values()
    kept = {each.position for each in entries}
    kept |= {position for each in entries for position, _ in each.files.values()}
    assert len(kept) > 1 and max(kept) < 30
    move_floor(room.log, head.gap)
    collect(room.log, head.gap, kept=kept)
    assert room.log.key(keys.slot(1, 1000)) not in room.store.objects
    shutil.rmtree(place)
    assert room.checkpoint() == place
    # The query continues after its twelfth microbatch, and writes no row twice.
    room.stream(place).run(range(12, 14))
    found = find_head(room.log)
    assert found.live is not None
    own = [batch for batch, _ in found.live.header.txns.values()]
    assert sorted(own) == [13, 1099]
