"""What a commit record carries of its query's checkpoint, and when a replay is the same."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from isal.isal_zlib import crc32

from sparkwal import events
from sparkwal.checkpoints import folder, names
from sparkwal.checkpoints.offsets import check_commit
from sparkwal.errors import DivergedCheckpointError, InvalidLogError, OptionError
from sparkwal.format import arrowfile, keys
from sparkwal.format.content import Content
from sparkwal.format.header import HERE, NOWHERE, REMOTE, STATEFUL, Checkpoint, CommitHeader
from sparkwal.protocol.archive import recall
from sparkwal.protocol.commit_record import Carried
from sparkwal.protocol.holds import Holds, Span
from sparkwal.protocol.leadership import Leadership
from sparkwal.protocol.repeated import other_rows
from sparkwal.protocol.slots import OpenLog, fetch_slot, open_slot
from sparkwal.store.base import LogStore
from sparkwal.store.path import state_folder

_LONGEST = 4 * 2**30  # of the JSON text
LARGEST = _LONGEST // 6  # of all files together: JSON writes a byte as six characters at most
_CHUNK = 2**20


@dataclass(frozen=True)
class StreamCheckpoint:
    """The checkpoint of one query, as its commits see it (`protocol.commit.Carrier`)."""

    location: str
    query_id: str
    max_bytes: int

    def _folder(self) -> Path | None:
        """Where it is on this machine's disk; None elsewhere."""
        path = folder.local_folder(self.location)
        if path is None:
            return None
        # By its id: the same path may name another folder where Spark's default is not the disk.
        found = folder.query_of(path)
        if found != self.query_id and folder.owner_of(path) is not None:
            raise OptionError(
                f"this query is {self.query_id}, but {path} is the checkpoint of query {found}: "
                "Spark looks for the path on another file system (fs.defaultFS), or the folder was "
                "made anew while the query ran. Nothing was written. Call sparkwal.checkpoint, "
                "put file:// before what it gives, and start again"
            )
        return path if found == self.query_id else None

    def check_promise(self) -> None:
        """Raises OptionError where the log cannot carry what a folder of `sparkwal.checkpoint`
        promises. At every microbatch, as a stateful query may have no rows for hours."""
        path = self._folder()
        if path is not None and (path / names.STATE).is_dir() and folder.owner_of(path):
            raise stateful_refused()

    def capture(self, batch_id: int, last: Checkpoint | None) -> Carried:
        """What Spark wrote for this microbatch. Makes no request. Raises DivergedCheckpointError
        for other input before it than the log holds, and for a replaced or deleted folder."""
        path = self._folder()
        if path is None:
            return self._remote(batch_id, last)
        if (path / names.STATE).is_dir():
            return Carried(b"", STATEFUL)
        sizes, owner = folder.microbatch_files(path, batch_id), folder.owner_of(path)
        if last is None and owner is not None and (name := names.foreign(path)) is not None:
            raise OptionError(
                f"{name!r} in {path} is no part of a checkpoint, so the log would not carry it and "
                "sparkwal.checkpoint could not recreate the folder. Nothing was written. Move it "
                "elsewhere; if an option of a source names it, let that name a folder elsewhere"
            )
        needed = {f"offsets/{number}" for number in (batch_id, batch_id - 1) if number >= 0}
        # SAFETY(carry-whole-folder) §12: a record carries no folder without offsets/N and N−1
        if not needed <= sizes.keys() and owner is not None:
            # Spark starts with both or not at all, so nobody could rebuild from the record.
            raise DivergedCheckpointError(
                f"{path} lacks {', '.join(sorted(needed - sizes.keys()))}: another start of this "
                f"query has replaced it with what the log knew. Nothing of microbatch {batch_id} "
                "was committed. Let one of the two run, and start it with the folder that "
                "sparkwal.checkpoint(path, name) makes"
            )
        if f"offsets/{batch_id}" not in sizes:
            return self._remote(batch_id, last)
        if last is not None:
            self._check_goes_on(path, last)
        known = last.files if last else {}
        if f"commits/{batch_id - 1}" in sizes:
            check_commit((path / f"commits/{batch_id - 1}").read_bytes())
        carried = pack(sizes, lambda name: (path / name).read_bytes(), known, self.max_bytes)
        for name, (where, size) in sorted(carried.files.items()):
            if where == NOWHERE and known.get(name, (0, 0))[0] != NOWHERE:
                events.emit(events.CheckpointTooLarge(name, size, self.max_bytes))
        inputs = folder.inputs(path, batch_id, sizes)
        return replace(carried, inputs=inputs, name=owner.name if owner else "")

    def without_rows(
        self, batch_id: int, known: Callable[[], tuple[int, Checkpoint | None]], due: bool
    ) -> Carried | None:
        """What the record of a microbatch without rows carries, or None for no record: then the
        folder notes it. Makes no request. Raises what `capture` raises."""
        path = self._folder()
        if path is None or folder.owner_of(path) is None:
            return None
        before, last = known()
        # SAFETY(note-after-same-input) §12: a folder notes a microbatch without rows only after the
        # input that the log holds
        if last is not None:
            self._check_goes_on(path, last)
        # What is neither in the log nor noted may be what a log lost that was put back.
        # SAFETY(note-without-hole) §12: a folder notes a microbatch without rows only if every one
        # since N is noted or in the log
        if folder.done(path, before, last) < batch_id - 1:
            return None
        if last is not None and not due:
            # None: the folder does not say where a rebuild would begin.
            spans, note = folder.spans(path, before, batch_id), folder.note(path, batch_id, last)
            if spans is not None and self._save(path, spans, note):
                return None
        return self.capture(batch_id, last)

    def _save(self, path: Path, spans: Mapping[str, Sequence[Span]], note: bytes) -> bool:
        """False where the disk did not take it."""
        draft = path / f".{names.EMPTY}.{os.getpid()}.tmp"
        try:
            if spans:
                Holds(state_folder()).set(self.location, spans)
            draft.write_bytes(note)
            os.replace(draft, path / names.EMPTY)
        except OSError:
            return False
        return True

    def _check_goes_on(self, path: Path, last: Checkpoint) -> None:
        """Raises where the folder's last microbatch has other input than in the log: two copies of
        a folder may give one number to different files, and some would be in the log twice."""
        for name, crc in last.inputs.items():
            # Spark keeps the last hundred, and what a source has compacted not for ever.
            # SAFETY(same-input-before) §12: a folder continues only after the input in the log
            if folder.digest(path, name) not in (None, crc):
                raise DivergedCheckpointError(
                    f"the checkpoint {self.location} goes on after another {name} than the one at "
                    f"position {last.position} of the log: another copy of it was used meanwhile. "
                    + self._way_out()
                )

    def _remote(self, batch_id: int, last: Checkpoint | None) -> Carried:
        """No folder is carried. Raises where the last record had one: nobody could continue."""
        if last is not None and last.bytes > 0 and folder.local_folder(self.location) is not None:
            raise DivergedCheckpointError(
                f"the checkpoint {self.location} was deleted while query {self.query_id} ran: "
                f"microbatch {batch_id} is not in it. Nothing was written, nothing is lost: delete "
                "what is left of it and restart with the folder that "
                "sparkwal.checkpoint(path, name) makes from the log"
            )
        return Carried(b"", REMOTE)

    def check_replay(
        self, open_log: OpenLog, lead: Leadership, batch_id: int, content: Callable[[], Content]
    ) -> None:
        """Before a replay is skipped: 1 GET, of a large block 2; without offsets in the log, all
        rows of its record are read. Raises DivergedCheckpointError for other input."""
        last, entry = recall(open_log, lead, self.query_id)
        if entry is None:
            return
        # SAFETY(only-last-replays) §12: only the query's last microbatch is skipped as a replay
        log = open_log()
        if batch_id < last:
            why = f"the log has this query's microbatches up to {last}"
            raise self._diverged(log, batch_id, why)
        path = self._folder()
        if path is not None and entry.bytes:
            theirs = read_block(log, lead.window, self.query_id, entry.position)
            other = folder.other_input(theirs, entry.files, path, batch_id)
            # SAFETY(same-offsets) §12: a replay is skipped only with the log's offsets and sources
            if other is not None:
                why = f"position {entry.position} of the log holds another {other}"
                raise self._diverged(log, batch_id, why)
            if f"offsets/{batch_id}" in theirs:
                return
        rows, position = content(), entry.position
        unlike = other_rows(log, lead, self.query_id, batch_id, rows, position=position)
        # SAFETY(same-rows) §12: without offsets in the log, a replay is skipped only if its rows
        # are those of the log
        if unlike is not None:
            raise self._diverged(
                log,
                batch_id,
                f"{unlike}. (If the query itself gives other rows each time that it runs: see "
                'sparkwal help "other rows")',
            )

    def _diverged(self, log: LogStore, batch_id: int, why: str) -> DivergedCheckpointError:
        return DivergedCheckpointError(
            f"{log.url} has microbatch {batch_id} of query {self.query_id} already, with other "
            f"input than the checkpoint {self.location} plans for it: {why}. The checkpoint was "
            "restored from a backup, or another machine went on meanwhile. " + self._way_out()
        )

    def _way_out(self) -> str:
        return (
            "Nothing was written, nothing is lost: restart with the folder that "
            "sparkwal.checkpoint(path, name) makes from the log (this query's name there: the one "
            f"it has, or {self.query_id!r})"
        )


