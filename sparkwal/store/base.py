"""The interface of an object store, and the errors of its requests."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, TypeVar

from sparkwal import events
from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format import keys

R = TypeVar("R")

# The size of each part of a large object except the last. S3 refuses parts below 5 MiB.
PART_SIZE = 8 * 2**20
# The most keys of one DELETE, and of one LIST.
KEYS_OF_DELETE = 1000


@dataclass(frozen=True)
class Entry:
    """One listed object; `etag` is "" if the store lists none."""

    key: str
    size: int
    etag: str = field(default="", compare=False)


class Front(bytes):
    """The first bytes of an object that has `total` bytes."""

    total: int

    @classmethod
    def of(cls, body: bytes, offset: int, length: int, total: int | None = None) -> bytes:
        """The reply to a GET of `length` bytes: a Front if it begins an object of known size.

        A reply that is shorter than the requested range is the complete object.
        """
        if offset or isinstance(body, Front):
            return body
        if len(body) < length:
            total = len(body)
        return body if total is None else cls.with_total(body, total)

    @staticmethod
    def size_of(body: bytes) -> int | None:
        """The size of the object that `body` begins, if it is known."""
        return body.total if isinstance(body, Front) else None

    @classmethod
    def with_total(cls, body: bytes, total: int) -> "Front":
        front = cls(body)
        front.total = total
        return front


class Page(NamedTuple):
    """The result of one LIST.

    If `more`, keys may follow the last entry: a store may return fewer than the limit. No keys
    follow an empty page.
    """

    entries: list[Entry]
    more: bool


class Folders(NamedTuple):
    """The result of one LIST of folders.

    Attributes:
        names: the names of the folders, in the order of their keys.
        after: where the next page begins, as its store writes it, or "" if this page is the last.
    """

    names: list[str]
    after: str


@dataclass(frozen=True)
class Unfinished:
    """An upload that was neither completed nor aborted: its writer was killed, or still runs.

    `age_ms` is the time by the store's clock since the upload began, or less: a store may count
    from its last write.
    """

    key: str
    upload_id: str
    age_ms: int


class UnfinishedPage(NamedTuple):
    """Some unfinished uploads; `after` is the start of the next page, and "" on the last page."""

    uploads: list[Unfinished]
    after: str


class Tagged(NamedTuple):
    """An object, and the ETag by which `Store.replace` compares it."""

    body: bytes
    etag: str


class NotFound(KeyError):
    """No object has this key."""


class Transient(Exception):
    """A request failed, and another attempt may succeed.

    The request may have taken effect: a lost reply looks the same. So a caller that retries a
    conditional write must read the object back if the retry finds the key taken.

    Attributes:
        reason: the failure, for people, without secrets.
        retry_after: the seconds that the store asked the client to wait, if it did.
        unreachable: no connection was made, so the request took no effect.
    """

    def __init__(
        self, reason: str, *, retry_after: float | None = None, unreachable: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
        self.unreachable = unreachable


class Refusal(OptionError):
    """The store refuses a caller or a request.

    The refusal may be temporary: a store that restarts denies access, or reports that the bucket
    does not exist.
    """


class Upload(Protocol):
    """A large object that is written in parts. The object appears only with `complete`."""

    def part(self, number: int, offset: int, body: bytes) -> None:
        """Send a part in the background. Block while too many parts are in flight.

        Parts may be sent in any order. The call raises the error of an earlier part.

        Args:
            number: the part's number, from 1.
            offset: the offset of the part's first byte in the object.
        """

    def complete(self) -> bool:
        """Wait for the parts, then create the object if its key is free.

        Returns:
            True if this call created it. False if the key is taken: perhaps by this upload, if the
            reply to an earlier attempt was lost.
        """

    def abort(self) -> None:
        """Remove the stored parts. A created object stays."""


class Store(Protocol):
    """An object store with put-if-absent and ordered listing.

    Keys are relative to the store's root (a bucket, a folder) and use "/". Without another note a
    method costs one request.

    Each method raises `Transient` if another attempt may succeed, otherwise `OptionError` or
    `StoreUnavailableError`.
    """

    @property
    def url(self) -> str:
        """The store's root for people, e.g. "s3://bucket", without secrets."""

    @property
    def identity(self) -> str:
        """The store's root as a name, equal for every spelling of one root, without secrets."""

    @property
    def concurrency(self) -> int:
        """The number of requests that may usefully run at once."""

    @property
    def retries(self) -> int:
        """The number of repeated requests so far; 0 for a store that never repeats one."""

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Create the object atomically.

        Returns:
            True if this call created it, False if the key is taken.
        """

    def put(self, key: str, body: bytes) -> None:
        """Write the object, or overwrite the object that has this key. The last writer wins."""

    def replace(self, key: str, body: bytes, etag: str) -> bool:
        """Replace the object if its ETag is still `etag`.

        `conditional_replace` proves that the store compares it.

        Returns:
            True if this call replaced it. False if the object is missing or another one: perhaps
            by an attempt of this call whose reply was lost.
        """

    def get_tagged(self, key: str, length: int | None = None) -> Tagged:
        """Read an object, or its first `length` bytes, with the ETag of the object.

        Raises:
            NotFound: no object has this key.
        """

    def get(self, key: str) -> bytes:
        """Read an object.

        Raises:
            NotFound: no object has this key.
        """

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Read `length` bytes from `offset`, or fewer at the object's end.

        From offset 0 on, it may be a `Front`.

        Raises:
            NotFound: no object has this key.
        """

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        """List the first `limit` (≤ 1000) keys under `prefix` after `after`, in byte order.

        The page may be shorter.
        """

    def folders(self, prefix: str, inside: str, after: str = "") -> Folders | None:
        """List the first folders `prefix`NAME/ that have an object below `inside`/.

        A name has no "/". A page shows as many folders as one LIST of the store, and fewer if they
        hold other objects.

        Args:
            prefix: the folder of the folders; it ends with "/".
            inside: the name of a folder in each of them.
            after: `Folders.after` of the page before, or a key: only folders after it are needed.

        Returns:
            The page, or None if the store cannot list folders.
        """

    def delete(self, key: str) -> None:
        """Remove the object, if it exists."""

    def delete_many(self, keys: Sequence[str], etags: Sequence[str] = ()) -> Sequence[str]:
        """Remove at most 1000 objects. The call may be repeated.

        Missing objects are no error. The call raises the error of the first key that was not
        removed; other keys may be removed.

        Returns:
            The keys of the objects that the store kept because their ETag is not the listed one. A
            store that compares no ETags keeps none.
        """

    def age_ms(self, key: str) -> int:
        """The object's age by the store's clock, or less.

        Only for an object that was sent in parts may it be more: S3 counts from the upload's start.

        Raises:
            NotFound: no object has this key.
        """

    def upload(self, key: str) -> Upload:
        """Begin an object that is too large for one request."""

    def unfinished(self, prefix: str, after: str = "", limit: int = 1000) -> UnfinishedPage:
        """List at most `limit` (≤ 1000) unfinished uploads to keys under `prefix`.

        Args:
            after: `UnfinishedPage.after` of the previous page; "" for the first page.
        """

    def discard(self, upload: Unfinished) -> None:
        """Abort an upload and remove its parts, so that its writer cannot complete it.

        A missing upload is no error. A created object stays.
        """


