"""Opens a journal: reads the folder, repairs what a crash tore, and continues after the last entry.

`scan_folder` changes no file. Then the caller asks the log for this producer's last sequence, and
`Opening.begin` makes the folder fit both. If it crashes, the next opening finds the same entries.
"""

import secrets
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from sparkwal import events
from sparkwal.errors import InvalidLogError, JournalRenameError, OptionError
from sparkwal.journal import files
from sparkwal.journal.files import Cursor, segment_id, segment_name
from sparkwal.journal.journal import DEFAULT_SLOTS, Journal, Publish, Settings
from sparkwal.journal.open_segments import Segments
from sparkwal.journal.quarantine import Incident, Quarantine
from sparkwal.journal.scanning import Contents, Damage
from sparkwal.journal.segment import VERSION, Header, Segment
from sparkwal.journal.storage import QUARANTINE, Folder, Handle, blocks, sync_folder


@dataclass(frozen=True)
class Owner:
    """The log and producer whose entries a journal takes.

    Attributes:
        log: the log's path, for messages.
        log_id, producer: the names.
        durable: the producer's newest sequence in the log; −1 without one.
        schema: describes the content of new entries.
    """

    log: str
    log_id: str
    producer: str
    durable: int
    schema: bytes

    @property
    def name(self) -> tuple[str, str]:
        return self.log_id, self.producer


