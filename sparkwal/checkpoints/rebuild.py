"""Rebuilds the local checkpoint of a query from the log if it is missing or differs."""

import dataclasses
import os
import re
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkwal import events
from sparkwal.checkpoints import carry, folder, names
from sparkwal.checkpoints.folder import Owner, owner_of, sweep
from sparkwal.checkpoints.offsets import check_commit
from sparkwal.checkpoints.replacing import alone, replace
from sparkwal.errors import OptionError
from sparkwal.format.header import NOWHERE, REMOTE, STATEFUL, Checkpoint
from sparkwal.options.open import enclosing_data, open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.spark_versions import checkpoint_file_manager
from sparkwal.options.writing import SinkOptions
from sparkwal.protocol.archive import recall
from sparkwal.protocol.new_query import report_new_query
from sparkwal.protocol.recovery import Head, find_head
from sparkwal.store.base import LogStore
from sparkwal.store.local_files import keep_private
from sparkwal.store.path import absolute, overlap, state_folder

FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
# Why a record carries no checkpoint.
_GO_ON = "Start it with the checkpointLocation that it had"
_NOT_CARRIED = {
    STATEFUL: f"the query is stateful, and its state is not in the log. {_GO_ON}",
    REMOTE: "its checkpointLocation was not on the driver's disk, or was no option of the query, "
    "so the log carries nothing of it. Start it once with the checkpointLocation that it had",
}


@dataclass(frozen=True)
class State:
    """The log's state of one query: `log_id` is None without a log, `batch_id` −1 at first."""

    query_id: str
    log_id: str | None
    window: int
    batch_id: int
    entry: Checkpoint | None