def get_whole(store: Store, key: str, most: int) -> bytes:
    """An object that readers take as one piece: 1 GET, which asks for no more than that.

    Raises:
        NotFound: there is no such object.
        InvalidLogError: it has more than `most` bytes.
    """
    body = store.get_range(key, 0, most + 1)
    _check_size(store, key, body, most)
    return body


def get_whole_tagged(store: Store, key: str, most: int) -> Tagged:
    """As `get_whole`, with the object's ETag."""
    tagged = store.get_tagged(key, most + 1)
    _check_size(store, key, tagged.body, most)
    return tagged


def sound(key: str, first: Callable[[], R], again: Callable[[], R]) -> R:
    """Decode bytes, and read them once more if they are damaged: a proxy may have changed them.

    Args:
        key: the key of their object.
        first: decodes the bytes that were read.
        again: reads them again, and decodes them.

    Raises:
        InvalidLogError: they are damaged again.
    """
    try:
        return first()
    except InvalidLogError as error:
        try:
            # SAFETY(damage-read-twice) §8: bytes count as damaged only after a second read
            result = again()
        except NotFound:
            raise error from None
        events.emit(events.OtherBytes(key=key, reason=str(error)))
        return result


def holds(store: Store, key: str, body: bytes) -> bool:
    """Whether an object has exactly these bytes: 1 GET, and 1 more if it seems to have others.

    Raises:
        NotFound: there is no such object.
    """
    return any(store.get_range(key, 0, len(body) + 1) == body for _ in range(2))


