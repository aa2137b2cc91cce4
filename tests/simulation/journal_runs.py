"""Runs of a service with a journal, one life after another, on one disk and one log.

The process dies, power is lost, the store is away, and other writers take the log over.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Protocol

from sparkwal.errors import SparkWalError
from sparkwal.format.lifecycle_record import FLOOR
from sparkwal.journal.files import ACCEPTED, SENDER
from sparkwal.protocol.recovery import find_head
from tests.chains import beginning, newest, put_next
from tests.journal.disk import MemoryFolder
from tests.simulation import oracle
from tests.simulation.clients import WorldClock, WorldStore, world_log
from tests.simulation.data import JOURNALED
from tests.simulation.journaled import LIFE, THREAD, Ledger, Plan, journaling, service
from tests.simulation.machine import Ask, Machine, Process, Stuck
from tests.simulation.processes import appender
from tests.simulation.world import LOCAL, REMOTE, Call, Lost, Refused, State, apply, put

# The errors by which a life of the service may end without a crash.
_STORE = {"StoreUnavailableError opening", "OutcomeUnknownError opening", "TimeoutError ending"}
# A run with more steps counts as one that never ends.
_MOST = 30_000


@dataclass(frozen=True)
class Journals:
    """The contents of a run, and the probability of each fault at each step.

    Attributes:
        plan: the plan of each life, one after another.
        vary: vary threads, limits, ring and end between lives.
        kill, power: the process dies; the machine dies.
        fault: a request is refused, its reply is lost, or it arrives late.
        away: the store is away for some steps.
        rival: another writer, with its own producer, takes the log over.
        twin: another writer of the same producer takes the log over.
        disk: a sync or a rename fails.
        full: the disk is full for some steps.
        floor: the log's floor passes all its records; `kept` is the number of slots below that no
            collection deletes.
        rot: a byte of a file changes while no process runs. Between that and a loss of power the
            journal is opened once: the two together may take accepted rows and the mark.
        gone: the mark is missing or damaged while no process runs, and so may be the end of the
            newest segment, or segments.
        other: a life begins with another log at the same path.
    """

    plan: Plan = Plan(0, 4)
    lives: int = 4
    vary: bool = False
    kill: float = 0.01
    power: float = 0.01
    fault: float = 0.05
    away: float = 0.0
    rival: float = 0.0
    twin: float = 0.0
    disk: float = 0.0
    full: float = 0.0
    floor: float = 0.0
    kept: int = 1000
    rot: float = 0.0
    gone: float = 0.0
    other: float = 0.0

    @property
    def ends(self) -> set[str]:
        """How a life may end."""
        ends = {"done"} | _STORE
        if self.rival or self.twin:
            ends |= {"FencedError", "FencedError opening", "FencedError ending"}
        if self.twin:
            # The rows of the twin occupy the journal's sequences.
            ends |= {"OptionError opening"}
        if self.disk:
            kinds = ("Write", "Sync", "Rename", "FolderSync", "Read")
            for kind in kinds:
                ends |= {f"Journal{kind}Error{how}" for how in ("", " opening", " ending")}
        if self.full:
            ends |= {"OptionError opening"}
        if self.rot or self.gone:
            ends |= {"JournalReadError", "JournalReadError ending"}
        return ends


class Choice(Protocol):
    """The choice of the next step of a run."""

    def before(self, run: Run) -> str:
        """ "" or what happens now instead: `Run.happens` has the names."""

    def pick(self, run: Run, life: Life) -> tuple[str, int]:
        """("answer", thread) or ("fire", thread)."""

    def outcome(self, run: Run, call: Call) -> str:
        """ "", or what goes wrong with this request."""


@dataclass
class Life:
    """A running process. `plan` is that of the service."""

    name: str
    machine: Machine
    plan: Plan | None = None


@dataclass
class Run:
    """One run; `trace` shows what happened, for people."""

    seed: int
    shape: Journals
    choice: Choice
    steps: int = 0
    calm: bool = False
    trace: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.disk = MemoryFolder()
        self.alive: list[Life] = []
        self.ledger = Ledger(self._where, keeps=not (self.shape.rot or self.shape.gone))
        self._state, self._verdict = State(), oracle.Verdict()
        self._births = self._life = 0
        self._last = ""
        self._away_until = self._full_until = 0

    def run(self) -> None:
        """To the end: at last all that was accepted is in the log, once and in order.

        Raises oracle.Violation with the trace.
        """
        with journaling(self.shape.kept):
            try:
                while self._life < self.shape.lives or self.alive:
                    self._step()
                self.calm = True
                self._finish()
            except (oracle.Violation, Stuck) as violation:
                reported = "\n".join(self.trace[-120:])
                raise oracle.Violation(f"seed {self.seed}: {violation}\n{reported}") from None
            finally:
                for life in self.alive:
                    life.machine.close()

    def _finish(self) -> None:
        """When the storm is over, one more life sends the rest."""
        self._away_until = self._full_until = 0
        while self._state.late:
            self._arrive()
        plan = self.shape.plan
        plan = replace(plan, appends=1, slots=99, flushes=True, patience=None)
        self._start_service(plan)
        while self.alive:
            self._step()
        missing = sorted(set(self.ledger.accepted) - set(self._values()))
        # With another appender of its producer it may stop, and keep them.
        if missing and not (self.shape.twin and self._last != "done"):
            raise oracle.Violation(f"accepted, and not in the log: {missing}")

    # Steps.

    def _step(self) -> None:
        self.steps += 1
        if self.steps > _MOST:
            raise oracle.Violation("it never ends")
        if not any(life.plan for life in self.alive) and self._life < self.shape.lives:
            self._begin_life()
            return
        if not self.calm and (what := self.choice.before(self)):
            self.happens(what)
            return
        self.disk.room = self._room()
        life = self.alive[0] if self.calm else self.rng.choice(self.alive)
        how, thread = self.choice.pick(self, life)
        if how == "fire":
            self._note(life.name, f"thread {thread} waits no longer", "")
            life.machine.fire(thread)
        else:
            self._answer(life, thread)
        self._settle(life)

    def _room(self) -> int | None:
        if self.steps >= self._full_until:
            return None
        return self.disk.room if self.disk.room is not None else self.disk.used() + 100

    def happens(self, what: str) -> None:
        """Something that no process asked for."""
        mine = next((life for life in self.alive if life.plan), None)
        if what in ("kill", "power") and mine is not None:
            self._bury(mine, "kill" if self.ledger.rotten else what)
        elif what == "away":
            self._away_until = self.steps + self.rng.choice([5, 40, 150])
            self._note("network", "the store is away", "")
        elif what == "full":
            self._full_until = self.steps + self.rng.choice([5, 40, 150])
            self._note("disk", "full", "")
        elif what in ("rival", "twin") and len(self.alive) < 3:
            name = f"{what}-{self._births}"
            producer = JOURNALED if what == "twin" else "q"
            appends = len([v for v in self._verdict if v[1] == producer]) + 2
            self._start(name, appender(name, producer, appends, 2, retries=2))
        elif what == "floor" and len(self.alive) < 3:
            self._start(f"floor-{self._births}", lifted)
        elif what == "late" and self._state.late:
            self._arrive()

    def _arrive(self) -> None:
        late = self.rng.choice(sorted(self._state.late))
        self._state, created = put(replace(self._state, late=self._state.late - {late}), *late)
        self._note("network", f"late PUT {late[0]}", "created" if created else "taken")
        self._check()

    def _answer(self, life: Life, thread: int) -> None:
        call = life.machine.calls[thread]
        how = "" if self.calm else self.choice.outcome(self, call)
        if call.operation == "disk":
            what, name, _ = call.arguments
            self._note(life.name, f"{what} {name}", how)
            if how:
                self.disk.faults[what] = [errno.EIO]
            life.machine.answer(thread, None)
            return
        after, answer = apply(self._state, call)
        if call.operation in REMOTE and life.plan and self.steps < self._away_until:
            how = "refused"
        if how == "refused":
            after, answer = self._state, Refused()
        elif how == "lost":
            answer = Lost()
        elif how == "late":
            after = replace(self._state, late=self._state.late | {call.arguments})
            answer = Lost()
        self._state = after
        shown = str(call.arguments[0])[:60] if call.arguments else ""
        self._note(life.name, f"{call.operation} {shown}", how)
        if call.operation == "put":
            self._check()
        life.machine.answer(thread, answer)

    def _settle(self, life: Life) -> None:
        """What it does on its own machine happens at once; and has it ended?"""
        calls = life.machine.calls
        while here := [thread for thread in sorted(calls) if calls[thread].operation in LOCAL]:
            self._state, answer = apply(self._state, calls[here[0]])
            life.machine.answer(here[0], answer)
        outcome = life.machine.outcome
        if outcome is None or (life.plan is None and calls):
            return
        self._note(life.name, "ends", outcome)
        if life.plan is None:
            self.alive.remove(life)
            return
        self._bury(life, "kill")
        if outcome.startswith("StoreUnavailableError opening"):
            # Without this, every later life would end in an outage too.
            self._away_until = 0
        kind = outcome.partition(":")[0]
        self.outcomes[kind] += 1
        self._last = kind
        if kind not in ({"done"} if self.calm and not self.shape.twin else self.shape.ends):
            raise oracle.Violation(f"a life of the service ended with {outcome}")

    # Lives.

    def _begin_life(self) -> None:
        if self.rng.random() < self.shape.other:
            self._with_other_log()
        if self.ledger.marked and self.rng.random() < self.shape.rot:
            self._rot()
        if self.ledger.marked and self.rng.random() < self.shape.gone:
            self._lose_files()
        plan = self.shape.plan
        if self.shape.vary:
            rng = self.rng
            plan = replace(
                plan,
                appends=rng.choice([1, plan.appends]),
                threads=rng.choice([1, 2, 4]),
                limit=rng.choice([1, 2, 4]),
                batch_size=rng.choice([1, 2**20]),
                slots=rng.choice([60 + self._life, None]),
                block=rng.random() < 0.7,
                idle=rng.choice([0, 5, 40]),
                flushes=rng.random() < 0.3,
                closes=rng.random() < 0.7,
            )
        self._life += 1
        if self.rng.random() < 0.7:
            self._full_until = 0
        self._start_service(plan)

    def _start_service(self, plan: Plan) -> None:
        self.disk.faults.clear()
        self.disk.room = self._room()
        plan = replace(plan, life=self._births)
        self._start(f"life-{self._births}", service(plan, self.disk, self.ledger), plan)

    def _start(self, name: str, process: Process, plan: Plan | None = None) -> None:
        self._births += 1
        self._note(name, "begins", "")
        life = Life(name, Machine(process, name, timed=True), plan)
        self.alive.append(life)
        self._settle(life)

    def _bury(self, life: Life, how: str) -> None:
        self.alive.remove(life)
        if life.machine.outcome is None:
            self._note(life.name, f"dies: {how}", "")
            self.outcomes[how] += 1
        for call in life.machine.calls.values():
            # Requests in flight may arrive after its death; a disk call may run in part.
            if call.operation == "put" and self.rng.random() < 0.5:
                self._state = replace(self._state, late=self._state.late | {call.arguments})
            if call.operation == "disk" and self.rng.random() < 0.5:
                self.disk.room, act = None, call.arguments[2]
                act(1.0 if self.rng.random() < 0.5 else self.rng.random())
        self.disk = self.disk.after_crash(self.rng) if how == "power" else self.disk.after_kill()
        if how == "power":
            self.ledger.power_lost()
        life.machine.close()

    def _rot(self) -> None:
        """A byte of the journal changes on the disk."""
        names = [n for n in self.disk.names() if n.endswith(".wal") and "/" not in n]
        if names:
            note = self.disk.bytes_of(SENDER) if SENDER in self.disk.names() else b"x"
            # At most one of its two copies is damaged.
            is_whole = note and note[: len(note) // 2] == note[len(note) // 2 :]
            names += [names[-1], SENDER] if is_whole else [names[-1]]
            name = self.rng.choice(names)
            data = bytearray(self.disk.bytes_of(name))
            # The log lacks the bytes that were written last.
            place = self.rng.randrange(self.rng.choice([0, len(data) - len(data) // 3]), len(data))
            # Most of the file is empty.
            if name == SENDER:
                place = self.rng.choice([0, len(data) // 2]) + place % 200
            self.ledger.rotten = True
            data[place] ^= 1 << self.rng.randrange(8)
            self.disk.put(name, bytes(data))
            self._note("disk", f"byte {place} of {name} changes", "")

    def _lose_files(self) -> None:
        """The mark is lost, and perhaps the end of the journal too."""
        rng, disk = self.rng, self.disk
        names = [n for n in disk.names() if n.endswith(".wal") and "/" not in n]
        if not names:
            return
        self.ledger.rotten = True
        what = rng.choice(["gone", "empty", "garbage"])
        if what == "gone" and ACCEPTED in disk.names():
            disk.remove(ACCEPTED)
        else:
            disk.put(ACCEPTED, b"" if what == "empty" else rng.randbytes(40))
        end = rng.choice(["is there", "is zeros", "is cut", "is gone", "and all before are gone"])
        self._note("disk", f"the mark is {what}; the end {end}", "")
        if end.endswith("gone"):
            for name in names[-1:] if end == "is gone" else names:
                disk.remove(name)
        elif end != "is there":
            data = disk.bytes_of(names[-1])
            place = rng.randrange(len(data) + 1)
            disk.put(names[-1], data[:place] + bytes(len(data) - place if end == "is zeros" else 0))

    def _with_other_log(self) -> None:
        """A life that finds another log: it takes no row of this one, and loses none."""
        state = self._state
        verdict = self._verdict
        disk = self.disk
        self._state = State()
        self._verdict, missing = (), set(self.ledger.accepted) - set(in_order(state))
        self.disk = disk.after_kill()
        calm = self.calm
        self.calm = True
        process = service(replace(self.shape.plan, appends=0), self.disk, Ledger(dict))
        machine = Machine(process, "other", timed=True)
        while machine.outcome is None:
            if machine.calls:
                thread = min(machine.calls)
                call = machine.calls[thread]
                answer = None
                if call.operation != "disk":
                    self._state, answer = apply(self._state, call)
                machine.answer(thread, answer)
            else:
                machine.fire(min(machine.sleeping))
        outcome = machine.outcome
        machine.close()
        self._note("other log", "a life with it ends", outcome)
        if outcome != "done" and not outcome.startswith("OptionError opening"):
            raise oracle.Violation(f"with another log: {outcome}")
        if outcome == "done" and (missing or self._values()):
            raise oracle.Violation(f"with another log it forgot {missing}, wrote {self._values()}")
        self.outcomes["other log"] += 1
        self._state = state
        self._verdict = verdict
        self.calm = calm
        self.disk = disk if outcome == "done" else self.disk.after_kill()

    # The oracle.

    def _check(self) -> None:
        self._verdict = oracle.check(self._verdict, self._state)
        values = self._values()
        if self.shape.twin:
            return
        if len(set(values)) < len(values):
            raise oracle.Violation(f"doubled: {values}")
        if wrong := set(values) - self.ledger.begun | set(values) & self.ledger.refused:
            raise oracle.Violation(f"in the log and not accepted, it learned: {sorted(wrong)}")
        if [value // LIFE for value in values] != sorted(value // LIFE for value in values):
            raise oracle.Violation(f"lives are out of order: {values}")
        threads: dict[int, int] = {}
        for value in values:
            if value < threads.get(value // THREAD, -1):
                raise oracle.Violation(f"out of order: {values}")
            threads[value // THREAD] = value

    def _where(self) -> dict[int, list[int]]:
        return rows_at(self._state)

    def _values(self) -> list[int]:
        return in_order(self._state)

    def _note(self, who: str, what: str, how: str) -> None:
        self.trace.append(f"{self.steps:5} {who}: {what} {how}".rstrip())


def lifted(ask: Ask) -> str:
    """The log's floor passes all that is in it."""
    log, clock = world_log(WorldStore(ask), 3), WorldClock(ask)
    try:
        head = find_head(log)
        if head.live is not None:
            log_id = head.live.header.log_id
            state = newest(log, log_id) or beginning(log_id, "default", 3_600_000)
            put_next(log, state, FLOOR, clock, "host", floor=max(state.floor, head.gap))
    except SparkWalError as error:
        return type(error).__name__
    return "done"


def rows_at(state: State) -> dict[int, list[int]]:
    """Position → what the service appended that lies there."""
    return {
        position: list(oracle.values(state.objects[oracle.slot_key(position)]))
        for position, query, _ in oracle.committed(state)
        if query == JOURNALED
    }


def in_order(state: State) -> list[int]:
    """The service's rows in the log, in order."""
    return [value for values in rows_at(state).values() for value in values]
