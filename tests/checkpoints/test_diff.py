"""Two queries over the same sources are compared, and readers switch from one to the other."""

from __future__ import annotations

from typing import Any

import pytest

from sparkwal import OptionError
from sparkwal.checkpoints.diff import Stretch, side_of, stretches
from sparkwal.protocol.hint import Hints
from sparkwal.protocol.recovery import find_head
from tests.appender.faulty_store import stored
from tests.checkpoints.forks import Logs, OffsetStream, fork_of
from tests.protocol.query import Query


def compared(logs: Logs, a: str = "wal", b: str = "wal-v2") -> list[Stretch]:
    return [*stretches(side_of(logs.log(a), None), side_of(logs.log(b), None))]


def kafka(logs: Logs, prefix: str, name: str = "orders", **more: Any) -> OffsetStream:
    place = logs.checkpoint(prefix, name, fork=more.pop("fork", None))
    hints = Hints(prefix, logs.tmp / f"hints-{prefix}")
    return OffsetStream(logs.log(prefix), place, hints, **more)


def test_two_queries_agree_at_their_common_offsets(logs: Logs) -> None:
    kafka(logs, "wal").run(range(20), each=2)
    kafka(logs, "wal-v2", fork=fork_of(2)).run(range(17), each=3)
    found = compared(logs)
    assert [each.same for each in found] == [True, True]
    # 4 → 10 → 16; positions of the first log hold two offsets each, of the second three.
    assert [(each.a, each.b, each.rows_a) for each in found] == [
        ((3, 5), (1, 2), 6),
        ((6, 8), (3, 4), 6),
    ]
    assert found[-1].offsets == {"0": '{"orders": {"0": 16}}'}


def test_readers_switch_without_a_lost_or_doubled_row(logs: Logs) -> None:
    kafka(logs, "wal").run(range(20), each=2)
    kafka(logs, "wal-v2", fork=fork_of(2)).run(range(25), each=3)
    for stretch in compared(logs):
        a, b = logs.commits("wal"), logs.commits("wal-v2")
        rows = sum(commit.rows for commit in a if commit.position <= stretch.ending_position)
        later = sum(commit.rows for commit in b if commit.position >= stretch.starting_position)
        assert logs.values("wal")[:rows] + logs.values("wal-v2")[-later:] == [*range(25)]


@pytest.mark.parametrize(
    ("hidden", "rows"), [(frozenset({9}), (6, 5)), (frozenset({5, 9}), (6, 4))]
)
def test_the_stretch_that_differs(logs: Logs, hidden: frozenset[int], rows: Any) -> None:
    kafka(logs, "wal").run(range(20), each=2)
    kafka(logs, "wal-v2", fork=fork_of(2), hidden=hidden).run(range(20), each=3)
    first = compared(logs)[0]
    assert not first.same and (first.rows_a, first.rows_b) == rows


def test_files_are_compared_and_not_the_numbers_of_entries(logs: Logs) -> None:
    logs.written(24)
    place = logs.checkpoint("wal-v2", "orders-v2", fork=fork_of(7))
    logs.stream("wal-v2", place).run(range(24), each=4)
    found = compared(logs)
    assert all(each.same for each in found)
    assert [(each.a, each.b) for each in found][:2] == [((8, 11), (1, 1)), ((12, 15), (2, 2))]
    assert found[-1].ending_position == 24 and len(found) == 5


def test_queries_that_dropped_whole_microbatches_agree(logs: Logs) -> None:
    hidden = frozenset({4, 5, 6})
    kafka(logs, "wal", hidden=hidden).run(range(12))
    kafka(logs, "wal-v2", fork=fork_of(2), hidden=hidden).run(range(12), each=2)
    found = compared(logs)
    assert found and all(each.same for each in found)
    assert sum(each.rows_a for each in found) == sum(each.rows_b for each in found)


def test_queries_without_a_common_offset(logs: Logs) -> None:
    kafka(logs, "wal", topic="bills").run(range(4))
    kafka(logs, "wal-v2").run(range(4))
    # Both begin with nothing read, and agree nowhere else.
    assert compared(logs) == []


def test_the_query_must_be_named_if_there_are_several(logs: Logs) -> None:
    kafka(logs, "wal").run(range(2))
    logs.stream("wal", logs.checkpoint("wal", "files")).run(range(2))
    with pytest.raises(OptionError, match=r"'files', 'orders'; name the one"):
        side_of(logs.log("wal"), None)
    assert side_of(logs.log("wal"), "orders").query == "orders"
    with pytest.raises(OptionError, match="there is no log"):
        side_of(logs.log("none"), None)


def test_a_query_without_offsets_is_not_compared(logs: Logs) -> None:
    Query(logs.store, Hints("wal", logs.tmp / "h")).microbatch(0, (1,))
    assert find_head(logs.log()).live is not None and stored(logs.store) == [1]
    with pytest.raises(OptionError, match="holds these queries: none"):
        side_of(logs.log(), None)
