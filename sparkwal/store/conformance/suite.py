"""A store under test, the checks of it, their findings, and the verdict over all findings."""

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
from sparkwal.store.azure import AzureStore
from sparkwal.store.base import NotFound, Store, Transient, Upload
from sparkwal.store.config import RetryPolicy
from sparkwal.store.google import GoogleStore
from sparkwal.store.parallel import run_parallel
from sparkwal.store.retry import RetryingStore
from sparkwal.store.s3 import S3Store

# The observation of a check, for people, or None if the check does not apply to this store.
Observation = str | None
# Races cause conflicts, and a store may answer several attempts with one.
_PATIENT = RetryPolicy(max_retry_attempts=7, base_delay_ms=20)


class Wrong(Exception):
    """The store did not do what a log needs. The message describes what it did."""


def must(condition: object, fault: str) -> None:
    """Check a condition.

    Raises:
        Wrong: the condition does not hold.
    """
    if not condition:
        raise Wrong(fault)


def content(store: Store, key: str) -> bytes | None:
    """The bytes of an object, or None if it does not exist."""
    try:
        return store.get(key)
    except NotFound:
        return None


@dataclass(frozen=True)
class Trial:
    """The extent of the checks.

    Attributes:
        rounds: the number of keys in each kind of race.
        threads: the number of racers for each key.
        seed: determines order, sizes and delays.
        thorough: whether to run the checks that need a thousand objects.
    """

    rounds: int = 8
    threads: int = 16
    seed: int = 0
    thorough: bool = False


@dataclass
class StoreUnderTest(AbstractContextManager["StoreUnderTest"]):
    """A store, with new keys for its checks. On exit, this context removes all their objects.

    Attributes:
        stores: the endpoints of the store. Each call makes one attempt.
        repeats: the stores repeat requests themselves, so a put may be refused because an earlier
            attempt of the same put succeeded.
        faults: the failures of requests in the races, by their first words.
        left: a description of the objects that could not be removed.
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
        # The first endpoint, with retries.
        self.store = self.retrying[0]
        self.s3 = [store for store in self.stores if isinstance(store, S3Store)]
        self.clouds = [x for x in self.stores if isinstance(x, (AzureStore, GoogleStore))]
        # Those that a server answers for.
        self.remote = [*self.s3, *self.clouds]
        is_folder = self.store.url.startswith("file://")
        self.root = Path(self.store.url.removeprefix("file://")) if is_folder else None

    def key(self, name: str = "object") -> str:
        """A new key."""
        self.keys.append(f"{self.folder}{len(self.keys):04d}-{name}")
        return self.keys[-1]

    def body(self, size: int) -> bytes:
        """New random bytes."""
        return self.rng.randbytes(max(size, 16))

    def upload(self, store: Store, key: str) -> Upload:
        """Begin an upload, which is aborted on exit if it is not completed."""
        self.uploads.append(store.upload(key))
        return self.uploads[-1]

    def __exit__(self, *ended: object) -> None:
        for upload in self.uploads:
            with suppress(SparkWalError, Transient):
                upload.abort()
        try:
            deleted: set[str] = set()
            while self.keys and (entries := self.store.list(self.folder).entries):
                keys = [entry.key for entry in entries]
                if not deleted.isdisjoint(keys):
                    self.left = f"objects under {self.folder}, which DELETE does not remove"
                    break
                # With single deletes, because a store may not support DeleteObjects.
                list(run_parallel(self.store, self.store.delete, keys))
                deleted.update(keys)
        except SparkWalError as error:
            self.left = f"objects under {self.folder} ({error})"
        if self.root is not None:
            own = self.root / self.folder
            shutil.rmtree(own, ignore_errors=True)
            for path in (own.parent, self.root / ".tmp", self.root):
                # The folder stays if it has objects of the log or of another run.
                with suppress(OSError):
                    path.rmdir()


@dataclass(frozen=True)
class Check:
    """One check of a store.

    Attributes:
        ask: returns the observation, or raises Wrong.
        means: the consequence for a log if the check fails.
        fatal: whether a store that fails can hold no log. Otherwise it can, within a limit.
        s3: whether the check applies only to stores with S3's protocol.
        cloud: whether the check applies only to stores of Azure and Google; with `s3` to all three.
        ends: whether a failure ends the trial.
    """

    name: str
    ask: Callable[[StoreUnderTest], Observation]
    means: str = ""
    fatal: bool = True
    s3: bool = False
    cloud: bool = False
    ends: bool = False

    def applies(self, tested: StoreUnderTest) -> bool:
        """Whether the check is for the kind of the store."""
        stores = [*(tested.s3 if self.s3 else ()), *(tested.clouds if self.cloud else ())]
        return bool(stores) or not (self.s3 or self.cloud)


@dataclass(frozen=True)
class Finding:
    """The result of one check. `means` is empty if the store passed."""

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
        outcomes = {finding.outcome for finding in self.findings}
        if "wrong" in outcomes:
            return "NOT FIT"
        if any(finding.outcome == "unknown" and finding.fatal for finding in self.findings):
            return "NOT PROVEN"
        return "FIT WITH LIMITS" if outcomes & {"limit", "unknown"} else "FIT"

    @property
    def fit(self) -> bool:
        return self.verdict.startswith("FIT")

    @property
    def sentence(self) -> str:
        deciding = {"NOT FIT": ("wrong",), "NOT PROVEN": ("unknown",)}
        outcomes = deciding.get(self.verdict, ("limit", "unknown"))
        # If several checks have the same consequence, name the first of them.
        means: dict[str, str] = {}
        for finding in self.findings:
            if finding.outcome in outcomes:
                means.setdefault(finding.means or finding.found, finding.check)
        reasons = "; ".join(f"{check}: {meaning}" for meaning, check in means.items())
        return f"{self.verdict} for a log: {reasons or 'every check passed'}."


def prove(
    stores: Sequence[Store], prefix: str, trial: Trial, checks: Sequence[Check]
) -> Iterator[Finding]:
    """Run checks in order, and remove their objects under `{prefix}/proof/{run}/` at the end.

    An interruption removes the objects too.

    Args:
        stores: the endpoints of one store. Each call makes one attempt.

    Raises:
        StoreUnavailableError: the store did not answer the first check.
        OptionError: the store refused the first check.
    """
    with StoreUnderTest(tuple(stores), prefix, trial) as tested:
        for check in checks:
            if not check.applies(tested):
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
        observation = check.ask(tested)
        return None if observation is None else finding("ok", observation)
    except Wrong as wrong:
        return finding("wrong" if check.fatal else "limit", str(wrong), check.means)
    except (SparkWalError, Transient, NotFound) as error:
        # This error means that the store itself rejects If-None-Match.
        lacks = isinstance(error, OptionError) and "conditional writes" in str(error)
        if first and not lacks:
            raise
        problem = f"no object at {error}" if isinstance(error, NotFound) else str(error)
        return finding("wrong" if first else "unknown", problem, check.means * first)
