"""A crash at every call that changes the disk: acknowledged entries survive once, in order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from sparkwal.errors import BackPressureError
from sparkwal.journal.files import LOST
from sparkwal.journal.journal import Settings
from tests.journal.disk import Crash, MemoryFolder
from tests.journal.stand import SMALL, Ids, Run, content, everything, open_journal, segments

pytestmark = pytest.mark.long

SEED = 20260


@dataclass
class World:
    """A disk, what was written to it, and what its user and the log know.

    Attributes:
        acked: the newest sequence of which a `wait` returned.
        durable: that the log has.
        hurt: the first sequence that the test damaged.
    """

    folder: MemoryFolder
    written: dict[int, bytes] = field(default_factory=dict)
    acked: int = -1
    durable: int = -1
    hurt: int | None = None
    settings: Settings = SMALL
    schema: bytes = b"schema"
    run: Run | None = None

    def copy(self) -> World:
        return replace(self, folder=self.folder.after_kill(), written=dict(self.written), run=None)

    @property
    def journal(self):  # type: ignore[no-untyped-def]
        assert self.run is not None
        return self.run.journal

    def open(self) -> None:
        from tests.journal.stand import OWNER

        self.run = open_journal(
            self.folder, self.durable, self.settings, replace(OWNER, schema=self.schema)
        )
        # It reported what is lost; that is sent again.
        self.acked, self.hurt = self.journal.last, None

    def append(self, *lengths: int) -> None:
        """By as many waiters as there are lengths; one sync is for all."""
        for length in lengths:
            sequence = self.journal.last + 1
            body = content(sequence, length)
            # Before it is: a crash in it may leave it.
            self.written[sequence] = body
            self.journal.write(body)
        self.journal.wait(self.journal.last)
        self.acked = self.journal.last

    def until_full(self, length: int) -> None:
        with pytest.raises(BackPressureError):
            while True:
                self.append(length)
        del self.written[self.journal.last + 1]

    def let_go(self, upto: int) -> None:
        """The log has it."""
        self.durable = upto
        self.journal.acknowledge(upto)

    def kill(self) -> None:
        self.folder = self.folder.after_kill()


Script = Callable[[World], None]


def appends(world: World) -> None:
    """Append entries of several sizes, one by one and by several waiters, over several segments."""
    world.open()
    world.append(0)
    world.append(1, 7, 8, 9)
    world.append(300, 300)
    world.append(500, 20, 20)
    world.append(990)
    world.append(5, 5, 5, 5, 5, 5)
    world.journal.close()


def drains(world: World) -> None:
    """The log takes some entries, so a full journal gets room."""
    world.open()
    world.append(200, 200, 200, 200)
    world.append(200, 200)
    world.let_go(4)
    world.journal.drain()
    world.until_full(100)
    world.let_go(world.run.segments.oldest.last)
    world.journal.drain()
    world.append(100)
    world.until_full(400)
    world.let_go(world.journal.last)
    world.journal.drain()
    world.append(50, 60)
    world.journal.close()


def reopens(world: World) -> None:
    """Closed and opened, another schema, more slots, smaller and larger segments."""
    world.open()
    world.append(100, 200)
    world.journal.close()
    world.open()
    world.append(50)
    world.journal.close()
    world.schema = b"another schema"
    world.open()
    world.append(80, 90)
    world.journal.close()
    world.settings = replace(SMALL, slots=2 * 64, segment_bytes=512)
    world.open()
    world.append(80, 400, 90)
    world.journal.close()
    world.settings = replace(SMALL, slots=32)
    world.open()
    world.let_go(4)
    world.append(10)
    world.journal.drain()
    world.journal.close()


def log_is_ahead(world: World) -> None:
    """The log has all of it, then more than that."""
    world.open()
    world.append(100, 200, 300, 400)
    world.journal.close()
    world.durable = 3
    world.open()
    world.append(10)
    world.let_go(4)
    world.journal.close()
    world.durable = 20
    world.acked = max(world.acked, 20)
    world.open()
    world.append(10, 20)
    world.journal.close()


def killed(world: World) -> None:
    """The process dies, the machine does not."""
    world.open()
    world.append(100, 600)
    world.kill()
    world.open()
    world.append(30)
    world.append(700)
    world.kill()
    world.durable = 1
    world.open()
    world.append(30)


def goes_on(world: World) -> None:
    """Open the journal in any state of its files."""
    world.open()
    world.append(40, 300)
    world.let_go(1)
    world.append(700)
    world.journal.drain()
    world.journal.close()


def fresh() -> World:
    return World(MemoryFolder())


def with_a_torn_tail() -> World:
    world = fresh()
    world.open()
    world.append(100, 200)
    body = world.folder.bytes_of(segments(world.folder)[-1])
    world.written[2] = content(2, 300)
    world.journal.write(world.written[2])
    whole = world.folder.bytes_of(segments(world.folder)[-1])
    del world.written[2]
    world.folder = world.folder.after_kill()
    world.folder.put(segments(world.folder)[-1], whole[: len(body) + 70] + bytes(200))
    return world


def with_damage_in_the_middle() -> World:
    world = fresh()
    world.open()
    for length in (300, 300, 300, 400, 400, 200, 700, 300):
        world.append(length)
    assert len(segments(world.folder)) >= 4
    world.journal.close()
    world.folder = world.folder.after_kill()
    # The second entry of the second segment.
    name = segments(world.folder)[1]
    broken = bytearray(world.folder.bytes_of(name))
    broken[broken.index(world.written[3]) + 20] ^= 1
    world.folder.put(name, bytes(broken))
    world.hurt = 3
    return world


SCRIPTS: list[tuple[Callable[[], World], Script]] = [
    (fresh, appends),
    (fresh, drains),
    (fresh, reopens),
    (fresh, log_is_ahead),
    (fresh, killed),
    (with_a_torn_tail, goes_on),
    (with_damage_in_the_middle, goes_on),
]


def crash_at(world: World, script: Script, call: int) -> bool:
    """Whether it came so far."""
    world.folder.crash_at = call
    try:
        script(world)
    except Crash:
        return True
    return False


def check(world: World, rng: random.Random, seen: Counter[str]) -> None:
    """After the restart of the machine: open, read, append, close, open."""
    ids = Ids()
    ids.look(world.folder)
    # The log may have more entries than the journal was told.
    durable = world.durable
    if world.hurt is None and rng.random() < 0.5:
        durable = rng.randint(durable, max(durable, world.acked))
    # It may be full: more is appended below.
    settings = replace(world.settings, slots=None, max_bytes=2 * world.settings.max_bytes)
    run = open_journal(world.folder, durable, settings)
    last = run.journal.last
    seen.update(event.name for event in run.warnings())
    entries = run.entries(durable)
    assert list(entries) == list(range(durable + 1, last + 1))
    assert entries == {sequence: world.written[sequence] for sequence in entries}
    if world.hurt is None:
        assert last >= world.acked
        assert not run.lost or run.lost.start > world.acked
        if run.lost:
            seen["false alarms"] += 1
    else:
        # The entries that the test damaged, and all later ones, are reported as lost or sent again.
        assert last >= min(world.hurt - 1, world.acked)
        if run.lost and world.acked == 7:
            assert run.lost == range(world.hurt, 8)
    if run.lost:
        assert run.lost.start == last + 1
        # By this opening, or by one that died.
        assert "quarantined" in run.names() or LOST in world.folder.names()
    ids.look(world.folder)
    # In this state it is read again, and nothing changes.
    again = open_journal(world.folder.after_kill(), durable, settings)
    assert again.warnings() == [] and again.lost == run.lost
    assert again.entries(durable) == entries
    entries[last + 1] = content(last + 1, 33)
    assert run.append(entries[last + 1]) == last + 1
    run.journal.close()
    ids.look(world.folder)
    before = everything(world.folder)
    left = world.folder.after_crash(rng)
    again = open_journal(left, durable, settings)
    assert again.warnings() == [] and list(again.lost) == list(run.lost)[1:]
    assert again.entries(durable) == entries
    again.journal.close()
    assert everything(left) == before
    ids.look(left)


def explore(
    begin: Callable[[], World], script: Script, seeds: int, nested: int, seen: Counter[str]
) -> int:
    """Crashes in all."""
    origin = begin()
    count = 0
    call = 0
    while True:
        world = origin.copy()
        if not crash_at(world, script, call):
            return count
        for number in range(seeds + 1):
            rng = random.Random(f"{SEED} {script.__name__} {call} {number}")
            state = f"{begin.__name__}, {script.__name__}: call {call}, seed {SEED} {number}"
            try:
                left = (
                    world.copy()
                    if number == seeds
                    else replace(world, folder=world.folder.after_crash(rng), run=None)
                )
                left.folder.crash_at = None
                for _ in range(nested):
                    deeper = left.copy()
                    deeper.folder.crash_at = rng.randrange(20)
                    try:
                        open_journal(deeper.folder, left.durable, replace(SMALL, slots=None))
                    except Crash:
                        left.folder = deeper.folder.after_crash(rng)
                        count += 1
                check(left, rng, seen)
            except BaseException:
                print(state)
                raise
            count += 1
        call += 1


@pytest.mark.parametrize(("begin", "script"), SCRIPTS)
def test_a_crash_at_any_call(begin: Callable[[], World], script: Script) -> None:
    seen: Counter[str] = Counter()
    count = explore(begin, script, 14, 1, seen)
    assert count > 14
    print(f"seed {SEED}: {count} crashes; {dict(seen)}")


@pytest.mark.slow
@pytest.mark.parametrize(("begin", "script"), SCRIPTS)
def test_a_crash_at_any_call_and_several_while_opening(
    begin: Callable[[], World], script: Script
) -> None:
    seen: Counter[str] = Counter()
    count = explore(begin, script, 60, 3, seen)
    assert count > 60
    print(f"seed {SEED}: {count} crashes; {dict(seen)}")
