"""Opening a journal: read what it holds, mend what a crash tore, and continue there.

`scan_folder` changes nothing. Then the caller asks the log for this producer's last sequence, and
`begin` makes the folder fit both. If it crashes, the next opening finds no less.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from sparkwal import events
from sparkwal.errors import JournalRenameError, OptionError
from sparkwal.events import Event
from sparkwal.journal import files
from sparkwal.journal.files import Cursor, segment_id, segment_name
from sparkwal.journal.journal import Journal
from sparkwal.journal.owner import Owner, check_owner
from sparkwal.journal.quarantine import Incident, Quarantine
from sparkwal.journal.scanning import Contents, Damage, Segment
from sparkwal.journal.segment import Header
from sparkwal.journal.segments import Segments
from sparkwal.journal.settings import Settings
from sparkwal.journal.storage import QUARANTINE, Folder, Handle, blocks, sync_folder


@dataclass(frozen=True)
class Opened:
    """A journal that is open. `lost` are accepted sequences that cannot be read: send them
    again, in this order, before anything else. Each opening reports them until then."""

    journal: Journal
    lost: range
    quarantine: Quarantine


def begin(
    folder: Folder,
    contents: Contents,
    owner: Owner,
    settings: Settings,
    publish: Callable[[Event], None],
) -> Opened:
    """Mend the folder and go on with it. Raises OptionError if the journal holds entries of another
    log or producer that their log may lack, or more than `slots` wait; InvalidLogError if the log
    lacks entries that it had acknowledged; JournalError if the disk failed."""
    try:
        return _Opening(folder, contents, owner, settings, publish).run()
    except OSError as error:
        if files.is_full(error):
            raise files.no_room(folder.path) from error
        raise files.failed(folder.path, error) from error


def check(folder: Folder, contents: Contents, owner: Owner) -> None:
    """Raises what `begin` would raise, disk errors aside. Changes nothing."""
    _Opening(folder, replace(contents), owner, Settings(), lambda event: None).check()


class _Opening:
    def __init__(
        self,
        folder: Folder,
        contents: Contents,
        owner: Owner,
        settings: Settings,
        publish: Callable[[Event], None],
    ) -> None:
        self._folder, self._contents, self._owner = folder, contents, owner
        self._settings, self._publish = settings, publish
        self._segments, self._quarantine = list(contents.segments), contents.quarantine
        if (contents.quarantine.log_id, contents.quarantine.producer) != owner.name:
            self._quarantine = Quarantine(folder, *owner.name)
        self._next_id = contents.next_id

    def run(self) -> Opened:
        contents, owner = self._contents, self._owner
        # Every check that refuses comes first, and changes nothing.
        foreign = self.check()
        for name in contents.stale:
            self._folder.remove(name)
        if contents.damage is not None:
            self._mend(contents.damage)
        # SAFETY(drop-what-log-has) §11: if the log has every entry, the journal begins anew after
        # the log's last sequence
        if foreign or (self._segments and contents.last <= owner.durable):
            # The log has all entries. Others may have sent later sequences: begin anew.
            self._remove_all()
        with ExitStack() as failed:
            writer = self._go_on(failed)
            segments = Segments(self._folder, self._segments, contents.ring, writer, self._next_id)
            files.keep_reserve(self._folder)
            acked = max(owner.durable, segments.oldest.header.first - 1)
            journal = Journal(self._folder, self._settings, segments, acked, self._publish)
            failed.pop_all()
        last, waiting = journal.last, max(0, journal.last - owner.durable)
        self._publish(
            events.JournalOpened(
                path=journal.path, entries=waiting, bytes=journal.size, sequence=last
            )
        )
        return Opened(journal, self._quarantine.lost(last), self._quarantine)

    def check(self) -> bool:
        """Whether the folder belongs to another owner, who needs none of its entries any more."""
        contents, owner = self._contents, self._owner
        self._look_for_gap()
        foreign = check_owner(self._folder.path, contents, owner, self._publish)
        live = 0 if foreign else max(0, contents.last - max(owner.durable, contents.first - 1))
        if live > contents.ring.slots:
            raise OptionError(
                f"{live} entries wait in {self._folder.path}, and journalSlots is "
                f"{contents.ring.slots}: open it with more, they may be fewer once these are sent"
            )
        return foreign

    def _look_for_gap(self) -> None:
        """Report entries that are missing between the log and the first segment as damage."""
        contents, owner = self._contents, self._owner
        if not self._segments or not owner.owns(self._segments[0].header):
            return
        known = owner.durable
        if contents.cursor is not None and owner.owns(contents.cursor):
            known = max(known, contents.cursor.sequence)
        if contents.first - 1 <= known:
            return
        damage = contents.damage
        after = [each.name for each in self._segments]
        newest, complete = contents.last, contents.last + 1 - contents.first
        if damage is not None:
            after += [each for each in (damage.name, *damage.also) if each not in after]
            newest, complete = max(newest, damage.newest), complete + damage.complete
        contents.damage = Damage(
            name=after[0],
            sequence=known + 1,
            reason=f"entries {known + 1} to {contents.first - 1} are not there",
            complete=complete,
            newest=newest,
            also=after[1:],
        )
        contents.segments, self._segments = [], []

    def _mend(self, damage: Damage) -> None:
        path, name = self._folder.path, damage.name
        sequence, reason = damage.sequence, damage.reason
        if damage.torn:
            segment = self._segments[-1]
            with self._writer(segment.name) as writer:
                writer.truncate(segment.size)
                writer.sync()
            self._publish(
                events.TailTruncated(
                    path=path, segment=segment.header.id, sequence=sequence, reason=reason
                )
            )
            return
        lost = range(max(sequence, self._owner.durable + 1), damage.newest + 1)
        there = set(self._folder.names())
        aside = {
            each: self._free(f"{QUARANTINE}/{each}")
            for each in (name, *damage.also) if each in there
        }  # fmt: skip
        first, last = (lost[0], lost[-1]) if lost else (-1, -1)
        if lost:
            incident = Incident(name, first, last, tuple(aside.values()), reason)
            # SAFETY(loss-is-noted) §11: a loss is noted durably and reported at each opening until
            # it is sent again
            self._quarantine = self._quarantine.add(incident)
        self._set_aside(damage, aside)
        self._publish(
            events.ReplayStopped(
                path=path, file=name, sequence=sequence, reason=reason, complete=damage.complete
            )
        )
        names = ", ".join(aside)
        self._publish(events.Quarantined(path=path, files=names, first=first, last=last))

    def _set_aside(self, damage: Damage, aside: dict[str, str]) -> None:
        """Move the damaged file and all after it to quarantine; keep a copy of its intact part.
        Copy first, and move the damaged file last: an opening after a crash finds the same."""
        name = damage.name
        if damage.newest >= damage.sequence:
            newest = segment_id([name, *damage.also][-1])
            files.write_mark(self._folder, newest, damage.newest)
        if self._segments and self._segments[-1].name == name:
            kept = self._segments.pop()
            if kept.last >= kept.header.first:
                self._segments.append(self._copy(kept))
        for each, free in reversed(aside.items()):
            try:
                self._folder.rename(each, free)
            except OSError as error:
                raise JournalRenameError(
                    f"{self._folder.path}/{each} was not moved to {QUARANTINE} ({error})"
                ) from error
            sync_folder(self._folder)

    def _copy(self, segment: Segment) -> Segment:
        header = self._header(segment.header.first, segment.header.schema, segment.header.salt)
        with closing(self._folder.read(segment.name)) as reader:
            entries = blocks(reader, segment.begin, segment.size)
            begin = files.make_segment(self._folder, header, entries)
        by = begin - segment.begin
        sequences = range(segment.header.first, segment.last + 1)
        self._contents.ring.shift(sequences, by, into=header.id)
        name = segment_name(header.id)
        return Segment(name, header, begin, segment.size + by, segment.last)

    def _free(self, name: str) -> str:
        """A free name: an older copy of the folder may have left a file of this name."""
        names, free, count = set(self._folder.names()), name, 1
        while free in names:
            free, count = f"{name}.{count}", count + 1
        return free

    def _remove_all(self) -> None:
        """Remove all segments. The cursor goes first: after a crash it marks them as old."""
        owner, number = self._owner, self._next_id
        first = cursor = Cursor(*owner.name, owner.durable, number, number)
        if self._segments and not owner.owns(theirs := self._segments[0].header):
            # A cursor covers only its owner's segments: first write one of their owner.
            first = Cursor(*theirs.owner, self._contents.last, number, number)
        files.write_cursor(self._folder, first)
        for segment in self._segments:
            self._folder.remove(segment.name)
        self._segments = []
        if first is not cursor:
            sync_folder(self._folder)
            files.write_cursor(self._folder, cursor)

    def _header(self, first: int, schema: bytes, salt: int | None = None) -> Header:
        number, self._next_id = self._next_id, self._next_id + 1
        # SAFETY(salt-per-file) §11: each segment has its own salt, so an entry of another file is
        # invalid
        salt = secrets.randbits(32) if salt is None else salt
        return Header(number, *self._owner.name, self._contents.ring.slots, first, salt, schema)

    def _go_on(self, failed: ExitStack) -> Handle:
        """The writer of the segment that takes the next entry; `failed` closes it."""
        last = self._segments[-1] if self._segments else None
        if (
            last is not None
            and last.header.schema == self._owner.schema
            and last.header.slots == self._contents.ring.slots
            and (self._contents.damage is None or self._contents.damage.torn)
        ):
            handle = failed.enter_context(self._writer(last.name))
            if not self._is_synced(last):
                self._write_again(last, handle)
            # The process that made the file may have died before its name was durable.
            # SAFETY(sync-inherited-name) §11: the opening syncs the folder before it appends to a
            # file that another process made
            sync_folder(self._folder)
            return handle
        if last is not None and not self._is_synced(last):
            with self._writer(last.name) as handle:
                self._write_again(last, handle)
        # SAFETY(sequence-after-log) §11: sequences of an empty journal continue where the log ends
        header = self._header(
            last.last + 1 if last is not None else self._owner.durable + 1, self._owner.schema
        )
        begin = files.make_segment(self._folder, header)
        name = segment_name(header.id)
        self._segments.append(Segment(name, header, begin, begin, header.first - 1))
        return failed.enter_context(self._writer(name))

    def _writer(self, name: str) -> closing[Handle]:
        return closing(Handle(self._folder.open(name), name))

    def _is_synced(self, segment: Segment) -> bool:
        cursor = self._contents.cursor
        return (
            cursor is not None
            and self._owner.owns(cursor)
            and cursor.ends == (segment.header.id, segment.size)
        )

    def _write_again(self, segment: Segment, handle: Handle) -> None:
        """Put a segment's bytes on the disk: reading them proves only that memory has them. After a
        failed fsync Linux marks pages as clean that are not on the disk, and syncs them only if
        they are written again. The bytes stay the same, so a crash in between changes none."""
        with closing(self._folder.read(segment.name)) as reader:
            offset = 0
            for part in blocks(reader, 0, segment.size):
                # SAFETY(rewrite-before-sync) §11: the opening writes what it read again before it
                # syncs
                handle.write_at(offset, part)
                offset += len(part)
        # SAFETY(sync-what-was-read) §11: what the opening read counts only after a sync
        handle.sync()
