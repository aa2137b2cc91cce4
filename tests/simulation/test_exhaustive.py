"""Every interleaving of small configurations of the real protocol code keeps every promise."""

from __future__ import annotations

import pytest

from tests.simulation.configurations import exhaustive

CONFIGURATIONS = exhaustive()
# These searches take more than two seconds. `tests/run.sh fast` leaves them out.
LONG = {
    "a busy appender hands over, a crash",
    "a compactor of one log finds an open range of another",
    "a consumer that passes over rows, a record now and then, a lost disk",
    "a late lifecycle record at a number that was freed",
    "a log that a backup has put back by 1",
    "a log that a backup has put back by all microbatches",
    "a lost disk or a backup, then sparkwal.checkpoint",
    "a lost disk or a backup, used as it is",
    "a producer of the archive, a leader that archives, a lost reply",
    "a record is lost of two in flight, then a sink",
    "a record is lost under an appender that waits for each",
    "a sleeper after a collector",
    "a sleeping appender after a collector",
    "an appender makes its own segments, a takeover",
    "batch writes repeat a transaction, a fault",
    "segments of a log that is recreated",
    "the record of position 2 is cut off before a reader",
    "the refused rows are restored before an open range, and accepted",
    "two compactors with tombstones, a crash",
    "two folders pass over rows, one used as it is",
    "two in flight, a sink that commits, a sink, a crash",
    "two in flight, a sink, three in flight",
    "two in flight, one that the store keeps in part, a takeover",
    "two in flight, the store keeps a part, a takeover, a maker",
    "two leaders archive, a crash and a lost reply",
    "two leaders archive, the store keeps a part",
    "two lives in one application, a crash",
    "two machines begin, a source that grows, a crash",
    "two machines, a source that archives, a crash",
    "two machines, a source that lists files",
    "two queries run in one session, a fault",
    "two queries, a straggler, a reader, a crash",
}
# The largest of their kind. No mutation needs them: each has a smaller search of the same rules.
SLOW = {
    # "a late lifecycle record at a number that was freed"
    "a late lifecycle record at a number that was freed, two runs",
    # "two in flight, one that the store keeps in part, a takeover"
    "two in flight, one that the store keeps in part, two takeovers and a stream",
    # "the tombstones are restored before a promised range, and accepted"
    "the table is restored before an open range with tombstones",
    "the tombstones are restored before an open range, and accepted",
    # "two compactors of a promised range, the store keeps a part"
    "two compactors, the store keeps a part",
}


def marks(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] * (name in SLOW) + [pytest.mark.long] * (name in LONG)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=marks(name)) for name in CONFIGURATIONS],
)
def test_no_interleaving_breaks_a_promise(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = CONFIGURATIONS[name].explore()
    with capsys.disabled():
        print(f"\n  {name}: {report.states:,} states, {report.steps:,} steps")
    # Fewer would mean that the processes ended early, and the search proved nothing.
    assert report.states > 30


def test_each_long_search_exists() -> None:
    assert CONFIGURATIONS.keys() >= LONG | SLOW
