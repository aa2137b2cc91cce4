"""Finds a value in all objects of a path and its tables: what is left of a person after a delete.

It reads every object, and so needs no trust in what a lifecycle recorded.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sparkwal.errors import OptionError, SparkWalError
from sparkwal.format.finding import CannotTell, Value, is_found
from sparkwal.lifecycle.opening import check_place, table_files
from sparkwal.lifecycle.table import OF_ROW, TableFiles
from sparkwal.options.store import StoreOptions
from sparkwal.protocol.chain import newest_record
from sparkwal.store.base import Entry, LogStore, NotFound, Store, all_entries
from sparkwal.store.open import open_store
from sparkwal.store.parallel import run_parallel

_NOT_THERE = ""
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

    def in_folder(
        self,
        store: Store,
        prefix: str,
        until: Callable[[str], str],
        files: TableFiles | None = None,
    ) -> int:
        """Read every object below a prefix.

        Args:
            store: the store.
            prefix: the prefix, with its last "/".
            until: what ends an object that is found, by its name below the prefix.
            files: takes the files of a table's history.

        Returns:
            The number of objects.
        """

        def read(entry: Entry) -> tuple[str, str, bytes]:
            name = entry.key.removeprefix(prefix)
            try:
                body = store.get(entry.key)
            except NotFound:
                return name, _NOT_THERE, b""
            except SparkWalError as error:
                return name, f"cannot tell: it is unreadable ({type(error).__name__})", b""
            try:
                outcome = FOUND if is_found(name, body, self.value) else _NOT_THERE
            except CannotTell as reason:
                outcome = f"cannot tell: {reason}"
            return name, outcome, body if files is not None and files.is_history(name) else b""

        before = self.objects
        hits = []
        entries = [entry for entry in all_entries(store, prefix) if not entry.key.endswith("/")]
        for name, outcome, body in run_parallel(store, read, entries):
            self.objects += 1
            self.done(self.objects, before + len(entries))
            if files is not None and body:
                files.see(name, body)
            if outcome:
                hits.append((name, outcome))
        for name, outcome in hits:
            self.note(f"{store.url}/{prefix}{name}", outcome, until(name))
        for upload in _unfinished(store, prefix):
            self.note(
                f"{store.url}/{upload}",
                "cannot tell: it is an upload that did not end",
                "sparkwal collect --delete, or the bucket's rule for such uploads",
            )
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
    search.in_folder(root.store, prefix, _until_of_log)
    record = newest_record(root)
    for table in record.tables if record else ():
        for beside in (table, f"{table}_tombstones", f"{table}_refused"):
            _in_table(beside, options, search, is_named=beside == table)


def _until_of_log(name: str) -> str:
    parts = name.split("/")
    if parts[0] == "sequencers":
        parts = parts[2:]
    return _OF_LOG.get(parts[0] if parts else "", "the end of the log")


def _in_table(url: str, options: StoreOptions, search: Search, *, is_named: bool) -> None:
    """Read every object of a table's folder: also files of old versions, and orphans."""
    try:
        check_place(url, options)
        if not options.reaches(url):
            raise OptionError("it is on a store of another kind than the log")
        store, folder = open_store(url, options.s3, options.retry)
    except OptionError as error:
        if is_named:
            # The URL may hold a secret.
            search.note("the table", f"cannot tell: {error}", OF_ROW)
        return
    files = table_files()
    count = search.in_folder(store, f"{folder}/" if folder else "", files.until, files)
    if is_named and not count:
        search.note(url, "cannot tell: the table has no files here", OF_ROW)
    for elsewhere in sorted(files.elsewhere):
        search.note(elsewhere, "cannot tell: a file of the table that lies elsewhere", OF_ROW)


def _unfinished(store: Store, prefix: str) -> Iterator[str]:
    after = ""
    while True:
        page = store.unfinished(prefix, after)
        yield from (upload.key for upload in page.uploads)
        after = page.after
        if not after:
            return
