"""Finds a value in all objects of a path and its tables: what is left of a person after a delete.

It reads every object, and so needs no trust in what a lifecycle recorded.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from sparkwal.errors import OptionError, SparkWalError, TableReadError
from sparkwal.format.finding import CannotTell, Value, is_found
from sparkwal.lifecycle.folder import Folder
from sparkwal.lifecycle.opening import table_objects
from sparkwal.lifecycle.table import SearchedObjects
from sparkwal.options.store import StoreOptions
from sparkwal.protocol.chain import newest_record
from sparkwal.store.base import LogStore, NotFound, Store
from sparkwal.store.parallel import run_parallel

_NOT_THERE = ""
_CANNOT_TELL = "cannot tell: "
_OF_TABLE = "DELETE of its rows, then the clean-up of old versions"
FOUND = "the value"
# When an object of a log is gone, by the folder that it lies in.
_OF_LOG = {
    "batches": "the first collection after the floor passed it gcGrace ago (24 h, or as set); a "
    "record that stays: twice that",
    "segments": "the first collection that takes one of its positions",
    "repaired": "the next sparkwal repair of its position",
    "lifecycle": "1,000 newer records of the lifecycle",
    "consumers": "sparkwal.forget_consumer, or the next position of its reader",
}


@dataclass(frozen=True)
class Copy:
    """An object that holds a value, or may hold it.

    Attributes:
        object: the URL of the object. It names no value.
        found: "the value", or why nobody can tell.
        until: what ends it.
    """

    object: str
    found: str
    until: str


@dataclass
class Search:
    """A search for a value, and what it found.

    Attributes:
        value: the value.
        done: is called with the number of objects that were read, and of those listed so far.
        copies: the objects that hold the value, or may hold it.
        objects: the number of objects that were read.
    """

    value: Value
    done: Callable[[int, int], None]
    copies: list[Copy] = field(default_factory=list)
    objects: int = 0

    def note(self, url: str, outcome: str, until: str) -> None:
        """Note an object that holds the value, or may hold it."""
        self.copies.append(Copy(self.value.without(url), outcome, until))

    def over(self, objects: SearchedObjects, store: Store) -> int:
        """Read every one of some objects.

        Args:
            objects: the objects.
            store: so many requests run at once as it is fit for.

        Returns:
            The number of objects.
        """

        def read(name: str) -> tuple[str, str]:
            try:
                body = objects.read(name)
                return name, FOUND if is_found(name, body, self.value) else _NOT_THERE
            except NotFound:
                return name, _NOT_THERE
            except CannotTell as reason:
                return name, f"{_CANNOT_TELL}{reason}"
            except SparkWalError as error:
                return name, f"{_CANNOT_TELL}it is unreadable ({type(error).__name__})"

        before = self.objects
        hits = []
        names = objects.names()
        for name, outcome in run_parallel(store, read, names):
            self.objects += 1
            self.done(self.objects, before + len(names))
            if outcome:
                hits.append((name, outcome))
        for name, outcome in hits:
            self.note(objects.url(name), outcome, objects.until(name))
        for url, reason, until in objects.unread():
            self.note(url, f"{_CANNOT_TELL}{reason}", until)
        return self.objects - before


def find(log: LogStore, options: StoreOptions, search: Search) -> None:
    """Read every object of a path, of its logs' tables and of the tables beside these.

    Args:
        log: the log at the path.
        options: the options of the log.
        search: takes what is found.

    Raises:
        InvalidLogError: the newest record of the lifecycle is damaged.
        StoreUnavailableError: the store did not answer.
    """
    root = log.root
    prefix = f"{root.prefix}/" if root.prefix else ""
    search.over(Folder(root.store, prefix, _until_of_log), root.store)
    record = newest_record(root)
    for table in record.tables if record else ():
        for beside in (table, f"{table}_tombstones", f"{table}_refused"):
            _in_table(beside, options, search, root.store, is_named=beside == table)


def _in_table(
    url: str, options: StoreOptions, search: Search, store: Store, *, is_named: bool
) -> None:
    try:
        count = search.over(table_objects(url, options), store)
    except OptionError as error:
        if is_named:
            # The URL may hold a secret.
            search.note("the table", f"{_CANNOT_TELL}{error}", _OF_TABLE)
        return
    except TableReadError as error:
        search.note(url, f"{_CANNOT_TELL}{error}", _OF_TABLE)
        return
    if is_named and not count:
        search.note(url, f"{_CANNOT_TELL}the table has no files here", _OF_TABLE)


def _until_of_log(name: str) -> str:
    parts = name.split("/")
    if parts[0] == "sequencers":
        parts = parts[2:]
    return _OF_LOG.get(parts[0] if parts else "", "the end of the log")