class Opening:
    """A folder that this owner may use. The constructor changes no file.

    Raises:
        OptionError: the folder holds entries of another log or producer that their log may lack, or
            more entries wait than `slots`.
        InvalidLogError: the log lacks entries that it had acknowledged.
    """

    def __init__(self, folder: Folder, contents: Contents, owner: Owner) -> None:
        self._folder = folder
        self._contents = contents
        self._owner = owner
        self._quarantine = contents.quarantine
        self._rejected = contents.rejected
        if (self._quarantine.log_id, self._quarantine.producer) != owner.name:
            self._quarantine = Quarantine(folder, *owner.name)
        # Whether the folder belongs to another owner, whose log has all of its entries.
        self._is_foreign = self._check()

    def begin(self, settings: Settings, publish: Publish) -> Journal:
        """Repair the folder and open the journal.

        Raises:
            JournalError: a step failed.
            OptionError: the disk is full.
        """
        self._publish = publish
        try:
            return self._begin(settings)
        except OSError as error:
            if files.is_full(error):
                raise files.no_room(self._folder.path) from error
            raise files.failed(self._folder.path, error) from error

    def _begin(self, settings: Settings) -> Journal:
        contents = self._contents
        owner = self._owner
        folder = self._folder
        if self._rejected:
            self._publish(events.CursorRejected(path=folder.path, reason=self._rejected))
        for name in contents.stale:
            folder.remove(name)
        if contents.damage is not None:
            self._repair(contents.damage)
        # SAFETY(drop-what-log-has) §11: if the log has every entry, the journal begins anew after
        # the log's last sequence
        if self._is_foreign or (contents.segments and contents.last <= owner.durable):
            # Another journal may have sent later sequences, so start after the log's last one.
            self._remove_all()
        # SAFETY(mark-first) §11: a journal's first file is the mark
        if files.ACCEPTED not in folder.names():
            files.keep_mark(folder, 0, -1)
        with ExitStack() as failed:
            file = failed.enter_context(self._open_last_segment())
            newest = contents.segments[-1]
            # SAFETY(mark-at-opening) §11: each opening syncs the mark of all that it read
            files.keep_mark(folder, newest.header.id, newest.last)
            self._reopen()
            segments = Segments(folder, contents.segments, contents.slots, file, contents.next_id)
            files.keep_reserve(folder)
            acked = max(owner.durable, contents.first - 1)
            journal = Journal(folder, settings, segments, self._quarantine, acked, self._publish)
            failed.pop_all()
        waiting = max(0, journal.last - owner.durable)
        self._publish(events.JournalOpened(folder.path, waiting, journal.size, journal.last))
        return journal

    def _check(self) -> bool:
        self._check_gap()
        contents = self._contents
        owner = self._owner
        path = self._folder.path
        cursor, segments = contents.cursor, contents.segments
        is_foreign = cursor is not None and cursor.owner != owner.name
        if is_foreign:
            self._rejected = "it is of another log or another producer"
        elif cursor is not None and cursor.sequence > owner.durable:
            self._rejected = f"it is at {cursor.sequence}, ahead of the log's {owner.durable}"
        # SAFETY(own-entries-only) §11: only entries of this log and producer are sent
        if segments and segments[0].header.owner != owner.name:
            self._check_unused(segments[0].header)
            return True
        if not segments and contents.damage and cursor is not None and is_foreign:
            raise OptionError(
                f"journal {path} is damaged, and its cursor is of log {cursor.log_id}, producer "
                f"{cursor.producer!r}: the owner of its entries is unknown. Open it once with "
                "that log and producer, or choose another folder"
            )
        acknowledged = max(contents.first - 1, contents.done(owner.name))
        # The journal sends again the entries that it still holds, even if the cursor is behind
        # them.
        sends_again = segments and owner.durable >= contents.first - 1
        if acknowledged > owner.durable and not sends_again:
            raise InvalidLogError(
                f"{owner.log} has entries of producer {owner.producer!r} up to {owner.durable}, "
                f"and had acknowledged those up to {acknowledged}, which the journal {path} has "
                "removed: the log was restored from an older copy. Restore a newer one. To "
                "continue without those, choose another journal folder, and append there the "
                "entries that wait in this one (sparkwal.appender.salvage.intact_rows reads it)"
            )
        live = contents.last - max(owner.durable, contents.first - 1)
        if live > contents.slots:
            raise OptionError(
                f"{live} entries wait in {path}, and journalSlots is {contents.slots}: open it "
                "with more slots, you may lower journalSlots once these are sent"
            )
        return False

    def _check_unused(self, header: Header) -> None:
        """Check that a folder of another owner holds no entry that its log may lack.

        Raises:
            OptionError: it holds such entries.
        """
        contents, owner = self._contents, self._owner
        done = max(contents.first - 1, contents.done(header.owner))
        last, losses = max(done, contents.last), contents.quarantine
        lost = losses.lost(last) if (losses.log_id, losses.producer) == header.owner else range(0)
        # SAFETY(foreign-never-dropped) §11: waiting entries of another log or producer are never
        # dropped
        if last == done and contents.damage is None and not lost:
            return
        if header.producer != owner.producer:
            whose = f"of producer {header.producer!r}, and this is {owner.producer!r}"
        else:
            whose = (
                f"of log {header.log_id}, and {owner.log} is log {owner.log_id}: it was deleted or "
                "recreated, or this is another path"
            )
        also = f" and {len(lost)} lost to damage" if lost else ""
        raise OptionError(
            f"journal {self._folder.path} holds {last - done} entries{also} {whose}. Open it once "
            "with the former, or choose another folder: no entry is lost, and "
            "sparkwal.appender.salvage.intact_rows reads it"
        )

    def _check_gap(self) -> None:
        """Report entries that are missing between the log and the first segment as damage."""
        contents, owner = self._contents, self._owner
        acked = max(owner.durable, contents.done(owner.name))
        segments, damage = contents.segments, contents.damage
        if not segments or segments[0].header.owner != owner.name or contents.first - 1 <= acked:
            return
        names = [segment.name for segment in segments]
        newest, complete = contents.last, contents.last + 1 - contents.first
        if damage is not None:
            names += [name for name in (damage.name, *damage.also) if name not in names]
            newest, complete = max(newest, damage.newest), complete + damage.complete
        reason = f"entries {acked + 1} to {contents.first - 1} are missing"
        contents.damage = Damage(names[0], acked + 1, reason, complete, newest, also=names[1:])
        contents.segments = []

    def _repair(self, damage: Damage) -> None:
        path, name = self._folder.path, damage.name
        sequence, reason = damage.sequence, damage.reason
        if damage.torn:
            segment = self._contents.segments[-1]
            with self._open(segment.name) as file:
                file.writer.truncate(segment.size)
                file.sync()
            self._publish(events.TailTruncated(path, segment.header.id, sequence, reason))
            return
        lost = range(max(sequence, self._owner.durable + 1), self._most_accepted(damage) + 1)
        names = {*self._folder.names()}
        aside = {
            damaged: _free_name(damaged, names)
            for damaged in (name, *damage.also)
            if damaged in names
        }
        first, last = (lost[0], lost[-1]) if lost else (-1, -1)
        unknown = last - max(damage.newest, first - 1) if damage.more else 0
        if lost:
            incident = Incident(name, first, last, tuple(aside.values()), reason, unknown)
            # SAFETY(loss-is-noted) §11: a loss is noted durably and reported at each opening until
            # it is sent again
            self._quarantine = self._quarantine.add(incident)
        self._set_aside(damage, aside)
        self._publish(events.ReplayStopped(path, name, sequence, reason, damage.complete))
        self._publish(events.Quarantined(path, ", ".join(aside), first, last, unknown))

    def _most_accepted(self, damage: Damage) -> int:
        """The highest sequence that may have been accepted. At most `slots` entries wait."""
        # SAFETY(unknown-is-lost) §11: what may have been accepted is reported as lost
        if not damage.more:
            return damage.newest
        slots = max(self._contents.slots, DEFAULT_SLOTS)
        return max(damage.newest, self._owner.durable + slots)

    def _set_aside(self, damage: Damage, aside: dict[str, str]) -> None:
        """Move the damaged file and all files after it to quarantine, and keep a copy of its intact
        part.

        Copy first, and move the damaged file last: then an opening after a crash finds the same
        damage.
        """
        folder = self._folder
        segments = self._contents.segments
        name = damage.name
        newest = segment_id([name, *damage.also][-1])
        self._contents.next_id = max(self._contents.next_id, newest + 1)
        if damage.newest >= damage.sequence:
            files.keep_mark(folder, newest, damage.newest)
        elif damage.more:
            # The incident is noted, so the mark may start again.
            files.keep_mark(folder, newest, -1)
        if segments and segments[-1].name == name:
            damaged = segments.pop()
            if damaged.last >= damaged.header.first:
                header = self._header(
                    damaged.header.first, damaged.header.schema, damaged.header.salt
                )
                with closing(folder.read(name)) as reader:
                    entries = blocks(reader, damaged.begin, damaged.size)
                    begin = files.make_segment(folder, header, entries)
                end = damaged.size + begin - damaged.begin, damaged.last
                segments.append(Segment(segment_name(header.id), header, begin, end))
        for old_name, new_name in reversed(aside.items()):
            try:
                folder.rename(old_name, new_name)
            except OSError as error:
                raise JournalRenameError(
                    f"{folder.path}/{old_name} was not moved to {QUARANTINE} ({error})"
                ) from error
            sync_folder(folder)

    def _remove_all(self) -> None:
        """Remove all segments. The cursor moves first: after a crash it marks the segments as
        old."""
        owner = self._owner
        contents = self._contents
        number = self._contents.next_id
        first = cursor = Cursor(*owner.name, owner.durable, number, number)
        last_owner = contents.segments[0].header.owner if contents.segments else owner.name
        if last_owner != owner.name:
            # A cursor covers only segments of its owner, so first write one of theirs.
            first = Cursor(*last_owner, contents.last, number, number)
        files.write_cursor(self._folder, first)
        for segment in contents.segments:
            self._folder.remove(segment.name)
        contents.segments, contents.cursor = [], cursor
        if first is not cursor:
            sync_folder(self._folder)
            files.write_cursor(self._folder, cursor)

    def _reopen(self) -> None:
        """Remove the end of the closed journal from the cursor."""
        cursor = self._contents.cursor
        if cursor is not None and cursor.ends is not None:
            # SAFETY(open-is-not-closed) §11: an open journal's cursor does not name its last entry
            reopened = replace(cursor, ends=None, next_segment=self._contents.next_id)
            files.write_cursor(self._folder, reopened)

    def _header(self, first: int, schema: bytes, salt: int | None = None) -> Header:
        contents = self._contents
        number, contents.next_id = contents.next_id, contents.next_id + 1
        # SAFETY(salt-per-file) §11: each segment has its own salt, so an entry of another file is
        # invalid
        salt = secrets.randbits(32) if salt is None else salt
        return Header(number, *self._owner.name, contents.slots, first, salt, schema, VERSION)

    def _open_last_segment(self) -> closing[Handle]:
        """Open the segment for the next entry: the last one, or a new one."""
        contents = self._contents
        owner = self._owner
        folder = self._folder
        last = contents.segments[-1] if contents.segments else None
        if last is not None:
            self._rewrite(last)
        is_intact = contents.damage is None or contents.damage.torn
        needed = owner.schema, contents.slots
        if last is not None and is_intact and (last.header.schema, last.header.slots) == needed:
            # The process that created the file may have died before its name was durable.
            # SAFETY(sync-inherited-name) §11: the opening syncs the folder before it appends to a
            # file that another process made
            sync_folder(folder)
            return self._open(last.name)
        # SAFETY(sequence-after-log) §11: sequences of an empty journal continue where the log ends
        first = last.last + 1 if last is not None else owner.durable + 1
        header = self._header(first, owner.schema)
        begin, name = files.make_segment(folder, header), segment_name(header.id)
        contents.segments.append(Segment(name, header, begin, (begin, first - 1)))
        return self._open(name)

    def _open(self, name: str) -> closing[Handle]:
        return closing(Handle(self._folder.open(name), name))

    def _rewrite(self, segment: Segment) -> None:
        """Write a segment's bytes again and sync them, unless the cursor proves that they are
        synced.

        Reading proves only that memory has the bytes. After a failed fsync Linux marks pages as
        clean that are not on the disk, and syncs them only if they are written again. The bytes
        stay the same, so a crash in between changes none.
        """
        cursor, ends = self._contents.cursor, [segment.header.id, segment.size]
        if cursor is not None and cursor.owner == self._owner.name and cursor.ends == ends:
            return
        with self._open(segment.name) as file, closing(self._folder.read(segment.name)) as reader:
            offset = 0
            for part in blocks(reader, 0, segment.size):
                # SAFETY(rewrite-before-sync) §11: the opening writes what it read again before it
                # syncs
                file.writer.write_at(offset, part)
                offset += len(part)
            # SAFETY(sync-what-was-read) §11: what the opening read counts only after a sync
            file.sync()


def _free_name(name: str, names: set[str]) -> str:
    """A free name in quarantine. A restored copy of the folder may hold a file of the first one."""
    free = f"{QUARANTINE}/{name}"
    count = 1
    while free in names:
        free, count = f"{QUARANTINE}/{name}.{count}", count + 1
    return free
