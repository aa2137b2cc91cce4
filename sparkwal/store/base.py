"""What the protocol asks of an object store, and the failures it can see."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from sparkwal.errors import OptionError
from sparkwal.format import keys

# Of every part of a large object but the last; S3 takes none below 5 MiB.
PART_SIZE = 8 * 2**20


@dataclass(frozen=True)
class Entry:
    """One listed object; `etag` is "" where the store shows none."""

    key: str
    size: int
    etag: str = field(default="", compare=False)


class Page(NamedTuple):
    """What one LIST shows. `more`: there may be keys after the last entry, since the store may cut
    a page short of the limit. An empty page is always complete."""

    entries: list[Entry]
    more: bool


@dataclass(frozen=True)
class Unfinished:
    """An upload that was begun and neither completed nor aborted: killed, or still running.
    `age_ms` counts by the store's clock since it began, or was last written to; never more."""

    key: str
    upload_id: str
    age_ms: int


class UnfinishedPage(NamedTuple):
    """Some unfinished uploads; `after` leads to the next page, and is "" on the last one."""

    uploads: list[Unfinished]
    after: str


class NotFound(KeyError):
    """There is no object at this key."""


class Transient(Exception):
    """A request failed in a way that another attempt may mend.

    The request may have taken effect all the same (a lost reply looks like this too), unless no
    connection could be made (`unreachable`). So a caller that retries a conditional write must read
    the object back when the retry finds the key taken. `reason` is for people and never holds a
    secret; the store asked us to wait `retry_after` seconds.
    """

    def __init__(
        self, reason: str, *, retry_after: float | None = None, unreachable: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
        self.unreachable = unreachable


class Refusal(OptionError):
    """The store refuses a caller or a request. It may do so in passing: a store that restarts
    denies access, or reports that there is no such bucket."""


class Upload(Protocol):
    """A large object written in parts; it appears whole at `complete` or never."""

    def part(self, number: int, offset: int, body: bytes) -> None:
        """Send part `number` (1, 2, …), the object's bytes from `offset` on, in any order, in the
        background; blocks while too many are on their way. Raises an earlier part's failure."""

    def complete(self) -> bool:
        """Wait for the parts and publish the object if its key is free. True: this call created it.
        False: the key is taken, perhaps by this very upload, when an earlier reply was lost."""

    def abort(self) -> None:
        """Give up and free what was stored. Never touches a published object."""


class Store(Protocol):
    """An object store with put-if-absent and ordered listing.

    Keys are relative to the store's root (a bucket, a folder) and use "/". Every method is one
    request unless it says otherwise. Raises `Transient` for what may pass and
    `StoreUnavailableError` or `OptionError` for what will not.
    """

    @property
    def url(self) -> str:
        """The store's root for people, e.g. "s3://bucket"; holds no secret."""

    @property
    def identity(self) -> str:
        """The store's root as a name: equal for every spelling of one root; holds no secret."""

    @property
    def concurrency(self) -> int:
        """How many requests may usefully run at once."""

    @property
    def retries(self) -> int:
        """How many requests were sent again; 0 of a store that makes one attempt per call."""

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Create the object atomically. True: created. False: the key is taken."""

    def put(self, key: str, body: bytes) -> None:
        """Write the object; what was there is overwritten, and whoever writes last wins."""

    def get(self, key: str) -> bytes:
        """The whole object. Raises NotFound."""

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, fewer at the object's end. Raises NotFound."""

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        """The first `limit` (≤ 1000) keys under `prefix` after `after`, in byte order, or fewer."""

    def delete(self, key: str) -> None:
        """Remove the object; one that is not there is no error."""

    def delete_many(self, keys: Sequence[str], etags: Sequence[str] = ()) -> None:
        """Remove at most 1000 objects; those that are not there are no error, nor are those that
        stay because their ETag is not the listed one, in a store that checks it. Raises for the
        first key that was not removed; others may be gone. It may be repeated."""

    def age_ms(self, key: str) -> int:
        """How old the object is by the store's own clock: never an overestimate, but that S3 dates
        an object sent in parts back to when its upload began. Raises NotFound."""

    def upload(self, key: str) -> Upload:
        """Begin an object too large for one request."""

    def unfinished(self, prefix: str, after: str = "", limit: int = 1000) -> UnfinishedPage:
        """At most `limit` (at most 1000) unfinished uploads to keys under `prefix`: one request.
        `after` is of the page before; "" for the first."""

    def discard(self, upload: Unfinished) -> None:
        """Abort it and free what was stored: its writer can not complete it. One that is not there
        any more is no error. Never touches a published object."""


def first_entries(store: Store, prefix: str, limit: int) -> Page:
    """The first `limit` (at most 1000) keys under `prefix`: one LIST, and one more for each page
    that the store cuts short, which AWS never does."""
    page = store.list(prefix, limit)
    entries = page.entries
    while page.more and len(entries) < limit:
        page = store.list(prefix, limit - len(entries), entries[-1].key)
        entries = entries + page.entries
    return Page(entries, page.more)


def all_entries(store: Store, prefix: str, after: str = "", limit: int = 1000) -> Iterator[Entry]:
    """The keys under `prefix` greater than `after`, in byte order: a LIST for each `limit` keys."""
    more = True
    while more:
        entries, more = store.list(prefix, limit, after)
        yield from entries
        after = entries[-1].key if entries else after


def numbered(
    store: Store, prefix: str, after: str = "", limit: int = 1000
) -> Iterator[tuple[int, Entry]]:
    """The objects under a prefix whose names are numbers of a log, with these; requests as
    `all_entries`."""
    for entry in all_entries(store, prefix, after, limit):
        if (number := keys.listed(entry.key.removeprefix(prefix))) is not None:
            yield number, entry


@dataclass(frozen=True)
class LogStore:
    """A log in a store; `prefix` is that of all its keys, "" for the store's root."""

    store: Store
    prefix: str

    @property
    def url(self) -> str:
        """The log for people, e.g. "s3://bucket/wal"; holds no secret."""
        return f"{self.store.url}/{self.prefix}" if self.prefix else self.store.url

    @property
    def identity(self) -> str:
        """The log as a name: equal for every spelling of one path; holds no secret."""
        return f"{self.store.identity}/{self.prefix}" if self.prefix else self.store.identity

    def sequencer(self, name: str) -> "LogStore":
        """The log of a sequencer under this one; ROOT is this one itself."""
        return LogStore(self.store, keys.sequencer_prefix(self.prefix, name))

    @property
    def root(self) -> "LogStore":
        """The log at the path that this one lies under; this one itself if it is no sequencer's."""
        prefix = keys.root_prefix(self.prefix)
        return self if prefix is None else LogStore(self.store, prefix)

    def key(self, number: int) -> str:
        return keys.key(self.prefix, number)

    def where(self, number: int, window: int | None = None) -> str:
        """A numbered object's URL for people, with its position where the log's window is known."""
        url = f"{self.store.url}/{self.key(number)}"
        return url if window is None else f"{url} (position {keys.position(number, window)})"
