"""Random runs of a stateful query on two machines, and what must hold in each of them."""

from __future__ import annotations

import os
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import sparkwal
from sparkwal.checkpoints import compacted, folder, query_state, unread
from sparkwal.checkpoints.forkable import carrying, not_carried
from sparkwal.errors import DivergedCheckpointError, FencedError, OptionError
from sparkwal.format import keys, schema
from sparkwal.lifecycle.collecting.erasing import erase_rows
from sparkwal.protocol import commit
from sparkwal.protocol.archive import named_records
from sparkwal.protocol.hint import Hints
from sparkwal.protocol.holds import Holds
from sparkwal.protocol.records import live_records
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.view import LogView
from sparkwal.reading.rows import pieces_of, read_pieces
from sparkwal.store.base import LogStore, NotFound
from sparkwal.testing.memory import MemoryStore
from tests.checkpoints import stateful
from tests.checkpoints import stream as streams
from tests.checkpoints.state_files import PROVIDERS, Keys
from tests.checkpoints.stateful import DEDUPLICATE, JOIN, SOURCE_LOG, StatefulStream, Store
from tests.protocol.query import Query

# The name of these runs for the mutations of rules that they must notice.
RUNS = "random runs of a stateful query"
SEEDS, ACTIONS = 12, 60
MACHINES = ("m1", "m2")
WINDOW = 1000
# Other drivers and old folders cause these, and a start after them continues.
EXPECTED = (FencedError, DivergedCheckpointError)


class CollectedStore(MemoryStore):
    """A store whose collected objects are listed, but cannot be read.

    Real collections leave the newest slots below the floor, which are more than these runs have.
    So only a rebuild cannot read them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.collected: set[str] = set()
        self.is_rebuilding = False

    def get(self, key: str) -> bytes:
        if self.is_rebuilding and key in self.collected:
            raise NotFound(key)
        return super().get(key)


@dataclass
class CheckedStream(StatefulStream):
    """A query that notices if Spark loads another state than that of its input.

    Attributes:
        released: the first position of its source that is still there.
        state_home: the folder of this machine's notes.
        is_put_back: its folder may be an old one, which sparkwal has not seen.
        drivers: those that run, by machine.
    """

    released: list[int] = field(default_factory=list)
    state_home: Path = Path()
    is_put_back: bool = False
    drivers: Mapping[str, object] = field(default_factory=dict)

    def load(self, store: Store, number: int) -> Keys:
        keys = super().load(store, number)
        expected = self.expected(store, number)
        assert keys == expected, f"{store.folder}: version {number} is {sorted(keys)}"
        return keys

    def input(self, number: int) -> list[int]:
        found = super().input(number)
        # Each entry of the source has one position.
        begin = self._offset(number - 1) + 1 if number else 0
        if found and begin < self.released[-1]:
            is_behind = self.is_put_back or number < self.last() or len(self.drivers) > 1
            assert is_behind, f"the input of microbatch {number} was collected"
            raise DivergedCheckpointError(f"the input of microbatch {number} is not there any more")
        return found

    def last(self) -> int:
        """The query's last microbatch in the log."""
        head = find_head(self.log)
        return head.live.header.txns.get(self.query_id, (-1, 0))[0] if head.live else -1

    def report(self) -> None:
        """Tell the source's log what the query has read, after each microbatch."""
        position = self._offset(folder.latest(self.place, "commits")) + 1
        held = Holds(self.state_home / "sparkwal").lowest(SOURCE_LOG, position)
        self.released.append(max(held, self.released[-1]))


