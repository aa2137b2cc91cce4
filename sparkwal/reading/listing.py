"""Lists several logs of a path together: one LIST shows many small logs.

`{path}/sequencers/` holds the objects of all sequencers in the order of their names. A walk over it
shows the same of each log as a LIST of that log alone, and needs at most one LIST a log.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from sys import maxsize

from sparkwal.format import keys
from sparkwal.format.keys import ROOT, batches_prefix, is_log_folder, sequencers_prefix
from sparkwal.protocol.recovery import LIST_LIMIT
from sparkwal.store.base import Entry, LogStore, Page, first_entries
from sparkwal.store.parallel import run_parallel

# All walks together store at most this number of entries. Of later logs they store the newest.
_MOST_ENTRIES = 100_000
# The most walks side by side. Each may end inside of a log and then needs one LIST more.
_WALKS = 16
# The folders of a log in which readers look, in the order of their keys.
_BATCHES = "batches/"
_CONSUMERS = "consumers/"


@dataclass(frozen=True)
class Listed:
    """One log in the LISTs of its path.

    Attributes:
        newest: its newest object.
        page: the first LIST of its records, or None if that was not stored.
        consumers: the names of the objects of its consumers, or None if they were not listed.
    """

    newest: Entry
    page: Page | None = None
    consumers: tuple[str, ...] | None = None


@dataclass
class _Log:
    """A log during a walk. It stores at most `most` entries of its records."""

    name: str
    most: int
    batches: list[Entry] = field(default_factory=list)
    consumers: list[str] = field(default_factory=list)
    is_whole: bool = False

    def add(self, key: str, entry: Entry) -> None:
        """Take an entry with its key below the log's folder."""
        if key.startswith(_BATCHES):
            is_own = keys.listed(key.removeprefix(_BATCHES)) is not None
            if is_own and len(self.batches) < self.most:
                self.batches.append(entry)
        elif key.startswith(_CONSUMERS):
            name = key.removeprefix(_CONSUMERS)
            if keys.is_consumer(name):
                self.consumers.append(name)
        else:
            self.is_whole = key > _CONSUMERS

    @property
    def is_enough(self) -> bool:
        return self.is_whole or len(self.batches) >= self.most

    def listed(self) -> Listed:
        page = None
        if self.most > 1:
            page = Page(self.batches, more=not self.is_whole or len(self.batches) >= self.most)
        return Listed(self.batches[0], page, tuple(self.consumers) if self.is_whole else None)


@dataclass
class _Walk:
    """A walk over the folder of the sequencers.

    Attributes:
        root: the log at the path.
        names: the logs to list, in the order of their keys, or None to list every log.
        most: the number of entries to store.
        listed: the logs that were listed.
        next_key: the walk continues after this key in the folder.
        is_done: all were listed.
    """

    root: LogStore
    names: Sequence[str] | None
    most: int
    listed: dict[str, Listed] = field(default_factory=dict)
    next_key: str = ""
    is_done: bool = False

    def run(self, pages: int = maxsize) -> None:
        """Make at most so many LISTs."""
        folder = sequencers_prefix(self.root.prefix)
        after = f"{folder}{self.names[0]}/" if self.names else ""
        log: _Log | None = None
        for _ in range(pages):
            page = self.root.store.list(folder, after=after)
            for entry in page.entries:
                name, _, key = entry.key.removeprefix(folder).partition("/")
                if log is None or name != log.name:
                    self._end(log, is_whole=True)
                    log = _Log(name, LIST_LIMIT if self.most > 0 else 1)
                log.add(key, entry)
            self.most -= len(page.entries)
            if log is None or not page.more:
                self._end(log, is_whole=True)
                self.is_done = True
                return
            after, self.next_key = page.entries[-1].key, _order(log.name)
            if log.is_enough or not self._wants(log.name):
                self._end(log)
                # "0" is the character after "/", so this key is after every key of that name.
                self.next_key = f"{log.name}0"
                if self.names is not None:
                    index = bisect_right(self.names, _order(log.name), key=_order)
                    self.is_done = index == len(self.names)
                    if self.is_done:
                        return
                    self.next_key = _order(self.names[index])
                after = max(after, folder + self.next_key)
                log = None

    def _wants(self, name: str) -> bool:
        if self.names is None:
            return is_log_folder(name)
        index = bisect_left(self.names, _order(name), key=_order)
        return index < len(self.names) and self.names[index] == name

    def _end(self, log: _Log | None, *, is_whole: bool = False) -> None:
        """Take a log. All of its objects were listed if the LIST shows a later log."""
        # A refused writer may have left its proof of the store here, without a log.
        if log is not None and log.batches and self._wants(log.name):
            log.is_whole = log.is_whole or is_whole
            self.listed[log.name] = log.listed()


def _order(name: str) -> str:
    """The order of the names' keys, which is not that of the names: "a-b/" is before "a/"."""
    return f"{name}/"


def list_logs(root: LogStore, names: Iterable[str] | None = None) -> dict[str, Listed]:
    """List logs under a path, side by side.

    It costs 1 LIST for a thousand objects of small logs, and at most 1 for each larger log.

    Args:
        root: the log at the path.
        names: the names of the logs. The default is all, for 2 or 3 LISTs more.

    Returns:
        The logs that exist, by name in the order of the names, after ROOT.
    """
    listed = dict[str, Listed]()
    wanted = None if names is None else {*names}
    if wanted is None or ROOT in wanted:
        own = first_entries(root.store, batches_prefix(root.prefix), LIST_LIMIT)
        if own.entries:
            listed[ROOT] = Listed(own.entries[0], own)
    others = None if wanted is None else sorted(wanted - {ROOT}, key=_order)
    walked = _walked(root, others) if others is None or others else {}
    return {**listed, **{name: walked[name] for name in sorted(walked)}}


def _walked(root: LogStore, names: Sequence[str] | None) -> dict[str, Listed]:
    first = _Walk(root, names, _MOST_ENTRIES)
    first.run(pages=1)
    if first.is_done:
        return first.listed
    if names is None:
        names = sequencer_names(root, after=first.next_key)
    if names is None:
        walk = _Walk(root, None, _MOST_ENTRIES)
        walk.run()
        return walk.listed
    later = names[bisect_left(names, first.next_key, key=_order) :]
    # The others may be as large as the first ones.
    pages = ceil(len(later) / max(len(first.listed), 1))
    count = max(min(pages, root.store.concurrency, _WALKS), 1)
    walks = [
        _Walk(root, later[begin:end], first.most // count)
        for begin, end in _parts(len(later), count)
        if end > begin
    ]
    list(run_parallel(root.store, lambda walk: walk.run(), walks))
    for walk in walks:
        first.listed |= walk.listed
    return first.listed


def _parts(length: int, count: int) -> Iterable[tuple[int, int]]:
    """Divide a range into so many parts."""
    for part in range(count):
        yield length * part // count, length * (part + 1) // count


def sequencer_names(root: LogStore, after: str = "") -> list[str] | None:
    """Name the sequencers under a path in the order of their keys: 1 LIST for each thousand.

    Args:
        root: the log at the path.
        after: a key in their folder; only names after it are needed.

    Returns:
        The names, or None if the store cannot list folders.
    """
    folder = sequencers_prefix(root.prefix)
    names = list[str]()
    start = f"{folder}{after}" if after else ""
    while True:
        page = root.store.folders(folder, "batches", start)
        if page is None:
            return None
        names += filter(is_log_folder, page.names)
        if not page.after:
            return names
        start = page.after