def _check_size(store: Store, key: str, body: bytes, most: int) -> None:
    if len(body) > most:
        raise InvalidLogError(
            f"{store.url}/{key}: it has more than {most} bytes, and no writer of a log makes such "
            "an object. Find out who put it there; restore it, or move it away"
        )


def first_entries(store: Store, prefix: str, limit: int) -> Page:
    """List the first `limit` (≤ 1000) keys under `prefix`, and keep those whose names are numbers
    of a log.

    It costs one LIST, and one more for each page that the store cuts short. AWS never does that.
    """
    page = store.list(prefix, limit)
    entries = page.entries
    while page.more and len(entries) < limit:
        page = store.list(prefix, limit - len(entries), entries[-1].key)
        entries = entries + page.entries
    own = [entry for entry in entries if keys.listed(entry.key.removeprefix(prefix)) is not None]
    # A full page is full with the objects of other programs too.
    return Page(own, page.more or len(entries) >= limit > len(own))


def all_entries(store: Store, prefix: str, after: str = "", limit: int = 1000) -> Iterator[Entry]:
    """List the keys under `prefix` after `after`, in byte order: 1 LIST for each `limit` keys."""
    more = True
    while more:
        entries, more = store.list(prefix, limit, after)
        yield from entries
        after = entries[-1].key if entries else after


def numbered(
    store: Store, prefix: str, after: str = "", limit: int = 1000
) -> Iterator[tuple[int, Entry]]:
    """List the objects under a prefix whose names are numbers of a log, each with its number.

    The requests are those of `all_entries`.
    """
    for entry in all_entries(store, prefix, after, limit):
        if (number := keys.listed(entry.key.removeprefix(prefix))) is not None:
            yield number, entry


def delete_listed(store: Store, entries: Sequence[Entry]) -> list[Entry]:
    """Remove the objects of a LIST: 1 DELETE for each thousand.

    Returns:
        The objects that the store kept, because it compares ETags and their ETag is another one.
    """
    refused: set[str] = set()
    for begin in range(0, len(entries), KEYS_OF_DELETE):
        batch = entries[begin : begin + KEYS_OF_DELETE]
        etags = [entry.etag for entry in batch]
        refused.update(store.delete_many([entry.key for entry in batch], etags))
    return [entry for entry in entries if entry.key in refused]


@dataclass(frozen=True)
class LogStore:
    """A log in a store.

    Attributes:
        store: the store.
        prefix: all keys of the log begin with it. It is "" for the store's root.
        copy_of: for a reader, returns the copy of a record that is lost or damaged, by the log, the
            position and the window. None for a writer, which uses no copy.
    """

    store: Store
    prefix: str
    copy_of: Callable[["LogStore", int, int], object] | None = field(
        default=None, compare=False, repr=False
    )

    @property
    def url(self) -> str:
        """The log's location for people, e.g. "s3://bucket/wal", without secrets."""
        return f"{self.store.url}/{self.prefix}" if self.prefix else self.store.url

    @property
    def identity(self) -> str:
        """The log as a name, equal for every spelling of one path, without secrets."""
        return f"{self.store.identity}/{self.prefix}" if self.prefix else self.store.identity

    def sequencer(self, name: str) -> "LogStore":
        """The log of a sequencer under this log; for ROOT, this log."""
        return replace(self, prefix=keys.sequencer_prefix(self.prefix, name))

    @property
    def root(self) -> "LogStore":
        """The log at the path that this one lies under; this one itself if it is no sequencer's."""
        prefix = keys.root_prefix(self.prefix)
        return self if prefix is None else replace(self, prefix=prefix)

    @property
    def without_copies(self) -> "LogStore":
        """The same log, of which only the records themselves count."""
        return replace(self, copy_of=None)

    @property
    def name(self) -> str:
        """The log's name among those of its path."""
        return keys.sequencer_of(self.prefix)

    def key(self, number: int) -> str:
        return keys.key(self.prefix, number)

    def locate(self, number: int, window: int | None = None) -> str:
        """The URL of a numbered object for messages, with its position if `window` is given."""
        url = f"{self.store.url}/{self.key(number)}"
        return url if window is None else f"{url} (position {keys.position(number, window)})"