def stateful_refused() -> OptionError:
    """The error for a stateful query with a folder of `sparkwal.checkpoint`."""
    return OptionError(
        "this query is stateful, and its state is not in the log: sparkwal.checkpoint cannot "
        "rebuild it on another machine. Nothing was written. Give checkpointLocation a folder that "
        'outlives this machine, such as s3a://…: sparkwal help "a stateful query" has the settings'
    )


def log_of(path: Path) -> str | None:
    """The id of the log that a query writes with this folder of its own, as it noted."""
    match folder.read_json(path / names.LOG):
        case {"log_id": str(found)}:
            return found
    return None


def note_log(path: Path, log_id: str) -> None:
    """What `log_of` returns from now on. Without room on the disk the query goes on without."""
    draft = path / f".{names.LOG}.{os.getpid()}.tmp"
    with suppress(OSError):
        draft.write_text(json.dumps({"log_id": log_id}))
        os.replace(draft, path / names.LOG)


def pack(
    sizes: Mapping[str, int],
    read: Callable[[str], bytes],
    known: Mapping[str, tuple[int, int]],
    max_bytes: int,
) -> Carried:
    """The files in one block of at most `max_bytes`; `known` is what earlier records carry.

    A compacted list is carried once and named by the records after it. What is too large is named
    as being nowhere, the largest first, and not tried again.
    """
    files = {
        name: known[name]
        for name, size in sizes.items()
        if folder.is_compact(name) and known.get(name, (0, -1))[1] == size
    }
    left = {name: size for name, size in sizes.items() if name not in files}
    while sum(left.values()) > LARGEST or (
        len(data := encode({name: read(name) for name in left})) > max_bytes and left
    ):
        largest = max(left, key=lambda name: left[name])
        files[largest] = (NOWHERE, left.pop(largest))
    files |= {name: (HERE, size) for name, size in left.items() if folder.is_compact(name)}
    return Carried(data, "", files)


