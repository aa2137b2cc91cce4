"""A store under test, what a check of it finds, and the verdict over all findings."""

import random
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from sparkwal.errors import OptionError, SparkWalError
from sparkwal.store.base import NotFound, Store, Transient, Upload
from sparkwal.store.config import RetryPolicy
from sparkwal.store.parallel import run_parallel
from sparkwal.store.retry import RetryingStore
from sparkwal.store.s3 import S3Store

# What a check saw, for people; None: it does not apply to this store.
Found = str | None
# A race asks for conflicts, and a store may answer several times with them.
_PATIENT = RetryPolicy(max_retry_attempts=7, base_delay_ms=20)


class Wrong(Exception):
    """The store did not do what a log needs; says what it did instead."""


def must(holds: object, wrong: str) -> None:
    """Raises Wrong."""
    if not holds:
        raise Wrong(wrong)


def content(store: Store, key: str) -> bytes | None:
    """None where nothing is."""
    try:
        return store.get(key)
    except NotFound:
        return None


@dataclass(frozen=True)
class Trial:
    """How hard a store is tried: `rounds` keys are raced for, of each kind of race, by `threads`
    each. `seed` repeats order, sizes and delays; `thorough`: also what needs a thousand objects."""

    rounds: int = 8
    threads: int = 16
    seed: int = 0
    thorough: bool = False


@dataclass
class StoreUnderTest(AbstractContextManager["StoreUnderTest"]):
    """Keys of its own, endpoints in turn, and chance from a seed. Leaving this context removes all
    objects of the trial, and says in `left` what it could not remove.

    Attributes:
        stores: its endpoints; each call is one attempt.
        repeats: they repeat their requests themselves, so a refusal may be of one's own put.
        faults: what requests of the races met, by its first words.
    """

    stores: tuple[Store, ...]
    prefix: str
    trial: Trial
    repeats: bool = False
    keys: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    uploads: list[Upload] = field(default_factory=list)
    left: str = ""

    def __post_init__(self) -> None:
        self.folder = f"{self.prefix}/proof/{uuid.uuid4().hex}/".lstrip("/")
        self.rng = random.Random(self.trial.seed)
        policy = RetryPolicy(max_retry_attempts=0) if self.repeats else _PATIENT
        self.retrying = [RetryingStore(store, policy) for store in self.stores]
        # The first endpoint, whose passing failures are retried.
        self.store = self.retrying[0]
        self.s3 = [store for store in self.stores if isinstance(store, S3Store)]
        is_folder = self.store.url.startswith("file://")
        self.root = Path(self.store.url.removeprefix("file://")) if is_folder else None

    def key(self, name: str = "object") -> str:
        """A key that nobody has used."""
        self.keys.append(f"{self.folder}{len(self.keys):04d}-{name}")
        return self.keys[-1]

    def body(self, size: int) -> bytes:
        """Bytes that no other body has."""
        return self.rng.randbytes(max(size, 16))

    def upload(self, store: Store, key: str) -> Upload:
        """It ends with the trial at the latest."""
        self.uploads.append(store.upload(key))
        return self.uploads[-1]

    def __exit__(self, *ended: object) -> None:
        for upload in self.uploads:
            with suppress(SparkWalError, Transient):
                upload.abort()
        try:
            # One by one: a store may not know how to delete many.
            while self.keys and (entries := self.store.list(self.folder).entries):
                list(run_parallel(self.store, self.store.delete, [each.key for each in entries]))
        except SparkWalError as error:
            self.left = f"objects under {self.folder} ({error})"
        if self.root is not None:
            own = self.root / self.folder
            shutil.rmtree(own, ignore_errors=True)
            for path in (own.parent, self.root / ".tmp", self.root):
                with suppress(OSError):  # another run's, or the log's, objects are in it
                    path.rmdir()


@dataclass(frozen=True)
class Check:
    """One question to a store. `ask` raises Wrong, or returns what it saw.

    Attributes:
        means: for a log where the store fails.
        fatal: such a store can hold none, else it can, within that limit.
        s3: asked of S3's protocol alone.
        ends: without it no other question makes sense.
    """

    name: str
    ask: Callable[[StoreUnderTest], Found]
    means: str = ""
    fatal: bool = True
    s3: bool = False
    ends: bool = False


@dataclass(frozen=True)
class Finding:
    """What one check found; `means` is empty where the store did as it should."""

    check: str
    outcome: Literal["ok", "wrong", "limit", "unknown"]
    found: str
    means: str = ""
    fatal: bool = True


@dataclass(frozen=True)
class Report:
    findings: tuple[Finding, ...]

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
        # What several checks mean is said once, of the first of them.
        means: dict[str, str] = {}
        for each in self.findings:
            if each.outcome in outcomes:
                means.setdefault(each.means or each.found, each.check)
        said = "; ".join(f"{check}: {meant}" for meant, check in means.items())
        return f"{self.verdict} for a log: {said or 'every check passed'}."


def prove(
    stores: Sequence[Store], prefix: str, trial: Trial, checks: Sequence[Check]
) -> Iterator[Finding]:
    """Ask these checks, in order, and remove what they wrote under `{prefix}/proof/{run}/`, also if
    interrupted. `stores` are endpoints of one; each makes one attempt for each call. Raises
    StoreUnavailableError or OptionError where the first check gets no answer."""
    with StoreUnderTest(tuple(stores), prefix, trial) as tested:
        for check in checks:
            if check.s3 and not tested.s3:
                continue
            finding = _ask(tested, check, first=check is checks[0])
            if finding is not None:
                yield finding
                if check.ends and finding.outcome != "ok":
                    break
    if tested.left:
        yield Finding("removed", "unknown", f"left behind: {tested.left}", "delete it", fatal=False)


def _ask(tested: StoreUnderTest, check: Check, *, first: bool) -> Finding | None:
    finding = partial(Finding, check.name, fatal=check.fatal)
    try:
        said = check.ask(tested)
        return None if said is None else finding("ok", said)
    except Wrong as wrong:
        return finding("wrong" if check.fatal else "limit", str(wrong), check.means)
    except (SparkWalError, Transient, NotFound) as error:
        # The store itself says that it knows no If-None-Match.
        lacks = isinstance(error, OptionError) and "conditional writes" in str(error)
        if first and not lacks:
            raise
        said = f"no object at {error}" if isinstance(error, NotFound) else str(error)
        return finding("wrong" if first else "unknown", said, check.means * first)
