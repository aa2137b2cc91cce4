"""Seeded runs of larger configurations: many lives of queries and appenders, many faults,
clocks that jump."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from sparkwal.protocol import archive
from tests.simulation import oracle
from tests.simulation.codec import searching
from tests.simulation.configuration import archiving
from tests.simulation.machine import Machine, Process
from tests.simulation.processes import appender, driver, reader, straggler
from tests.simulation.world import LOCAL, REMOTE, Call, Lost, Refused, State, apply, put

# Slots in flight of an appender's life.
_LIMITS = (1, 2, 3, 5)


@dataclass(frozen=True)
class Shape:
    """The contents of a run, and the probability of each fault at each step.

    Attributes:
        producers: the names of as many appenders; each life has another limit in flight.
        batches: the number of microbatches of each query, and of batches of each producer.
        entries: as of `Configuration`.
    """

    queries: int = 2
    producers: int = 0
    batches: int = 6
    partitions: int = 2
    lives: int = 10
    inline: int = 0
    crash: float = 0.02
    fault: float = 0.05
    stall: float = 0.02
    clock: float = 0.05
    entries: tuple[int, int] = (archive.MOST, archive.KEPT)


@dataclass
class _Life:
    name: str
    machine: Machine
    asleep_until: int = 0


@dataclass
class Run:
    """One run of one seed; `trace` shows what happened, for people."""

    seed: int
    shape: Shape
    steps: int = 0
    trace: list[str] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._state = State()
        self._verdict: oracle.Verdict = ()
        self._alive: list[_Life] = []
        self._births = 0

    def run(self) -> None:
        """Run to the end. At last the log holds every microbatch of every query exactly once.

        Raises:
            Violation: a rule is broken. The error holds the trace.
        """
        with searching(), archiving(self.shape.entries):
            try:
                while self._births < self.shape.lives or self._alive:
                    self._step(calm=False)
                self._finish()
            except oracle.Violation as violation:
                reported = "\n".join(self.trace[-80:])
                raise oracle.Violation(f"seed {self.seed}: {violation}\n{reported}") from None

    def _finish(self) -> None:
        """When the storm is over, one more life of each query gets everything done."""
        queries = [self._query(n) for n in range(self.shape.queries)]
        producers = [f"p{n}" for n in range(self.shape.producers)]
        for name in queries + producers:
            start = self._start_driver if name in queries else self._start_appender
            start(f"last-{name}", name)
            while self._alive:
                self._step(calm=True)
        wanted = {(name, b) for name in queries + producers for b in range(self.shape.batches)}
        have = {(query, batch) for _, query, batch in self._verdict}
        if have != wanted:
            raise oracle.Violation(f"missing in the end: {sorted(wanted - have)}")

    def _step(self, *, calm: bool) -> None:
        self.steps += 1
        rng = self._rng
        if (
            not calm
            and self._births < self.shape.lives
            and (not self._alive or rng.random() < 0.02)
        ):
            self._give_birth()
        if not calm and rng.random() < self.shape.clock:
            # Hours forward, or set back.
            jump = rng.choice([1, 50, 5_000, 700_000, 9_000_000, -60_000, -9_000_000])
            self._state = replace(self._state, now_ms=max(1, self._state.now_ms + jump))
        if self._state.late and rng.random() < 0.1:
            late = rng.choice(sorted(self._state.late))
            self._state, created = put(replace(self._state, late=self._state.late - {late}), *late)
            self._note("network", f"late PUT {late[0]}", "created" if created else "taken")
            self._check()
        awake = [life for life in self._alive if life.asleep_until <= self.steps]
        if not awake:
            return
        life = rng.choice(awake)
        if not calm and rng.random() < self.shape.stall:
            life.asleep_until = self.steps + rng.choice([5, 50, 400])
            return
        if not calm and rng.random() < self.shape.crash:
            self._note(life.name, "dies", "")
            self._bury(life)
            return
        self._answer(life, calm)

    def _answer(self, life: _Life, calm: bool) -> None:
        thread = self._rng.choice(sorted(life.machine.calls))
        call = life.machine.calls[thread]
        after, answer = apply(self._state, call)
        how = ""
        if call.operation in REMOTE and not calm and self._rng.random() < self.shape.fault:
            how = self._rng.choice(
                ["refused", "lost", "late", "twice"] if call.operation == "put" else ["refused"]
            )
            if how == "refused":
                after, answer = self._state, Refused()
            elif how == "lost":
                answer = Lost()
            elif how == "twice":
                # Sent twice: the answer is that of either, and the other arrives when it may.
                after = replace(after, late=after.late | {call.arguments})
                answer = self._rng.choice([answer, False])
            else:
                after = replace(self._state, late=self._state.late | {call.arguments})
                answer = Lost()
        self._state = after
        self._note(life.name, call, how)
        if call.operation == "put":
            self._check()
        life.machine.answer(thread, answer)
        self._settle(life)

    def _settle(self, life: _Life) -> None:
        """What it does on its own machine happens at once; and has it ended?"""
        calls = life.machine.calls
        while here := [thread for thread in sorted(calls) if calls[thread].operation in LOCAL]:
            call = calls[here[0]]
            self._state, answer = apply(self._state, call)
            self._note(life.name, call, "")
            if call.operation in ("acknowledge", "deny", "promise"):
                self._check()
            life.machine.answer(here[0], answer)
        outcome = life.machine.outcome
        # Its other threads may still have requests under way.
        if outcome is None or calls:
            return
        self._alive.remove(life)
        self.outcomes.append(outcome)
        self._note(life.name, "ends", outcome)
        if outcome.startswith("read "):
            oracle.check_reading(outcome, self._verdict)

    def _check(self) -> None:
        self._verdict = oracle.check(self._verdict, self._state)

    def _give_birth(self) -> None:
        kind = self._rng.random()
        number = self._births
        if kind < 0.15:
            self._start(f"reader-{number}", reader())
        elif kind < 0.3:
            partition = self._rng.randrange(self.shape.partitions)
            self._start(f"straggler-{number}", straggler(partition, self.shape.inline))
        else:
            writers = self.shape.queries + self.shape.producers
            which = self._rng.randrange(writers)
            if which >= self.shape.queries:
                producer = f"p{which - self.shape.queries}"
                self._start_appender(f"{producer}-{number}", producer)
                return
            query = self._query(which)
            # Restarted inside its application it finds its own hint.
            leader = self._rng.choice([None, f"app-{query}"])
            self._start_driver(f"{query}-{number}", query, leader)

    def _query(self, number: int) -> str:
        return f"q{number}/{self.shape.partitions}"

    def _start_driver(self, name: str, query: str, leader_id: str | None = None) -> None:
        process = driver(
            name,
            query,
            self.shape.batches,
            leader_id=leader_id,
            retries=2,
            inline=self.shape.inline,
        )
        self._start(name, process)

    def _start_appender(self, name: str, producer: str) -> None:
        limit, looks = self._rng.choice(_LIMITS), self._rng.random() < 0.5
        process = appender(name, producer, self.shape.batches, limit, retries=2, looks=looks)
        self._start(name, process)

    def _start(self, name: str, process: Process) -> None:
        self._births += 1
        self._note(name, "begins", "")
        life = _Life(name, Machine(process))
        self._alive.append(life)
        self._settle(life)

    def _bury(self, life: _Life) -> None:
        self._alive.remove(life)
        # Requests in flight may arrive after its death.
        for call in life.machine.calls.values():
            if call.operation == "put" and self._rng.random() < 0.5:
                self._state = replace(self._state, late=self._state.late | {call.arguments})
        life.machine.close()

    def _note(self, who: str, what: Call | str, how: str) -> None:
        if isinstance(what, Call):
            shown = str(what.arguments[0])[:60] if what.arguments else ""
            self.trace.append(f"{self.steps:5} {who}: {what.operation} {shown} {how}".rstrip())
        else:
            self.trace.append(f"{self.steps:5} {who}: {what} {how}".rstrip())