def checkpoint(
    path: str, name: str, *, folder: str | os.PathLike[str] | None = None, **options: object
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
        **options: the options of the store, as for the sink (docs/options.md).

    Returns:
        The folder's path.

    Raises:
        OptionError: the log cannot carry the query's checkpoint (stateful, too large), the folder
            belongs to another query, or an argument is wrong.
        InvalidLogError: the log's end, or the record that carries the checkpoint, is damaged.
        StoreUnavailableError: the store did not answer.
    """
    return str(made(path, name, folder, options)[0])


@dataclass(frozen=True)
class Decision:
    """Whether a folder is rebuilt from `files`: only if there is a reason, `why`."""

    query_id: str
    batch_id: int
    why: str | None
    files: Mapping[str, bytes]


def made(
    path: str, name: str, folder: str | os.PathLike[str] | None, options: Mapping[str, object]
) -> tuple[Path, Decision]:
    """Do `checkpoint`, and return the folder and why it was rebuilt or used."""
    given = from_keywords(SinkOptions, path, options)
    given = dataclasses.replace(given, path=absolute(given.path))
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > 200:
        raise OptionError(f"name is {repr(name)[:80]}; a short printable text is expected")
    log = open_log(given, fail_fast=True)
    place = _place(log, name, folder)
    _check_apart(place, given)
    try:
        with alone(place):
            if place.exists():
                keep_private(place, "checkpoint folder")
            head = find_head(log)
            _check_ours(place, owner_of(place), log, head, name)
            found = decide(log, head, name, place, uuid.uuid4().hex)
            if found.why is None:
                sweep(place)
            else:
                replace(place, found.files)
    except OSError as error:
        # A volume that is mounted at the folder itself cannot be renamed either.
        raise OptionError(
            f"cannot make {place} ({error.strerror or error}): give sparkwal.checkpoint a folder "
            "that can be made and replaced, inside one that you may write to"
        ) from None
    what = (str(place), found.query_id, found.batch_id)
    if found.why is None:
        events.emit(events.CheckpointUsed(*what))
    else:
        events.emit(events.CheckpointRebuilt(*what, found.why))
    checkpoints = head.live.header.checkpoints if head.live else {}
    if checkpoints and found.batch_id < 0:
        report_new_query(log.url, name, checkpoints)
    _report_slow_files()
    return place, found


def decide(log: LogStore, head: Head, name: str, place: Path, drawn: str) -> Decision:
    """Decide whether a folder continues the log, or what a new one holds.

    Args:
        log: the open log.
        head: its end.
        name: the query's name.
        place: the folder.
        drawn: the id for a log that does not exist yet.

    Returns:
        The decision, with the files of a new folder.
    """
    owner = owner_of(place)
    live = head.live.header if head.live else None
    # A log that does not exist yet gets the name that its first query draws for it.
    log_id = live.log_id if live else drawn
    query_id = _query_id(log_id, name)
    last, entry = recall(lambda: log, live, query_id) if live else (-1, None)
    state = State(query_id, live.log_id if live else None, head.window, last, entry)
    theirs = owner is None and place.parts[-3:] != _default(log, name)
    if theirs and last < 0 and folder.query_of(place) is not None:
        raise OptionError(
            f"{log.url} holds no microbatch of query {query_id}, whose checkpoint {place} is: "
            "check the path"
        )
    why = why_rebuild(log, state, place, owner)
    if why is None:
        # Before there is a log, the query has the id that it was given by an earlier draw.
        return Decision(folder.query_of(place) or query_id, last, None, {})
    files = {
        **_files(log, state),
        names.METADATA: b'{"id":"%s"}' % query_id.encode(),
        names.OWNER: folder.owner_text(Owner(log.identity, log_id, name)),
    }
    return Decision(query_id, last, why, files)


def why_rebuild(log: LogStore, state: State, place: Path, owner: Owner | None) -> str | None:
    """Find out why a folder must be rebuilt: at most 1 GET, or 2 for a large block.

    Returns:
        The reason, or None if the folder continues the log.
    """
    if owner is None:
        return "there is none"
    if (name := folder.torn(place)) is not None:
        return f"{name} in it is not whole"
    offsets, commits = folder.latest(place, "offsets"), folder.latest(place, "commits")
    if state.log_id is None:
        return None if commits < 0 else "its log is gone"
    # SAFETY(folder-of-this-log) §12: a folder serves only the log and query that it was made for
    if owner.log_id != state.log_id or folder.query_of(place) != state.query_id:
        return "it belongs to another log"
    last, entry = state.batch_id, state.entry
    if last < 0:
        # SAFETY(no-folder-ahead) §12: a folder with commits is ahead of a log that holds no
        # microbatch
        return None if commits < 0 else "it is ahead of the log"
    if entry is None:
        return "the log carries nothing of it"
    # SAFETY(folder-not-behind) §12: a folder that is behind the log is rebuilt
    if offsets < last or commits < last - 1:
        return "the log is ahead of it"
    # What the folder does not note as without rows, a log that was put back may have lost.
    done = folder.done(place, last, entry)
    # SAFETY(folder-not-ahead) §12: a folder further ahead than its noted microbatches is rebuilt
    if offsets > done + 1 or commits > done:
        return "it is ahead of the log"
    if offsets > last and commits < offsets - 1:
        return "it lacks a commit"
    if commits > last:
        return None
    theirs = carry.read_block(log, state.window, state.query_id, entry.position)
    # SAFETY(folder-same-plan) §12: a folder is used only if it plans N as the log holds it
    if folder.other_input(theirs, entry.files, place, last) is not None:
        return "it gave the number of a microbatch in the log to other input"
    # Spark would read its input again, and another machine that went on may have archived it.
    # SAFETY(folder-has-commit) §12: a folder is used only if it holds the log's last commits/N
    if theirs and commits != last and offsets == last and not _lost(entry):
        return "it lacks the commit of its last microbatch, which is in the log"
    return None


def _lost(entry: Checkpoint) -> list[str]:
    """List the files that no record carries."""
    return [name for name, (where, _) in entry.files.items() if where == NOWHERE]


def _files(log: LogStore, state: State) -> dict[str, bytes]:
    """Read the files that the log carries: 1 GET, and 1 for each compacted list.

    Raises:
        OptionError: the log does not carry all of them.
    """
    last, entry = state.batch_id, state.entry
    if last < 0:
        return {}
    why = f"nothing of its checkpoint is in the log. {_GO_ON}"
    if entry is not None:
        why = _NOT_CARRIED.get(entry.reason, "")
        if lost := _lost(entry):
            why = (
                f"{lost[0]} was larger than checkpointMaxBytes. Start the query on the machine "
                "where it ran, with a larger checkpointMaxBytes"
            )
    if entry is None or why:
        raise OptionError(
            f"cannot rebuild the checkpoint of query {state.query_id} from {log.url} (microbatch "
            f"{last}): {why}"
        )
    files = carry.read_block(log, state.window, state.query_id, entry.position)
    for position in sorted({where for where, _ in entry.files.values()} - {entry.position}):
        carried = carry.read_block(log, state.window, state.query_id, position)
        files |= {n: carried[n] for n, (where, _) in entry.files.items() if where == position}
    # Done: the log has it. Else Spark would read its input again, which may be archived by now.
    # Spark writes it as it wrote the one before, but for the name of a sink that begins with it.
    done = files.get(f"commits/{last - 1}", b'v1\n{"nextBatchWatermarkMs":0}')
    check_commit(done)
    # SAFETY(rebuild-commit) §12: a rebuilt folder holds commits/N
    # SAFETY(rebuild-offsets) §12: a rebuilt folder holds offsets/N
    # SAFETY(rebuild-from-last) §12: a folder is rebuilt from the query's last record
    return {**files, f"commits/{last}": done}


def _query_id(log_id: str, name: str) -> str:
    try:
        return str(uuid.UUID(name))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"sparkwal:{log_id}/{name}"))


def _place(log: LogStore, name: str, given: str | os.PathLike[str] | None) -> Path:
    if given is not None:
        given = os.fspath(given)
        if (place := folder.local_folder(given)) is not None:
            return place
        raise OptionError(f"folder is {given!r}; a folder on this machine is expected")
    state = state_folder()
    if state is None:
        raise OptionError("this user has no home folder: give sparkwal.checkpoint a folder")
    place = state.parent.joinpath(*_default(log, name))
    return place if place.exists() else _by_another_endpoint(place, log, name) or place


def _by_another_endpoint(place: Path, log: LogStore, name: str) -> Path | None:
    """The default folder of this query of this log by another endpoint or profile, if there is one.

    If folders of queries with this name exist, it costs 1 LIST and 1 GET.
    """
    found = {each: owner_of(each) for each in place.parent.glob(f"{place.name[:-16]}*")}
    of_name = {each: owner.log_id for each, owner in found.items() if owner and owner.name == name}
    log_id = _log_id(find_head(log)) if of_name else None
    return next((each for each in sorted(of_name) if of_name[each] == log_id), None)


def _log_id(head: Head) -> str | None:
    return head.live.header.log_id if head.live else None


def _default(log: LogStore, name: str) -> tuple[str, str, str]:
    """The default folder of a query, which no other query has."""
    # In a container without LANG a JVM cannot name a file beyond ASCII.
    shown = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:40].lstrip(".")
    named = uuid.uuid5(uuid.NAMESPACE_URL, f"{log.identity}\0{name}").hex[:16]
    return "sparkwal", "checkpoints", f"{shown}-{named}"


def _check_apart(place: Path, given: SinkOptions) -> None:
    """Raise OptionError if replacing the folder would delete the log."""
    for theirs in folder.log_folders(given.path, given.sequencer):
        if overlap(str(place), str(theirs)):
            raise OptionError(
                f"the log {given.log_path} and the checkpoint {place} share a folder ({theirs}). "
                "Nothing was written: give sparkwal.checkpoint a folder beside the log"
            )
    # A link is replaced where it is, not where it leads to.
    for each in (os.path.realpath(place), f"{os.path.realpath(place.parent)}/{place.name}"):
        kind, other = enclosing_data(Path(each)) or ("", each)
        inside = os.path.relpath(each, other)
        # VACUUM leaves alone what lies there.
        if kind and not (kind == "Delta table" and inside.startswith("_checkpoint")):
            raise OptionError(
                f"the checkpoint {place} would lie in {other}, which is a {kind}. Nothing was "
                "written: give sparkwal.checkpoint a folder beside it, or _checkpoints in a table"
            )


def _check_ours(place: Path, owner: Owner | None, log: LogStore, head: Head, name: str) -> None:
    """Raise OptionError for a folder whose content does not belong to this query."""
    if owner is not None:
        # One bucket has several endpoints; the id in its records is the log's own.
        is_of_log = owner.log == log.identity or owner.log_id == _log_id(head)
        if not is_of_log or owner.name != name:
            raise OptionError(
                f"{place} is the checkpoint of query {owner.name!r} of {owner.log}: give each "
                "query a folder of its own"
            )
        return
    # Spark made it for the query of this id, or only the owner's note in our default is damaged.
    if folder.query_of(place) == _query_id("", name) or place.parts[-3:] == _default(log, name):
        return
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise OptionError(
            f"{place} is not empty, and sparkwal.checkpoint did not make it: give another folder. "
            "(A query that was started with it goes on by its id as the name: the one in "
            f"{place / names.METADATA})"
        )


def _report_slow_files() -> None:
    # Without an import: this works where there is no Spark.
    spark_sql = sys.modules.get("pyspark.sql")
    session = spark_sql.SparkSession.getActiveSession() if spark_sql else None
    if session is not None and session.conf.get(FILE_MANAGER, None) is None:
        advice = (
            "Spark forks two processes for each file of this checkpoint; set this before the query "
            "starts, where no checkpoint of the session is on an object store"
        )
        manager = checkpoint_file_manager(session.version)
        events.emit(events.SlowCheckpointFiles(FILE_MANAGER, manager, advice))
