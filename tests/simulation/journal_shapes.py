"""Which runs of a service with a journal there are, and how it is chosen what happens in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tests.simulation.journal_runs import Journals, Life, Run
from tests.simulation.journaled import Plan
from tests.simulation.world import REMOTE, Call

# Calls of the disk that may fail.
_FAIL = ("sync", "sync_folder", "rename")


class Chance:
    """Anything, by the run's seed."""

    def before(self, run: Run) -> str:
        shape, rng = run.shape, run.rng
        if run.calm:
            return ""
        for what in ("kill", "power", "away", "full", "rival", "twin", "floor"):
            if rng.random() < getattr(shape, what):
                return what
        return "late" if rng.random() < 0.02 else ""

    def pick(self, run: Run, life: Life) -> tuple[str, int]:
        calls, sleeping = sorted(life.machine.calls), sorted(life.machine.sleeping)
        if sleeping and (not calls or (not run.calm and run.rng.random() < 0.1)):
            return "fire", run.rng.choice(sleeping)
        return "answer", run.rng.choice(calls)

    def outcome(self, run: Run, call: Call) -> str:
        rng, shape = run.rng, run.shape
        if call.operation == "disk":
            what = call.arguments[0]
            fails = what in _FAIL and rng.random() < shape.disk
            return "fails" if fails else ""
        if call.operation not in REMOTE or rng.random() >= shape.fault:
            return ""
        return rng.choice(["refused", "lost", "late"] if call.operation == "put" else ["refused"])


@dataclass
class Script:
    """The same each time, and what happens at which step.

    Attributes:
        possible: (step, what may happen there), of steps that came.
    """

    events: dict[int, str]
    possible: list[tuple[int, str]] = field(default_factory=list)

    def before(self, run: Run) -> str:
        what = self.events.get(run.steps, "")
        self.possible += [(run.steps, "kill"), (run.steps, "power")]
        return what if what in ("kill", "power") else ""

    def pick(self, run: Run, life: Life) -> tuple[str, int]:
        calls, sleeping = sorted(life.machine.calls), sorted(life.machine.sleeping)
        # By turns, so that none of its threads starves.
        if calls:
            return "answer", calls[run.steps % len(calls)]
        return "fire", sleeping[run.steps % len(sleeping)]

    def outcome(self, run: Run, call: Call) -> str:
        what = self.events.get(run.steps, "")
        wrong = ["refused"] if call.operation in REMOTE else []
        if call.operation == "put":
            wrong += ["lost", "late"]
        if call.operation == "disk" and call.arguments[0] in _FAIL:
            wrong = ["fails"]
        self.possible += [(run.steps, each) for each in wrong]
        return what if what in wrong else ""


_PLAN = Plan(0, 5)
# The runs with each fault at each step.
SCRIPT = Journals(Plan(0, 3, segment=900), lives=2, disk=1.0)


def scripted(ends: int) -> Iterator[dict[int, str]]:
    """Every way to end so many lives of the script, at one step each, and to let any one thing
    go wrong after that."""
    yield from _scripted({}, 0, ends)


def _scripted(before: dict[int, str], first: int, ends: int) -> Iterator[dict[int, str]]:
    probe = Script(before)
    Run(0, SCRIPT, probe).run()
    for step, what in sorted(probe.possible):
        if step >= first:
            if not ends:
                yield {**before, step: what}
            elif what in ("kill", "power"):
                yield from _scripted({**before, step: what}, step + 1, ends - 1)


_AT_ONCE = replace(_PLAN, appends=14, batch_size=2**20, segment=600, max_bytes=14_000, slots=14)
SHAPES = {
    "journal: the process dies": Journals(power=0.0, kill=0.015, vary=True),
    "journal: power is lost": Journals(
        replace(_PLAN, segment=700), power=0.02, kill=0.005, vary=True
    ),
    "journal: the store is away": Journals(power=0, kill=0, fault=0.1, away=0.03, vary=True),
    "journal: another writer takes the log over": Journals(
        rival=0.02, away=0.03, lives=6, vary=True
    ),
    "journal: another appender of its producer": Journals(
        twin=0.02, away=0.03, power=0, lives=6, vary=True
    ),
    "journal: the floor passes what it sent": Journals(
        floor=0.02, kill=0.02, away=0.02, lives=6, vary=True
    ),
    "journal: the floor passes what it or another sent": Journals(
        floor=0.05, kept=2, twin=0.02, kill=0.005, away=0.01, power=0, lives=6, vary=True
    ),
    "journal: the disk fails": Journals(disk=0.03, power=0.02, lives=6, vary=True),
    "journal: the disk is full": Journals(full=0.03, away=0.02, lives=6, vary=True),
    "journal: a byte of it changes": Journals(
        replace(_PLAN, segment=700), rot=0.5, away=0.03, lives=5, vary=True
    ),
    "journal: a byte of it changes, and nobody sends again": Journals(
        replace(_PLAN, segment=700, resends=False), rot=0.7, away=0.03, lives=8, vary=True
    ),
    "journal: its mark is lost": Journals(
        replace(_PLAN, segment=700), gone=0.6, away=0.03, lives=5, vary=True
    ),
    "journal: its mark is lost, and nobody sends again": Journals(
        replace(_PLAN, segment=700, resends=False), gone=0.6, away=0.03, lives=8, vary=True
    ),
    "journal: another log stands in the place of its own": Journals(other=0.5, lives=5),
    "journal: it drains": Journals(_AT_ONCE, away=0.03, power=0.02, kill=0.002),
    "journal: short lives": Journals(
        replace(_PLAN, appends=3), kill=0.03, power=0.03, fault=0, away=0.03, lives=8, vary=True
    ),
    "journal: synced now and then": Journals(replace(_PLAN, sync="interval"), vary=True),
    "journal: never synced": Journals(replace(_PLAN, sync="none"), power=0.02, vary=True),
    "journal: all of it": Journals(
        replace(_PLAN, appends=12),
        away=0.01,
        rival=0.005,
        disk=0.003,
        full=0.005,
        lives=6,
        vary=True,
    ),
}