def encode(files: Mapping[str, bytes]) -> bytes:
    """JSON {name: content as Latin-1}, compressed: mostly text, and nearly the same text twice."""
    text = json.dumps({name: data.decode("latin-1") for name, data in files.items()})
    return bytes(pa.compress(text.encode(), codec="zstd", asbytes=True))


def decode(block: bytes, where: str) -> dict[str, bytes]:
    """Raises InvalidLogError for what `encode` does not make."""
    try:
        text = bytearray()
        with pa.CompressedInputStream(pa.BufferReader(block), "zstd") as stream:
            while chunk := stream.read(_CHUNK):
                text += chunk
                if len(text) > _LONGEST:
                    raise ValueError("more than `encode` ever makes")
        document = json.loads(text)
        files = {name: data.encode("latin-1") for name, data in document.items()}
    except (ValueError, AttributeError, RecursionError, OSError, pa.ArrowException):
        raise InvalidLogError(f"{where}: its checkpoint cannot be decoded") from None
    folders = {name[:at] for name in files for at, c in enumerate(name) if c == "/"}
    for name in files:
        # It becomes a path on the machine that rebuilds.
        if not names.is_carried(name) or name in folders:
            raise InvalidLogError(f"{where}: its checkpoint names a file {name!r}")
    return files


def read_block(log: LogStore, window: int, query_id: str, position: int) -> dict[str, bytes]:
    """The files that the record at `position` carries for a query: 1 GET, of large ones 2. Raises
    InvalidLogError where the record is missing, another's or damaged."""
    number = keys.slot(position, window)
    where = log.locate(number, window)
    front = fetch_slot(log, position, window)
    record = open_slot(log, position, window, front)
    if record is None or not isinstance(front, bytes):
        raise InvalidLogError(
            f"the record of position {position} of {log.url} is missing, and it holds the "
            f"checkpoint of query {query_id}"
        )
    entry = record.header.checkpoints.get(query_id)
    if not isinstance(record.header, CommitHeader) or entry is None or entry.position != position:
        raise InvalidLogError(f"{where}: it carries no checkpoint of query {query_id}")
    if not entry.bytes:
        return {}
    start = arrowfile.block_offset(record.size)
    block = front[start : start + entry.bytes]
    if len(block) < entry.bytes:
        block = log.store.get_range(log.key(number), start, entry.bytes)
    if crc32(block) != entry.crc32:
        raise InvalidLogError(f"{where}: the checkpoint in it does not match its CRC-32")
    return decode(block, where)
