"""A suite of checks that any store can be asked. It writes small objects under
`{prefix}/proof/{run}/`, a name of its own, and removes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from sparkwal.errors import OptionError, SparkWalError
from sparkwal.store.base import NotFound, Store, Transient
from sparkwal.store.conformance import objects, races, s3
from sparkwal.store.conformance.store_under_test import Found, StoreUnderTest, Trial, Wrong

Outcome = Literal["ok", "wrong", "limit", "unknown"]


@dataclass(frozen=True)
class Check:
    """One question to a store. `ask` raises Wrong, or returns what it saw, or None where it does
    not apply. `means`: for a log where the store fails; `fatal`: such a store can hold none, else
    it can, within that limit."""

    name: str
    ask: Callable[[StoreUnderTest], Found]
    means: str
    fatal: bool = True


@dataclass(frozen=True)
class Finding:
    """What one check found; `means` is empty where the store did as it should."""

    check: str
    outcome: Outcome
    found: str
    means: str = ""
    fatal: bool = True


@dataclass(frozen=True)
class Report:
    """What all checks found; `seed` gives the same order, sizes and delays again."""

    findings: tuple[Finding, ...]
    seed: int

    @property
    def verdict(self) -> str:
        """FIT, FIT WITH LIMITS, NOT FIT or NOT PROVEN."""
        outcomes = {each.outcome for each in self.findings}
        if "wrong" in outcomes:
            return "NOT FIT"
        if any(each.outcome == "unknown" and each.fatal for each in self.findings):
            return "NOT PROVEN"
        return "FIT WITH LIMITS" if outcomes & {"limit", "unknown"} else "FIT"

    @property
    def fit(self) -> bool:
        return self.verdict.startswith("FIT")

    @property
    def sentence(self) -> str:
        deciding = {"NOT FIT": ("wrong",), "NOT PROVEN": ("unknown",)}
        outcomes = deciding.get(self.verdict, ("limit", "unknown"))
        why = [each for each in self.findings if each.outcome in outcomes]
        if not why:
            return "FIT for a log: every check passed."
        # What several checks mean is said once.
        means = {each.means or each.found: each.check for each in reversed(why)}
        said = "; ".join(f"{check}: {meant}" for meant, check in reversed(means.items()))
        return f"{self.verdict} for a log: {said}."


_OVERWRITE = "two writers overwrite each other's commits, and rows that were acknowledged are lost"
QUICK = (
    Check("put-if-absent", objects.first_put_wins, _OVERWRITE),
    Check("put-if-absent, raced", races.put_if_absent, _OVERWRITE),
    Check("a slow put and a fast one", races.slow_and_fast, _OVERWRITE),
)
CHECKS = (
    *QUICK,
    Check("endpoints", races.endpoints, "writers at different endpoints have two logs, not one"),
    Check("multipart, raced", races.multipart,
          "two writers of large records overwrite each other's commits"),
    Check("put-if-absent and a delete", races.against_delete,
          "after a collection two writers could both own a position"),
    Check("conflicts (409)", races.conflicts, "", fatal=False),
    Check("read after write", objects.read_after_write,
          "readers and a new writer miss records that were acknowledged"),
    Check("LIST order", objects.list_order, "the newest record is not found"),
    Check("LIST pages", objects.list_pages, "the newest record is not found"),
    Check("LIST after write", objects.list_after_write,
          "a new writer does not see the last commits and takes their places"),
    Check("deletes", objects.deletes, "collected objects stay, and are paid for"),
    Check("ranges", objects.ranges, "readers get other bytes than they asked for"),
    Check("age", objects.age, "collection could delete what a writer still needs"),
    Check("clock", s3.clock,
          "beyond 15 minutes S3 refuses every signed request, others sooner: set the clock",
          fatal=False),
    Check("checksums", s3.checksums,
          "a body damaged on its way is stored; the log's own CRC-32 finds it when it is read",
          fatal=False),
    Check("key characters", objects.key_characters,
          "keep to letters, digits, - and _ in paths and names", fatal=False),
    Check("big object", objects.big_object, "large records do not come back as written"),
    Check("file system", objects.file_system,
          "only a local disk, shared by the processes of one machine, may hold a log", fatal=False),
)  # fmt: skip


def prove(
    stores: Sequence[Store], prefix: str, trial: Trial, *, checks: Sequence[Check] = CHECKS,
    on_finding: Callable[[Finding], None] = lambda _: None,
) -> Report:  # fmt: skip
    """Ask all checks, in order, and remove what they wrote, also when it is interrupted. `stores`
    are endpoints of one; each makes one attempt for each call. Raises StoreUnavailableError or
    OptionError where the first check gets no answer."""
    findings: list[Finding] = []
    with StoreUnderTest(tuple(stores), prefix, trial) as tested:
        for check in checks:
            outcome, said = _ask(tested, check, first=check is checks[0])
            if said is not None:
                means = check.means if outcome in ("wrong", "limit") else ""
                findings.append(Finding(check.name, outcome, said, means, check.fatal))
                on_finding(findings[-1])
    if tested.left:
        left = f"left behind: {tested.left}"
        findings.append(Finding("removed", "unknown", left, "delete it", fatal=False))
        on_finding(findings[-1])
    return Report(tuple(findings), trial.seed)


def _ask(tested: StoreUnderTest, check: Check, *, first: bool) -> tuple[Outcome, Found]:
    try:
        return "ok", check.ask(tested)
    except Wrong as wrong:
        return "wrong" if check.fatal else "limit", str(wrong)
    except (SparkWalError, Transient, NotFound) as error:
        # The store itself says that it knows no If-None-Match.
        lacks = isinstance(error, OptionError) and "conditional writes" in str(error)
        if first and not lacks:
            raise
        said = f"no object at {error}" if isinstance(error, NotFound) else str(error)
        return "wrong" if first else "unknown", said
