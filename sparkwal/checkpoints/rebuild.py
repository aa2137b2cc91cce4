"""Rebuilds the local checkpoint of a query from the log if it is missing or differs."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Unpack

from sparkwal import events
from sparkwal.checkpoints import carry, folder, names, packing, query_state
from sparkwal.checkpoints.accepting import accepted, check_listed
from sparkwal.checkpoints.compacted import with_interval
from sparkwal.checkpoints.folder import Owner, owner_of, sweep
from sparkwal.checkpoints.fork import (
    Fork,
    check_name,
    check_same_fork,
    open_forked,
    query_id_of,
)
from sparkwal.checkpoints.forkable import not_carried
from sparkwal.checkpoints.offsets import check_commit
from sparkwal.checkpoints.place import Base, find_base
from sparkwal.checkpoints.replacing import alone, replace
from sparkwal.checkpoints.unread import check_files, check_repeated
from sparkwal.errors import OptionError
from sparkwal.format import keys
from sparkwal.format.header import Checkpoint, QueryState
from sparkwal.options.keywords import SinkKeywords
from sparkwal.options.open import enclosing_data, open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.spark_versions import checkpoint_file_manager
from sparkwal.options.writing import SinkOptions
from sparkwal.protocol.archive import recall
from sparkwal.protocol.new_query import report_new_query
from sparkwal.protocol.recovery import Head, find_head
from sparkwal.protocol.segments import with_copies
from sparkwal.protocol.slots import SlotRecord
from sparkwal.store.base import LogStore
from sparkwal.store.local_files import keep_private
from sparkwal.store.path import absolute, overlap, state_folder

FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


@dataclass(frozen=True)
class State:
    """The log's state of one query.

    Attributes:
        query_id: the query.
        log_id: None if the log does not exist.
        window: the log's window.
        batch_id: the query's last microbatch in the log; −1 without one.
        entry: its checkpoint in the log.
        record: the record that carries it, if it was read.
    """

    query_id: str
    log_id: str | None
    window: int
    batch_id: int
    entry: Checkpoint | None
    record: SlotRecord | None = None


def checkpoint(
    path: str,
    name: str,
    *,
    folder: str | os.PathLike[str] | None = None,
    fork: Fork | None = None,
    files_under: Sequence[str] = (),
    **options: Unpack[SinkKeywords],
) -> str:
    """Prepare a local folder for `.option("checkpointLocation", …)` that continues the log.

    The log carries the checkpoint of each of its queries. On the machine where the query ran, its
    folder is used without a change. If the folder is missing, damaged, restored from a backup or of
    another log, it is rebuilt from the log: 1 LIST and a few GETs, however long the log is. Call it
    on the driver, before each start of the query.

    Examples:
        >>> query.option("checkpointLocation", sparkwal.checkpoint("s3://bucket/wal", "orders"))

    Args:
        path: the log's path: s3://bucket/prefix, file:///folder or a folder.
        name: the query's name, unique in its log. It identifies the query on every machine. If the
            query began with another checkpoint, use its id (a UUID).
        folder: the checkpoint's folder. It holds nothing else, and lies outside of the log. The
            default is below ``$XDG_STATE_HOME/sparkwal`` or ``~/.local/state/sparkwal``.
        fork: the place in another log at which this query begins. Once the log has a microbatch of
            the query, the fork is only compared with the one that the log names.
        files_under: the folders or URLs below which the query's file sources read. A rebuilt folder
            then names no other file. Give it with `cleanSource`, if others may write to the log.
            Without it, the files of each source must share a folder, which neither holds nor lies
            in the log, the checkpoint, the home folder's hidden folders or the system's folders.
        **options: the options of the store, as for the sink (docs/options.md).

    Returns:
        The folder's path.

    Raises:
        OptionError: the log does not carry all of the query's checkpoint, the folder
            belongs to another query, the query began with another fork, or an argument is wrong.
        CollectedError: the record at the place of the fork was collected.
        InvalidLogError: the log's end, or the record that carries the checkpoint, is damaged.
        StoreUnavailableError: the store did not answer.
    """
    return str(prepare_checkpoint(path, name, folder, options, fork, files_under)[0])


@dataclass(frozen=True)
class Held:
    """The state of a stateful query, and the query of a log whose records carry it."""

    log: LogStore
    window: int
    query_id: str
    state: QueryState


@dataclass(frozen=True)
class Decision:
    """Whether a folder is rebuilt from `files`. If so, `why` is the reason, else it is None."""

    query_id: str
    batch_id: int
    why: str | None
    files: Mapping[str, bytes]
    held: Held | None = None


def prepare_checkpoint(
    path: str,
    name: str,
    folder: str | os.PathLike[str] | None,
    options: Mapping[str, object],
    fork: Fork | None = None,
    files_under: Sequence[str] = (),
    done: Callable[[int, int], None] = lambda _read, _all: None,
) -> tuple[Path, Decision]:
    """Do the work of `checkpoint`. Returns the folder, and why it was rebuilt or used.

    `done` is called with the number of the state's records that were read, and of all.
    """
    sink_options = from_keywords(SinkOptions, path, options)
    sink_options = dataclasses.replace(sink_options, path=absolute(sink_options.path))
    check_name(name)
    log = with_copies(open_log(sink_options, fail_fast=True))
    forking = _opened(fork, log, options)
    target = _target(log, name, folder)
    _check_apart(target, sink_options)
    try:
        with alone(target):
            if target.exists():
                keep_private(target, "checkpoint folder")
            # Without a folder, none is emptied; and the first leader record needs a proof.
            head = find_head(log, proven=forking is None or target.exists())
            _check_owner(target, owner_of(target), log, head, name)
            decision = decide(log, head, name, target, uuid.uuid4().hex, forking)
            if decision.why is None:
                sweep(target)
            else:
                check_listed(decision.files, files_under, (sink_options.path, str(target)))
                replace(target, decision.files, partial(_write_state, decision.held, done))
    except OSError as error:
        # The rename fails also if a volume is mounted at the folder itself.
        raise OptionError(
            f"cannot make {target} ({error.strerror or error}): give sparkwal.checkpoint a folder "
            "that can be created and replaced, inside one that you may write to"
        ) from None
    event = (str(target), decision.query_id, decision.batch_id)
    if decision.why is None:
        events.emit(events.CheckpointUsed(*event))
    else:
        events.emit(events.CheckpointRebuilt(*event, decision.why))
    checkpoints = head.live.header.checkpoints if head.live else {}
    if checkpoints and decision.batch_id < 0 and forking is None:
        report_new_query(log.url, name, checkpoints)
    _report_slow_files()
    return target, decision


def _write_state(
    state_parts: Held | None, done: Callable[[int, int], None], draft: Path
) -> list[Path]:
    """Write the state of a query into a new folder. Returns the files."""
    if state_parts is None:
        return []
    state = state_parts.state
    parts = packing.read_state(state_parts.log, state_parts.window, state_parts.query_id, state)

    def counted() -> Iterator[tuple[str, query_state.Part]]:
        for number, part in enumerate(parts, 1):
            yield part
            done(number, len(state.positions))

    return query_state.write(draft, state, counted())


@dataclass(frozen=True)
class Forking:
    """A fork and the log that it names."""

    fork: Fork
    log: LogStore


def _opened(fork: Fork | None, log: LogStore, options: Mapping[str, object]) -> Forking | None:
    """Open the log of a fork. Raises OptionError if it is the log of the new query."""
    if fork is None:
        return None
    if not isinstance(fork, Fork):
        raise OptionError(f"fork is a {type(fork).__name__}; a sparkwal.Fork is expected")
    forked = open_forked(fork, options)
    if forked.identity == log.identity:
        raise _same_log(log)
    return Forking(fork, forked)


def _same_log(log: LogStore) -> OptionError:
    return OptionError(
        f"{log.url} is the log that is forked: its rows would be in it twice. Give the new query a "
        "path of its own, or a sequencer under the same path"
    )


def decide(
    log: LogStore,
    head: Head,
    name: str,
    target: Path,
    new_log_id: str,
    forking: Forking | None = None,
) -> Decision:
    """Decide whether a folder continues the log, and collect the files of a new one.

    Args:
        log: the open log.
        head: its end.
        name: the query's name.
        target: the folder.
        new_log_id: the id for a log that does not exist yet.
        forking: the place where the query begins, or None for its source's first rows.

    Returns:
        The decision, with the files of a new folder.

    Raises:
        OptionError: the folder is of a query that the log does not hold, the log does not carry
            all files, or the query began elsewhere.
        CollectedError: the record at the place of the fork was collected.
    """
    owner = owner_of(target)
    live = head.live.header if head.live else None
    # If the log does not exist yet, its first query creates it with this id.
    log_id = live.log_id if live else new_log_id
    query_id = query_id_of(log_id, name)
    last, entry = recall(lambda: log, live, query_id) if live else (-1, None)
    state = State(query_id, live.log_id if live else None, head.window, last, entry)
    base = _base(log, log_id, name, state, target, owner, forking)
    is_users_folder = owner is None and target.parts[-3:] != _default(log, name)
    if is_users_folder and last < 0 and folder.query_of(target) is not None:
        raise OptionError(
            f"{log.url} holds no microbatch of query {query_id}, whose checkpoint {target} is: "
            "check the path"
        )
    why = why_rebuild(log, state, target, owner, base)
    last = base.origin.batch_id if base else last
    if why is None:
        # Without a log, keep the id that an earlier call drew for the query.
        return Decision(folder.query_of(target) or query_id, last, None, {})
    origin = entry.origin if entry else None
    carried_by = log
    if base is None:
        files = _files(log, state)
    else:
        origin = base.origin
        carried_by, state = base.log, _forked(base)
        files = _files(carried_by, state, base.files)
        assert forking is not None
        check_files(base, files, ignore_missing=forking.fork.ignore_missing_files)
        why = f"{why}; the query begins {carry.beginning(origin)}"
    state_parts = None
    if state.entry is not None and state.entry.state is not None:
        state_parts = Held(carried_by, state.window, state.query_id, state.entry.state)
        check_repeated(files, state.batch_id, target)
        files = {file: query_state.moved(file, data, target) for file, data in files.items()}
    own = {
        names.METADATA: b'{"id":"%s"}' % query_id.encode(),
        names.OWNER: folder.owner_text(Owner(log.identity, log_id, name, origin)),
    }
    return Decision(query_id, last, why, {**files, **own}, state_parts)


def _base(
    log: LogStore,
    log_id: str,
    name: str,
    state: State,
    target: Path,
    owner: Owner | None,
    forking: Forking | None,
) -> Base | None:
    """The place where a query without a microbatch begins. None: its source's first rows.

    Raises:
        OptionError: it has microbatches, and began elsewhere; or its folder began with a fork.
        CollectedError: the record at the place of the fork was collected.
    """
    begins = state.batch_id < 0
    if forking is not None and not begins:
        origin = state.entry.origin if state.entry else None
        check_same_fork(forking.fork, forking.log, log, name, origin)
        return None
    if forking is not None:
        base = find_base(forking.fork, forking.log)
        if base.origin.log_id == log_id:
            raise _same_log(log)
        return base
    if begins and owner is not None and owner.origin is not None:
        raise OptionError(
            f"{target} begins query {name!r} {carry.beginning(owner.origin)}, and {log.url} holds "
            "no microbatch of it yet, so only the fork says where it begins. sparkwal wrote "
            "nothing: give sparkwal.checkpoint the same fork in the job too, or delete the folder "
            "to begin with the first rows of the source"
        )
    return None


def _forked(base: Base) -> State:
    """The state of the forked query at the place of the fork."""
    origin = base.origin
    return State(
        origin.query_id, origin.log_id, base.window, origin.batch_id, base.entry, base.record
    )


def why_rebuild(
    log: LogStore, state: State, target: Path, owner: Owner | None, base: Base | None = None
) -> str | None:
    """The reason to rebuild a folder, or None if it continues the log: at most 1 GET, or 2."""
    if owner is None:
        return "there is no checkpoint of this query"
    if (name := folder.torn(target, state.entry)) is not None:
        return f"it is incomplete: {name}"
    offsets, commits = folder.latest(target, "offsets"), folder.latest(target, "commits")
    if state.log_id is None and base is None:
        return None if commits < 0 else "its log was deleted"
    if state.log_id is None:
        # The folder's query begins the log that the folder names.
        query_id = folder.query_of(target) or ""
        state = dataclasses.replace(state, log_id=owner.log_id, query_id=query_id)
    # SAFETY(folder-of-this-log) §12: a folder serves only the log and query that it was made for
    if owner.log_id != state.log_id or folder.query_of(target) != state.query_id:
        return "it belongs to another log"
    # Without a microbatch in the log, the folder is compared with the log that was forked.
    if base is not None:
        log, state = base.log, _forked(base)
    last, entry = state.batch_id, state.entry
    if last < 0:
        # SAFETY(no-folder-ahead) §12: a folder with commits is ahead of a log that holds no
        # microbatch
        return None if commits < 0 else "it is ahead of the log"
    if entry is None:
        return "the log carries none of its files"
    # The next record of this folder would have to carry the whole state.
    if entry.state is not None and not query_state.continues(target, entry.state):
        return "the log has the state of another machine"
    origin = base.origin if base else entry.origin
    # SAFETY(folder-same-fork) §12: a folder serves only a query that was forked from the same place
    if (owner.origin and owner.origin.begin) != (origin and origin.begin):
        return "it begins elsewhere"
    # SAFETY(folder-not-behind) §12: a folder that is behind the log is rebuilt
    if offsets < last or commits < last - 1:
        return "the log is ahead of it"
    # A microbatch that the folder does not note may be one that a restored log lost.
    done = folder.done(target, last, entry)
    # SAFETY(folder-not-ahead) §12: a folder further ahead than its noted microbatches is rebuilt
    if offsets > done + 1 or commits > done:
        return "it is ahead of the log"
    if offsets > last and commits < offsets - 1:
        return "it lacks a commit"
    if commits > last:
        return None
    logged = packing.read_block(log, state.window, state.query_id, entry.position, state.record)
    # SAFETY(folder-same-plan) §12: a folder is used only if it plans N as the log holds it
    if folder.other_input(logged, entry.files, target, last) is not None:
        return "it gave the number of a microbatch in the log to other input"
    # A stateful query repeats it, with the state before it.
    is_plain = entry.state is None and not entry.too_large
    # Without commits/N Spark would read its input again, which another machine may have archived.
    # SAFETY(folder-has-commit) §12: a folder is used only if it holds the log's last commits/N
    if logged and commits != last and offsets == last and is_plain:
        return "it lacks the commit of its last microbatch, which is in the log"
    return None


def _files(
    log: LogStore, state: State, files: Mapping[str, bytes] | None = None
) -> dict[str, bytes]:
    """Collect the files of a new folder from those that the log carries.

    If they were not read, it costs 1 GET, and 1 for each compacted list.

    Raises:
        OptionError: the log does not carry all of them.
    """
    last, entry = state.batch_id, state.entry
    if last < 0:
        return {}
    why = "nothing of its checkpoint is in the log"
    advice = "Start it with the checkpointLocation that it had"
    if entry is not None:
        why = not_carried(entry)
        if entry.too_large:
            advice = "Start it on the machine where it ran, with a larger checkpointMaxBytes"
    if entry is None or why:
        raise OptionError(
            f"cannot rebuild the checkpoint of query {state.query_id} from {log.url} (microbatch "
            f"{last}): {why}. {advice}"
        )
    if files is None:
        files = packing.read_files(log, state.window, state.query_id, entry, state.record)
    record = log.locate(keys.slot(entry.position, state.window), state.window)
    # SAFETY(rebuild-interval) §12: Spark derives from a rebuilt folder the interval of its lists
    files = with_interval(accepted(files, last, record))
    # The log holds microbatch N, so it has ended. Without commits/N Spark would read its input
    # again, which may be archived. Its text is that of commits/N−1, except that a sink which began
    # with N is missing from the names.
    done = files.get(f"commits/{last - 1}", b'v1\n{"nextBatchWatermarkMs":0}')
    check_commit(done)
    if entry.state is not None:
        # SAFETY(repeat-stateful) §12: a record of N carries the state before N: Spark repeats N
        return files
    # SAFETY(rebuild-commit) §12: a rebuilt folder holds commits/N
    # SAFETY(rebuild-offsets) §12: a rebuilt folder holds offsets/N
    # SAFETY(rebuild-from-last) §12: a folder is rebuilt from the query's last record
    return {**files, f"commits/{last}": done}


def _target(log: LogStore, name: str, location: str | os.PathLike[str] | None) -> Path:
    if location is not None:
        location = os.fspath(location)
        if (path := folder.local_folder(location)) is not None:
            return path
        raise OptionError(f"folder is {location!r}; a folder on this machine is expected")
    state = state_folder()
    if state is None:
        raise OptionError("this user has no home folder: give sparkwal.checkpoint a folder")
    target = state.parent.joinpath(*_default(log, name))
    return target if target.exists() else _by_another_endpoint(target, log, name) or target


def _by_another_endpoint(target: Path, log: LogStore, name: str) -> Path | None:
    """The default folder that this query has through another endpoint or profile, or None.

    If folders of queries with this name exist, it costs 1 LIST and 1 GET.
    """
    owners = {path: owner_of(path) for path in target.parent.glob(f"{target.name[:-16]}*")}
    log_ids = {path: owner.log_id for path, owner in owners.items() if owner and owner.name == name}
    log_id = _log_id(find_head(log)) if log_ids else None
    return next((path for path in sorted(log_ids) if log_ids[path] == log_id), None)


def _log_id(head: Head) -> str | None:
    return head.live.header.log_id if head.live else None


def _default(log: LogStore, name: str) -> tuple[str, str, str]:
    """The names of a query's default folder, which are unique to it."""
    # In a container without LANG a JVM cannot name a file beyond ASCII.
    shown = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:40].lstrip(".")
    named = uuid.uuid5(uuid.NAMESPACE_URL, f"{log.identity}\0{name}").hex[:16]
    return "sparkwal", "checkpoints", f"{shown}-{named}"


