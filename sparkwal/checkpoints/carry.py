"""Copies a query's checkpoint into its commit records, and compares it when Spark repeats a
microbatch."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sparkwal import events
from sparkwal.checkpoints import folder, names, query_state
from sparkwal.checkpoints.offsets import check_commit
from sparkwal.checkpoints.packing import encode as encode
from sparkwal.checkpoints.packing import pack, read_block
from sparkwal.checkpoints.replacing import replace_file
from sparkwal.errors import DivergedCheckpointError, OptionError
from sparkwal.format import versions
from sparkwal.format.content import Content
from sparkwal.format.header import (
    HERE,
    NOWHERE,
    REMOTE,
    STATEFUL,
    Checkpoint,
    Origin,
    QueryState,
)
from sparkwal.protocol.archive import recall
from sparkwal.protocol.commit_record import Carried
from sparkwal.protocol.holds import Holds, Span
from sparkwal.protocol.leadership import Leadership
from sparkwal.protocol.repeated import other_rows
from sparkwal.protocol.slots import OpenLog
from sparkwal.store.base import LogStore
from sparkwal.store.path import state_folder

# From this size on a compacted list of a source is reported whenever it has doubled.
LARGE_LIST = 2**20


@dataclass(frozen=True)
class StreamCheckpoint:
    """The checkpoint of one query. It implements `protocol.commit.Carrier`."""

    location: str
    query_id: str
    max_bytes: int

    def _folder(self) -> Path | None:
        """The checkpoint folder, or None if it is not on this machine's disk.

        Raises:
            OptionError: the path names the folder of another query here.
        """
        path = folder.local_folder(self.location)
        if path is None:
            return None
        # Compare the ids: if Spark's default file system is not the disk, the path names another
        # folder.
        query_id = folder.query_of(path)
        if query_id != self.query_id and folder.owner_of(path) is not None:
            raise OptionError(
                f"this query is {self.query_id}, but {path} is the checkpoint of query {query_id}: "
                "Spark looks for the path on another file system (fs.defaultFS), or the folder was "
                "recreated while the query ran. sparkwal wrote nothing. Call sparkwal.checkpoint, "
                "put file:// before the path that it returns, and start again"
            )
        return path if query_id == self.query_id else None

    def capture(self, batch_id: int, last: Checkpoint | None, *, again: bool = False) -> Carried:
        """Collect the files that Spark wrote for this microbatch. Makes no request.

        Args:
            batch_id: the microbatch.
            last: the entry of the query's last record.
            again: try the files again that were too large for earlier records. The first
                microbatch of a run does so, because `checkpointMaxBytes` may have changed.

        Raises:
            DivergedCheckpointError: the folder continues after other input than the log holds, or
                it was replaced or deleted.
            OptionError: the folder holds a file that is not part of a checkpoint.
        """
        path = self._folder()
        if path is None:
            return self._remote(batch_id, last)
        sizes = folder.microbatch_files(path, batch_id)
        owner = folder.owner_of(path)
        if owner is not None:
            self._check_made(path, batch_id, last, sizes)
        if f"offsets/{batch_id}" not in sizes:
            return self._remote(batch_id, last)
        self._check_same_origin(owner, last)
        if last is not None:
            self._check_same_input(path, last)
        earlier = dict(last.files) if last else {}
        if again:
            earlier = {name: entry for name, entry in earlier.items() if entry[0] != NOWHERE}
        if f"commits/{batch_id - 1}" in sizes:
            check_commit((path / f"commits/{batch_id - 1}").read_bytes())
        captured = None
        if (path / names.STATE).is_dir():
            try:
                captured = self._state(path, batch_id, last)
            except query_state.IncompleteState as missing:
                if owner is None:
                    return Carried(b"", STATEFUL)
                raise self._state_elsewhere(missing) from None
            sizes |= {name: (path / name).stat().st_size for name in captured.metadata}
        carried = pack(
            sizes,
            lambda name: (path / name).read_bytes(),
            earlier,
            self.max_bytes,
            has_state=captured is not None,
        )
        self._report(carried, earlier, last)
        inputs = folder.inputs(path, batch_id, sizes)
        origin = last.origin if last else owner.origin if owner else None
        name = owner.name if owner else ""
        since = last.since if last and last.is_whole else HERE
        has_all = all(position != NOWHERE for position, _ in carried.files.values())
        if not has_all or (captured is not None and not captured.state.base):
            since = NOWHERE
        carried = replace(carried, inputs=inputs, name=name, origin=origin, since=since)
        return (
            carried
            if captured is None
            else replace(carried, state=captured.state, state_part=captured.part)
        )

    def _check_made(
        self, path: Path, batch_id: int, last: Checkpoint | None, sizes: Mapping[str, int]
    ) -> None:
        """Check that a folder of `sparkwal.checkpoint` holds a whole checkpoint and nothing else.

        Raises:
            DivergedCheckpointError: it was replaced.
            OptionError: it holds a file that is not part of a checkpoint.
        """
        if last is None and (name := names.foreign(path)) is not None:
            raise OptionError(
                f"{name!r} in {path} is not part of a checkpoint, so the log would not carry it "
                "and sparkwal.checkpoint could not recreate the folder. sparkwal wrote nothing. "
                "Move it elsewhere; if an option of a source names it, name a folder elsewhere"
            )
        needed = {f"offsets/{number}" for number in (batch_id, batch_id - 1) if number >= 0}
        # SAFETY(carry-whole-folder) §12: a record carries no folder without offsets/N and N−1
        if not needed <= sizes.keys():
            # Spark starts only with both files or with neither, so no rebuild from this record
            # could start.
            raise DivergedCheckpointError(
                f"{path} lacks {', '.join(sorted(needed - sizes.keys()))}: another start of this "
                "query has replaced it with the checkpoint from the log. Microbatch "
                f"{batch_id} was not committed. Stop one of the two, and start the other with the "
                "folder that sparkwal.checkpoint(path, name) returns"
            )

    def _report(
        self,
        carried: Carried,
        earlier: Mapping[str, tuple[int, int]],
        last: Checkpoint | None,
    ) -> None:
        """Report files that are too large for the record, and large lists."""
        for name, (position, size) in sorted(carried.files.items()):
            if position == NOWHERE and earlier.get(name, (0, 0))[0] != NOWHERE:
                events.emit(events.CheckpointTooLarge(name, size, self.max_bytes))
            elif position == HERE and _doubled(name, size, last):
                events.emit(events.SourceListGrows(name, size))

    def _state(self, path: Path, batch_id: int, last: Checkpoint | None) -> query_state.Collected:
        """What the record carries of the state before this microbatch.

        Raises:
            IncompleteState: the folder lacks a part of it.
            OptionError: the disk refused to note what a rebuild would read again.
        """
        self._hold(path, batch_id, last.state if last else None)
        try:
            return query_state.collect(path, batch_id, last.state if last else None)
        except OSError as error:
            raise self._unreadable(error) from None

    def _hold(self, path: Path, batch_id: int, last: QueryState | None) -> None:
        """Hold the input that a rebuild would read again.

        Raises:
            OptionError: the disk refused to note it.
        """
        try:
            if spans := folder.repeated_spans(path, last, batch_id):
                Holds(state_folder()).set(self.location, spans)
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> OptionError:
        return OptionError(
            f"the state of the query in {self.location} cannot be read or noted "
            f"({error.strerror or error}). sparkwal wrote nothing: free disk space, and start "
            "again with the same checkpoint"
        )

    def _state_elsewhere(self, missing: query_state.IncompleteState) -> OptionError:
        return OptionError(
            f"the checkpoint {self.location} lacks a part of the query's state: {missing}. "
            "sparkwal wrote nothing. If executors run on other machines, they keep the state on "
            "their own disks, which the log cannot carry: set checkpointLocation to a folder that "
            "all machines share, or to one on an object store, such as s3a://…: "
            'sparkwal help "a stateful query" has the settings. If '
            "spark.sql.streaming.minBatchesToRetain is 1, Spark deletes the state that the log "
            "needs: set 2 or more. Else restart with the folder that sparkwal.checkpoint returns"
        )

    def without_rows(
        self,
        batch_id: int,
        last_record: Callable[[], tuple[int, Checkpoint | None]],
        *,
        must_carry: bool,
        again: bool = False,
    ) -> Carried | None:
        """Collect the files for the record of a microbatch without rows. Makes no request.

        Args:
            batch_id: the microbatch.
            last_record: returns the query's last microbatch in the log and the entry of its
                checkpoint.
            must_carry: the last record is so old that a new one must carry the checkpoint.
            again: see `capture`.

        Returns:
            The files, or None if no record is needed: then the folder notes the microbatch.

        Raises:
            DivergedCheckpointError: see `capture`.
            OptionError: see `capture`.
        """
        path = self._folder()
        owner = None if path is None else folder.owner_of(path)
        # In a folder that sparkwal did not make, only a state needs the notes and holds.
        if path is None or (owner is None and not (path / names.STATE).is_dir()):
            return None
        before, last = last_record()
        if before < 0 and owner is not None:
            before = owner.forked_after
        self._check_same_origin(owner, last)
        # SAFETY(note-after-same-input) §12: a folder notes a microbatch without rows only after the
        # input that the log holds
        if last is not None:
            self._check_same_input(path, last)
        # A microbatch that is neither in the log nor noted may be one that a restored log lost.
        # SAFETY(note-without-hole) §12: a folder notes a microbatch without rows only if every one
        # since N is noted or in the log
        if folder.done(path, before, last) < batch_id - 1:
            return None
        if last is not None and not must_carry:
            # Without spans the start of a rebuild is unknown, so a record must carry the folder.
            # A rebuild of a stateful query repeats the microbatch of the last record.
            spans = folder.spans(path, before - (last.state is not None), batch_id)
            note = folder.note(path, batch_id, last)
            if spans is not None and self._save(path, spans, note):
                return None
        return self.capture(batch_id, last, again=again)

    def _check_same_origin(self, owner: folder.Owner | None, last: Checkpoint | None) -> None:
        """Check that the folder was forked from the same place as the query in the log.

        Raises:
            DivergedCheckpointError: another machine began this query, from another place.
        """
        if owner is None or last is None:
            return
        begins = [origin and origin.begin for origin in (owner.origin, last.origin)]
        # SAFETY(same-fork) §12: a folder continues only a query that was forked from the same place
        if begins[0] != begins[1]:
            raise DivergedCheckpointError(
                f"the checkpoint {self.location} begins {beginning(owner.origin)}, and position "
                f"{last.position} of the log holds this query, which began "
                f"{beginning(last.origin)}: another machine began it. sparkwal wrote nothing, no "
                "row is lost: restart with the folder that sparkwal.checkpoint makes, with the "
                "same fork on each machine"
            )

    def _save(self, path: Path, spans: Mapping[str, Sequence[Span]], note: bytes) -> bool:
        """Write the note and the spans. False if the disk refused a write."""
        try:
            if spans:
                Holds(state_folder()).set(self.location, spans)
            replace_file(path, names.EMPTY, note)
        except OSError:
            return False
        return True

    def _check_same_input(self, path: Path, last: Checkpoint) -> None:
        """Compare the input of the folder's last microbatch with the log.

        Two copies of a folder may give one number to different files. Then some rows would be in
        the log twice.

        Raises:
            DivergedCheckpointError: the input differs.
        """
        for name, crc in last.inputs.items():
            # Spark keeps the last hundred offset files, and deletes what a source compacted: skip
            # missing files.
            # SAFETY(same-input-before) §12: a folder continues only after the input in the log
            if folder.digest(path, name) not in (None, crc):
                raise DivergedCheckpointError(
                    f"the checkpoint {self.location} continues after another {name} than the one "
                    f"at position {last.position} of the log: another copy of it was used "
                    "meanwhile. " + self._way_out()
                )

    def _remote(self, batch_id: int, last: Checkpoint | None) -> Carried:
        """The entry of a record that carries no folder.

        Raises:
            DivergedCheckpointError: the last record carried a folder, so this one was deleted.
        """
        if last is not None and last.bytes > 0 and folder.local_folder(self.location) is not None:
            raise DivergedCheckpointError(
                f"the checkpoint {self.location} was deleted while query {self.query_id} ran: "
                f"microbatch {batch_id} is not in it. sparkwal wrote nothing, no row is lost: "
                "delete the remaining files and restart with the folder that "
                "sparkwal.checkpoint(path, name) makes from the log"
            )
        return Carried(b"", REMOTE)

    def check_repeated(
        self, open_log: OpenLog, lead: Leadership, batch_id: int, content: Callable[[], Content]
    ) -> None:
        """Compare a microbatch that Spark repeats with the log, before the commit skips it.

        It costs 1 GET, or 2 for a large block. If the log has no offsets of the microbatch, it
        reads all rows of the record.

        Raises:
            DivergedCheckpointError: the log holds other input or other rows.
        """
        last, entry = recall(open_log, lead, self.query_id)
        path = self._folder()
        if entry is None:
            # A fork may repeat the last microbatch of the query that was forked, for its state. It
            # may be another query, so its rows are not compared.
            if path is not None and (path / names.STATE).is_dir():
                self._hold(path, batch_id, None)
            return
        # SAFETY(only-last-replays) §12: only the query's last microbatch is skipped as a replay
        log = open_log()
        if batch_id < last:
            why = f"the log has this query's microbatches up to {last}"
            raise self._diverged(log, batch_id, why)
        if path is not None and entry.bytes:
            logged = read_block(log, lead.window, self.query_id, entry.position)
            other = folder.other_input(logged, entry.files, path, batch_id)
            # SAFETY(same-offsets) §12: a replay is skipped only with the log's offsets and sources
            if other is not None:
                why = f"position {entry.position} of the log holds another {other}"
                raise self._diverged(log, batch_id, why)
            # A rebuild repeats a stateful microbatch, and its state must fit the rows in the log.
            if f"offsets/{batch_id}" in logged and entry.state is None:
                return
        rows = content()
        position = entry.position
        difference = other_rows(log, lead, self.query_id, batch_id, rows, position=position)
        # SAFETY(same-rows) §12: without offsets in the log, or with state, a replay is skipped only
        # if its rows are those of the log
        if difference is not None:
            raise self._diverged(
                log,
                batch_id,
                f"{difference}. (If the query itself produces other rows each time that it runs: "
                'see sparkwal help "other rows")',
            )
        # This machine may be new, and a rebuild on the next one repeats the microbatch too.
        if path is not None and entry.state is not None:
            self._hold(path, batch_id, None)

    def _diverged(self, log: LogStore, batch_id: int, why: str) -> DivergedCheckpointError:
        return DivergedCheckpointError(
            f"{log.url} has microbatch {batch_id} of query {self.query_id} already, with other "
            f"input than the checkpoint {self.location} plans for it: {why}. The checkpoint was "
            "restored from a backup, or another machine continued the query. " + self._way_out()
        )

    def _way_out(self) -> str:
        return (
            "sparkwal wrote nothing, no row is lost: restart with the folder that "
            "sparkwal.checkpoint(path, name) makes from the log (the query's name: the one that "
            f"it already has, or {self.query_id!r}). A changed query begins again from any "
            "position of its log: sparkwal help fork"
        )


def _doubled(name: str, size: int, last: Checkpoint | None) -> bool:
    """Whether a source's compacted list passes LARGE_LIST, or the next power of two of it."""
    parent = name.rpartition("/")[0]
    lists = last.files if last else {}
    earlier = (list_size for other, (_, list_size) in lists.items() if other.startswith(parent))
    before = max(earlier, default=0)
    return (size // LARGE_LIST).bit_length() > (before // LARGE_LIST).bit_length()


def beginning(origin: Origin | None) -> str:
    """The place where a query begins, for messages."""
    if origin is None:
        return "with the first rows of its source"
    return f"as a fork of {origin.name!r} at position {origin.position} of {origin.log}"


def log_of(path: Path) -> str | None:
    """The id of the log that the folder's query writes to, or None if the folder has no note of
    it.

    Raises:
        NewerFormatError: a newer version wrote it.
    """
    note = folder.read_json(path / names.LOG)
    versions.check_optional(versions.NOTE, note, str(path / names.LOG))
    match note:
        case {"log_id": str(log_id)}:
            return log_id
    return None


def note_log(path: Path, log_id: str) -> None:
    """Note the id for `log_of`. A full disk does not stop the query: it runs without the note."""
    with suppress(OSError):
        replace_file(path, names.LOG, json.dumps({"log_id": log_id}).encode())