@dataclass
class World:
    """The machines, the log and the files of a run.

    Attributes:
        files: the files that the query reads, are numbered up to this.
        other: the microbatches of another query.
        events: what happened, for a failure's report.
        released: the first positions of the source that were still there, in order.
        rows: the rows of each record, read before a collection could erase them.
        is_torn: the machines whose folder has lost files.
    """

    seed: int
    tmp: Path
    store: CollectedStore = field(default_factory=CollectedStore)
    files: int = 1
    other: int = 0
    drivers: dict[str, tuple[CheckedStream, Iterator[str]]] = field(default_factory=dict)
    is_torn: set[str] = field(default_factory=set)
    backups: list[Path] = field(default_factory=list)
    released: list[int] = field(default_factory=lambda: [0])
    events: list[str] = field(default_factory=list)
    rows: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        # The order of the keys in a file.
        random.seed(self.seed)
        self.provider = self.random.choice([*PROVIDERS])
        self.operators = self.random.choice([(DEDUPLICATE,), (JOIN,), (DEDUPLICATE, JOIN)])
        self.keys = self.random.choice([3, 12, 60])
        self.repeats = self.random.choice([0.0, 0.2])
        self.two = self.random.random() < 0.4
        self.empty = self.random.choice([0.0, 0.0, 0.3])
        self.events.append(f"{self.provider}, {self.operators}, {self.keys} keys")

    @property
    def log(self) -> LogStore:
        return LogStore(self.store, "wal")

    def place(self, machine: str) -> Path:
        return self.tmp / machine

    def stream(self, machine: str, place: Path) -> CheckedStream:
        return CheckedStream(
            self.log,
            place,
            Hints("wal", self.tmp / f"hints-{machine}"),
            keys=self.keys,
            provider=self.provider,
            operators=self.operators,
            random=self.random,
            repeats=self.repeats,
            released=self.released,
            drivers=self.drivers,
            state_home=self.tmp / f"home-{machine}",
        )

    def act(self) -> None:
        """One random action."""
        machine = self.random.choice(MACHINES[: 1 + self.two])
        actions = {
            self.grow: 4,
            self.move: 20,
            self.kill: 2,
            self.lose: 1,
            self.back_up: 1,
            self.restore: 1,
            self.tear: 1,
            self.write_elsewhere: 2,
            self.maintain: 4,
            self.collect: 2,
        }
        (act,) = self.random.choices([*actions], [*actions.values()])
        self.events.append(f"{machine}: {act.__name__}")
        act(machine)

    def grow(self, machine: str) -> None:
        self.files += self.random.randint(1, 4)

    def start(self, machine: str) -> None:
        """With `sparkwal.checkpoint`, or now and then with the folder as it is."""
        place = self.place(machine)
        can_be_used = folder.query_of(place) is not None and machine not in self.is_torn
        is_as_it_is = can_be_used and self.random.random() < 0.1
        if is_as_it_is:
            self.events.append(f"{machine}: starts as it is")
        else:
            place = self.rebuilt(place)
            self.is_torn.discard(machine)
            self.check_state(self.stream(machine, place))
        stream = self.stream(machine, place)
        stream.is_put_back = is_as_it_is
        most = self.random.randint(1, 3)
        moves = stream.moves(
            lambda: range(self.files), most, empty=lambda: self.random.random() < self.empty
        )
        self.drivers[machine] = (stream, moves)

    def rebuilt(self, place: Path) -> Path:
        """`sparkwal.checkpoint` for a folder."""
        self.store.is_rebuilding = True
        made = Path(sparkwal.checkpoint(self.store.path("wal"), "orders", folder=place))
        self.store.is_rebuilding = False
        return made

    def check_state(self, stream: CheckedStream) -> None:
        number = folder.latest(stream.place, "commits") + 1
        for store in stream.stores if number else ():
            stream.load(store, number)

    def move(self, machine: str) -> None:
        if machine not in self.drivers:
            self.start(machine)
        stream, moves = self.drivers[machine]
        os.environ["XDG_STATE_HOME"] = str(stream.state_home)
        count = self.random.randint(1, 12)
        try:
            for _ in range(count):
                reached = next(moves, None)
                if reached is None:
                    del self.drivers[machine]
                    break
                self.events.append(f"{machine}: {reached}")
                if reached == "noted":
                    stream.report()
        except EXPECTED as error:
            self.events.append(f"{machine}: {type(error).__name__}")
            assert self.two or self.was_put_back, str(error)
            self.kill(machine)

    @property
    def was_put_back(self) -> bool:
        return any("restore" in event for event in self.events)

    def kill(self, machine: str) -> None:
        self.drivers.pop(machine, None)

    def lose(self, machine: str) -> None:
        self.kill(machine)
        shutil.rmtree(self.place(machine), ignore_errors=True)
        shutil.rmtree(self.tmp / f"home-{machine}", ignore_errors=True)

    def tear(self, machine: str) -> None:
        """The machine loses power: what was written last is missing, empty or zero."""
        self.kill(machine)
        # Without these two nobody can tell whose folder it is.
        kept = ("metadata", "sparkwal.json")
        place = self.place(machine)
        files = [file for file in place.rglob("*") if file.is_file()]
        files = [file for file in files if str(file.relative_to(place)) not in kept]
        files.sort(key=lambda file: file.stat().st_mtime_ns)
        for file in files[-self.random.randint(1, 12) :]:
            fate = self.random.choice(["whole", "empty", "zero", "missing"])
            if fate == "empty":
                file.write_bytes(b"")
            elif fate == "zero":
                file.write_bytes(bytes(file.stat().st_size))
            elif fate == "missing":
                file.unlink()
        self.is_torn.add(machine)

    def back_up(self, machine: str) -> None:
        if self.place(machine).exists():
            copy = self.tmp / f"backup-{len(self.backups)}"
            shutil.copytree(self.place(machine), copy)
            self.backups.append(copy)

    def restore(self, machine: str) -> None:
        if self.backups:
            self.lose(machine)
            shutil.copytree(self.random.choice(self.backups), self.place(machine))

    def maintain(self, machine: str) -> None:
        if machine in self.drivers and self.place(machine).exists():
            cleans = self.random.random() < 0.5
            self.drivers[machine][0].maintain(snapshots=True, cleans=cleans)

    def maintained(self, read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        """A function of the sink, while which Spark may maintain its stores."""

        def during(data: bytes) -> Any:
            if self.random.random() < 0.02:
                for stream, _ in self.drivers.values():
                    stream.maintain()
            return read(data)

        return during

    def write_elsewhere(self, machine: str) -> None:
        """Another query writes to the same log between two runs, which it would fence."""
        if self.drivers or find_head(self.log).live is None:
            return
        self.other += 1
        hints = Hints("wal", self.tmp / f"hints-other-{self.other}")
        query = Query(self.store, hints, "other", leader_id=f"other:{self.other}:1:x")
        query.microbatch(self.other, (-self.other,))

    def collect(self, machine: str) -> None:
        """Take all records that the head does not name, and the rows of the others."""
        head = find_head(self.log)
        if head.live is None:
            return
        self.read_rows()
        named = named_records(self.log, head.live.header)
        below = range(head.position)
        self.store.collected |= {self.key(at) for at in below if at not in named}
        staying = [at for at in below if at in named]
        erase_rows(self.log, head.window, head.live.header.log_id, staying)

    def key(self, position: int) -> str:
        return self.log.key(keys.slot(position, WINDOW))

    def read_rows(self) -> None:
        """Note the rows of each record before a collection takes them."""
        self.rows |= self.rows_of(self.log, but=self.rows)

    @staticmethod
    def rows_of(log: LogStore, *, but: Collection[int] = ()) -> dict[int, list[int]]:
        """The rows of each record, but for those at these positions."""
        head = find_head(log)
        found: dict[int, list[int]] = {}
        for record in live_records(LogView(log, head.window), 0, head.gap):
            position = record.header.position
            if position not in but:
                target = schema.to_arrow(record.spark_schema)
                pieces = pieces_of(log, record)
                batches = [*read_pieces(log, pieces, target)]
                found[position] = [v for batch in batches for v in batch.column("v").to_pylist()]
        return found

    def check(self) -> None:
        """At last all files are read, on one machine after the other, which is new."""
        self.drivers.clear()
        for machine in MACHINES:
            place = self.rebuilt(self.place(machine))
            stream = self.stream(machine, place)
            self.check_state(stream)
            os.environ["XDG_STATE_HOME"] = str(stream.state_home)
            stream.run(range(self.files), 3)
            self.check_state(stream)
            self.collect(machine)
            self.files += 2
        self.files -= 2
        self.read_rows()
        found = [value for values in self.rows.values() for value in values if value >= 0]
        first: dict[int, int] = {}
        for file in range(self.files):
            first.setdefault(file % self.keys, file)
        assert sorted(found) == sorted(first.values()), f"rows {found}"
        self.lose("m1")
        self.check_state(self.stream("m1", self.rebuilt(self.place("m1"))))
        self.check_fork(first.values())

    def check_fork(self, expected: Iterable[int]) -> None:
        """A fork from a random position, which is killed now and then, reads all files after it."""
        head = find_head(self.log)
        entries = {
            entry.position: entry
            for record in live_records(LogView(self.log, WINDOW), 0, head.gap)
            for entry in record.header.checkpoints.values()
            if entry.position == record.header.position and entry.state is not None
        }
        gone = range(head.position) if self.store.collected else ()
        named = named_records(self.log, head.live.header) if head.live else ()
        kept = [p for p in entries if not carrying(entries[p]) & ({*gone} - {*named})]
        at = self.random.choice(kept)
        self.events.append(f"fork at {at} of {kept}")
        fork = sparkwal.Fork(self.store.path("wal"), "orders", at, ignore_missing_files=True)
        log = LogStore(self.store, "fork")
        place = self.tmp / "fork"
        if why := not_carried(entries[at]):
            with pytest.raises(OptionError, match=re.escape(why)):
                sparkwal.checkpoint(self.store.path("fork"), "new", folder=place, fork=fork)
            return
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(unread, "is_missing", lambda _: True)
            with suppress(OptionError):
                sparkwal.checkpoint(self.store.path("fork"), "new", folder=place, fork=fork)
                number = folder.latest(place, "offsets")
                assert not self.stream("fork", place).input(number), "a file of it is missing"
        is_done = False
        while not is_done:
            if self.random.random() < 0.3:
                shutil.rmtree(place, ignore_errors=True)
            sparkwal.checkpoint(self.store.path("fork"), "new", folder=place, fork=fork)
            stream = replace(self.stream("fork", place), log=log, released=[0])
            self.check_state(stream)
            most = self.random.randint(1, 20)
            moves = stream.moves(lambda: range(self.files), self.random.randint(1, 3))
            reached = [*islice(moves, most)]
            self.events.append(f"fork: {reached}")
            is_done = len(reached) < most
        before = [v for p, values in self.rows.items() if p <= at for v in values if v >= 0]
        after = [v for values in self.rows_of(log).values() for v in values]
        assert sorted(before + after) == sorted(expected), f"rows {before} + {after}"


def run(seed: int, tmp: Path) -> None:
    """One random run. Copies of the state begin early, and have several parts."""
    world = World(seed, tmp)
    with pytest.MonkeyPatch.context() as patch:
        # Each machine sets its own.
        patch.setenv("XDG_STATE_HOME", str(tmp / "home"))
        patch.setattr(query_state, "SMALL", 200)
        # The files of the stream are nowhere.
        patch.setattr(unread, "is_missing", lambda _: False)
        patch.setattr(query_state, "PART", world.random.choice([60, 150, 600]))
        patch.setattr(query_state, "MOST_RUNS", world.random.choice([3, 64]))
        patch.setattr(stateful, "RETAIN", world.random.choice([2, 3]))
        interval = world.random.choice([2, 3, 10])
        patch.setattr(streams, "COMPACT_EVERY", interval)
        patch.setattr(compacted, "USUAL", interval)
        patch.setattr(query_state, "json_in", world.maintained(query_state.json_in))
        patch.setattr(commit, "FORWARD", world.random.choice([2, 6, 20]))
        try:
            for _ in range(ACTIONS):
                world.act()
            world.check()
        except BaseException:
            print(f"seed {seed}", *world.events, sep="\n")
            raise


def run_many(seeds: range = range(400)) -> None:
    """Runs until one fails."""
    for seed in seeds:
        with tempfile.TemporaryDirectory() as tmp:
            run(seed, Path(tmp))
