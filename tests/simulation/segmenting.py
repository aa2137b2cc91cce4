"""Logs with segments: their makers, and readers that use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from sparkwal.errors import SparkWalError
from sparkwal.format import keys
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.slots import SlotRecord
from sparkwal.reading.history import walk
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.segmenting import make_segments
from tests.simulation import lifecycle_oracle, oracle
from tests.simulation.clients import WorldClock, WorldStore, world_log
from tests.simulation.codec import searching
from tests.simulation.compacting import GRACE_MS, collector, compactor, hours, others, outsider
from tests.simulation.configuration import Configuration, keeping, with_blocks
from tests.simulation.data import PREFIX
from tests.simulation.explore import Budget, died_in_flight
from tests.simulation.following import follower, rows_of_records
from tests.simulation.machine import Ask, Machine, Process
from tests.simulation.outside import undisturbed
from tests.simulation.processes import appender, driver
from tests.simulation.world import Call, State, apply, without

_OPTIONS = SourceOptions(path="/sim")
_PAST = GRACE_MS + 1
_LOG = f"{PREFIX}/batches/"
_SEGMENTS = f"{PREFIX}/segments/"
# No process writes to these folders.
_STILL = "batches", "lifecycle", "consumers"


def maker(name: str, *, every: bool = True) -> Process:
    """Makes the segments that a log lacks; it may sleep anywhere.

    Args:
        name: unique.
        every: see `make_segments`.
    """

    def run(ask: Ask) -> str:
        Machine.current.name = name
        log = world_log(WorldStore(ask, concurrency=1), 1)
        reading = LogRange(_OPTIONS, "default", log, WorldClock(ask))
        try:
            reading.refresh()
            make_segments(reading, every=every)
        except SparkWalError as error:
            return type(error).__name__
        return "done"

    return run


def exhaustive() -> dict[str, Configuration]:
    """Name → what is searched to the end. In each world that may be the last one, a reader that
    uses segments gets all rows."""
    two = {"A": maker("A"), "B": maker("B", every=False)}
    read_at_the_end = partial(
        Configuration, still=("lifecycle", "consumers"), ending=_all_read, block=2
    )
    again = outsider(Call("make_log_again"))
    return {
        "two makers and a reader of segments, a crash, a fault": read_at_the_end(
            {**two, "R": follower("R")},
            Budget(1, 1),
            begin=lambda: _written(4),
            ends={"R": "delivered StoreUnavailableError"},
            still=_STILL,
        ),
        "two makers and a reader, a segment that the store keeps in part": read_at_the_end(
            {**two, "R": follower("R")},
            Budget(crashes=1, parts=1),
            begin=lambda: _written(4),
            ends={"R": "delivered"},
            still=_STILL,
        ),
        "two in flight, a takeover, a maker": read_at_the_end(
            {"B": driver("B", "q", 3, inline=1000), "M": maker("M")},
            Budget(1, 0),
            begin=lambda: died_in_flight(appender("A", "p", 2, 2)),
        ),
        "two in flight, the store keeps a part, a takeover, a maker": read_at_the_end(
            {
                "B": driver("B", "q", 2, inline=1000),
                "M": maker("M"),
                "D": outsider(*_deletes(3)),
            },
            Budget(parts=1),
            begin=lambda: died_in_flight(appender("A", "p", 2, 2)),
            follows={"M": "B", "D": "M"},
        ),
        "an appender makes its own segments, a takeover": read_at_the_end(
            {
                "A": appender("A", "p", 5, 2, segments=True),
                "B": appender("B", "q", 0, 1),
            },
        ),
        "an appender's own segment of a former time line": read_at_the_end(
            {"B": driver("B", "r", 4, inline=1000), "M": maker("M")},
            begin=_restored_own,
        ),
        "segments of a log that is recreated": read_at_the_end(
            {
                "R": follower("R"),
                "O": others(again, driver("X", "x", 5, inline=1000), maker("A")),
                "B": maker("B"),
            },
            begin=lambda: _with_segments(_written(4)),
            ends={"R": "delivered nothing InvalidLogError AnotherLog MissingRecord"},
            deletes=True,
        ),
        "a maker sleeps while its log is recreated": read_at_the_end(
            {"A": maker("A"), "O": others(again, driver("X", "x", 5, inline=1000))},
            begin=lambda: _written(4),
            deletes=True,
        ),
        "segments are deleted under a reader": read_at_the_end(
            {"R": follower("R"), "D": outsider(*_deletes(3, 5))},
            begin=lambda: _with_segments(_written(5)),
            ends={"R": "delivered"},
            still=_STILL,
            front=64,
        ),
        "a record is lost under a reader that has a segment of it": Configuration(
            {
                "R": follower("R"),
                "Q": follower("Q"),
                "D": outsider(Call("delete", (oracle.slot_key(2),))),
            },
            begin=lambda: _with_segments(_written(5)),
            ends={"R": "delivered", "Q": "delivered"},
            still=("lifecycle", "consumers"),
            ending=_the_same_rows,
            block=2,
        ),
        "segments of a former time line, a maker": read_at_the_end(
            {"B": driver("B", "r", 4, inline=1000), "M": maker("M"), "R": follower("R")},
            begin=_restored,
            follows={"M": "B", "R": "B"},
            ends={"R": "delivered"},
        ),
        "a segment of a former time line whose last records are in the log": Configuration(
            {"B": driver("B", "r", 4, inline=1000), "M": maker("M")},
            begin=_restored_in_flight,
            still=("lifecycle", "consumers"),
            ending=_all_read,
            block=3,
        ),
        "a log ends with its block, and a record in flight is lost by a restore": Configuration(
            {"B": driver("B", "r", 4, inline=1000), "M": maker("M")},
            begin=lambda: _restored_in_flight(0),
            still=("lifecycle", "consumers"),
            ending=_all_read,
            block=3,
        ),
        "a log ends with its block, a maker, a takeover and a reader": read_at_the_end(
            {
                "A": maker("A"),
                "B": driver("B", "r", 1, inline=1000),
                "R": follower("R"),
            },
            begin=lambda: _written(3),
            ends={"R": "delivered"},
        ),
        "segments while all is collected, a stray": read_at_the_end(
            {
                "R": follower("R", 2),
                "M": maker("M"),
                "O": others(compactor("A"), hours(_PAST), collector("C")),
            },
            begin=lambda: _with_segments(_stray()),
            ends={"R": "delivered collected"},
            deletes=True,
            kept=2,
        ),
        "a maker while the log is collected, a stray leader": Configuration(
            {
                "M": maker("M"),
                "O": others(hours(_PAST), collector("C")),
            },
            begin=_compacted_in_a_block,
            ends={"M": "done CollectedError"},
            deletes=True,
            kept=1,
            ending=_all_read,
            block=4,
        ),
    }


def _all_read() -> Callable[[State], None]:
    """A check that a reader that uses segments gets all rows in the end.

    Raises:
        Violation: rows are missing, or others came.
    """
    seen: set[object] = set()

    def check(state: State) -> None:
        key = state.contents, state.now_ms
        if key in seen:
            return
        seen.add(key)
        for reader in (follower("last"), _walker()):
            outcome = _outcome(state, reader)
            if outcome.startswith("delivered "):
                lifecycle_oracle.check_delivered(outcome, state)
            elif outcome != "nothing":
                raise oracle.Violation(f"in the end a reader gets {outcome}")

    return check


def _the_same_rows() -> Callable[[State], None]:
    """A check that readers get in the end what they get of the log without a lost record.

    Raises:
        Violation: rows are missing, or others came.
    """
    readers = follower("last"), _walker()
    expected = [_outcome(_with_segments(_written(5)), reader) for reader in readers]

    def check(state: State) -> None:
        found = [_outcome(state, reader) for reader in readers]
        if found != expected:
            raise oracle.Violation(f"in the end readers get {found}, and got {expected} before")

    return check


def _walker() -> Process:
    """Reads the rows of all records that `records` of a log shows."""

    def run(ask: Ask) -> str:
        log = world_log(WorldStore(ask, concurrency=1), 1)
        reading = LogRange(_OPTIONS, "default", log, WorldClock(ask))
        try:
            reading.refresh()
            if reading.log_id is None:
                return "nothing"
            start = reading.floor.current()
            found = walk(reading, start, reading.gap, newest_first=False)
            records = (record for record in found if isinstance(record, SlotRecord))
            rows = tuple(rows_of_records(reading, records))
        except SparkWalError as error:
            return type(error).__name__
        return f"delivered {(reading.log_id, start, reading.gap, rows)!r}"

    return run


def _outcome(state: State, process: Process) -> str:
    machine = Machine(process)
    while machine.calls:
        thread, call = min(machine.calls.items())
        state, answer = apply(state, call)
        machine.answer(thread, answer)
    assert machine.outcome is not None
    return machine.outcome


def _after(state: State, *processes: Process, kept: int = 1000) -> State:
    """The world after these processes, one after the other, undisturbed."""
    with searching(), keeping(kept):
        for process in processes:
            state, _ = undisturbed(state, process)
    return replace(state, hints={}, plan=-1)


def _written(batches: int, state: State | None = None, name: str = "W") -> State:
    """A log whose first record is a leader record, and each other one has rows."""
    return _after(state or State(), driver(name, "q", batches, inline=1000))


def _with_segments(state: State, block: int = 2) -> State:
    with with_blocks(block):
        return _after(state, maker("0"))


def _deletes(*last_positions: int) -> list[Call]:
    """Deletes of the segments that end at these positions."""
    numbers = [keys.slot(position, 1000) for position in last_positions]
    return [Call("delete", (_SEGMENTS + keys.encode(number),)) for number in numbers]


def _restored() -> State:
    """A log that was put back to its first two positions, and went another way before. It left a
    segment, and another one is still on its way."""
    former = _with_segments(_written(5))
    later = [oracle.slot_key(position) for position in range(2, 7)]
    segments = sorted(item for item in former.objects.items() if item[0].startswith(_SEGMENTS))
    newest = segments[0]
    restored = without(former, *later, newest[0])
    return replace(_forgotten(restored), late=frozenset({newest}))


def _restored_in_flight(later: int = 3) -> State:
    """A log that was put back to a moment at which only the newest of three records in flight was
    there. The others arrived before, and `later` records after them; a segment may have all."""
    begun = died_in_flight(appender("A", "p", 3, 3))
    former = replace(begun, late=frozenset())
    for record in sorted(begun.late):
        former, _ = apply(former, Call("put", record))
    former = _with_segments(_written(later, former) if later else former, 3)
    # Keys count down.
    newest = min(key for key, _ in begun.late)
    lost = {key for key in former.objects if key.startswith(_LOG)} - {*begun.objects, newest}
    return _forgotten(without(former, *lost))


def _restored_own() -> State:
    """A log that was put back to a moment at which a record in flight was there, and the one before
    it was not yet. The segment that its appender made has both."""
    former = State()
    with with_blocks(2), searching():
        machine = Machine(appender("A", "p", 6, 2, segments=True))
        while machine.calls:
            # Two records are on their way whenever there are two, and the older one is answered.
            others = [t for t, call in sorted(machine.calls.items()) if not _is_slot(call)]
            thread = others[0] if others else max(machine.calls, key=lambda t: _key(machine, t))
            former, answer = apply(former, machine.calls[thread])
            machine.answer(thread, answer)
    assert any(key.startswith(_SEGMENTS) for key in former.objects)
    lost = [oracle.slot_key(position) for position in (3, 5, 6)]
    return _forgotten(without(former, *lost))


def _is_slot(call: Call) -> bool:
    return call.operation == "put" and str(call.arguments[0]).startswith(_LOG)


def _key(machine: Machine, thread: int) -> str:
    return str(machine.calls[thread].arguments[0])


def _forgotten(state: State) -> State:
    """The world without the promises of another time line."""
    return replace(
        state, acknowledged=frozenset(), denied=frozenset(), promised={}, checkpoint={}, hints={}
    )


def _stray() -> State:
    """A log, and a PUT under way of a writer that lost position 3 to it."""
    both = _written(1)
    key = oracle.slot_key(3)
    other = _after(both, driver("Z", "z", 1, inline=1000))
    ours = _written(5, both, "X")
    return replace(ours, late=frozenset({(key, other.objects[key])}))


def _compacted_in_a_block() -> State:
    """A log whose floor will be in its first block, and a PUT under way of a leader that lost
    position 1 to it: it has the term of those after the block."""
    stray = oracle.slot_key(1)
    newest = oracle.slot_key(2)
    with searching():
        machine = Machine(driver("W", "q", 4, inline=1000))
        state = State()
        while newest not in state.objects:
            state = _step(state, machine)
        alone = _forgotten(without(state, stray, newest))
        other, _ = undisturbed(alone, driver("Z", "z", 1, inline=1000))
        state, _ = undisturbed(state, compactor("0"))
        while machine.calls:
            state = _step(state, machine)
    state = _after(state, driver("V", "q", 7, inline=1000))
    floor = min(key for key in state.objects if key.startswith(f"{PREFIX}/lifecycle/"))
    late = {(stray, other.objects[stray]), (floor, state.objects[floor])}
    return replace(without(state, floor), late=frozenset(late))


def _step(state: State, machine: Machine) -> State:
    thread, call = min(machine.calls.items())
    state, answer = apply(state, call)
    machine.answer(thread, answer)
    return state