def _check_apart(target: Path, options: SinkOptions) -> None:
    """Check that replacing the folder would not delete a log, a table or another such folder.

    Raises:
        OptionError: the folder overlaps the log, or lies in a folder that sparkwal or Delta owns.
    """
    for log_folder in folder.log_folders(options.path, options.sequencer):
        if overlap(str(target), str(log_folder)):
            raise OptionError(
                f"the log {options.log_path} and the checkpoint {target} share a folder "
                f"({log_folder}). sparkwal wrote nothing: give sparkwal.checkpoint a folder beside "
                "the log"
            )
    # A rename replaces a symbolic link itself, so check the link's own folder too.
    for path in (os.path.realpath(target), f"{os.path.realpath(target.parent)}/{target.name}"):
        kind, other = enclosing_data(Path(path)) or ("", path)
        inside = os.path.relpath(path, other)
        # Delta's VACUUM keeps folders whose names begin with an underscore.
        if kind and not (kind == "Delta table" and inside.startswith("_checkpoint")):
            raise OptionError(
                f"the checkpoint {target} would lie in {other}, which is a {kind}. sparkwal wrote "
                "nothing: give sparkwal.checkpoint a folder beside it, or _checkpoints in a table"
            )


def _check_owner(target: Path, owner: Owner | None, log: LogStore, head: Head, name: str) -> None:
    """Check that the folder's content belongs to this query.

    Raises:
        OptionError: it belongs to another query, or sparkwal did not make it.
    """
    if owner is not None:
        # One bucket may have several endpoints, but the log_id belongs to the log alone.
        is_of_log = owner.log == log.identity or owner.log_id == _log_id(head)
        if not is_of_log or owner.name != name:
            raise OptionError(
                f"{target} is the checkpoint of query {owner.name!r} of {owner.log}: choose a "
                "separate folder for each query"
            )
        return
    # Spark made the folder for the query of this id, or only the owner's note in a default folder
    # is damaged.
    if folder.query_of(target) == query_id_of("", name) or target.parts[-3:] == _default(log, name):
        return
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise OptionError(
            f"{target} is not empty, and sparkwal.checkpoint did not make it: choose another "
            "folder. (To continue a query that was started with it, use its id as the name: see "
            f"{target / names.METADATA})"
        )


def _report_slow_files() -> None:
    # Do not import pyspark: sparkwal.checkpoint also runs without Spark.
    spark_sql = sys.modules.get("pyspark.sql")
    session = spark_sql.SparkSession.getActiveSession() if spark_sql else None
    if session is not None and session.conf.get(FILE_MANAGER, None) is None:
        advice = (
            "Spark forks two processes for each file of this checkpoint; set this before the query "
            "starts, unless a checkpoint of the session is on an object store"
        )
        manager = checkpoint_file_manager(session.version)
        events.emit(events.SlowCheckpointFiles(FILE_MANAGER, manager, advice))
