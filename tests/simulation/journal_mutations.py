"""Mutations of the journal and of what feeds the log from it (section 11)."""

from __future__ import annotations

from .mutation import Mutation

KILL = "journal: the process dies"
POWER = "journal: power is lost"
AWAY = "journal: the store is away"
DRAIN = "journal: it drains"
ROT = "journal: a byte of it changes"
OTHER = "journal: another log stands in the place of its own"
FAILS = "journal: the disk fails"
UNSYNCED = "journal: never synced"
TWIN = "journal: another appender of its producer"

MUTATIONS = [
    Mutation(
        "sync-before-return",
        POWER,
        "journal/journal.py",
        "if self._settings.sync == ALWAYS:\n            self.sync(sequence)",
        "pass",
    ),
    Mutation(
        "sync-covers-earlier",
        POWER,
        "journal/journal.py",
        "self._have_synced(newest.header.id, upto)",
        "self._have_synced(newest.header.id, self.last)",
    ),
    Mutation(
        "sync-before-rotate",
        POWER,
        "journal/journal.py",
        "self._segments.file.sync()",
        "pass",
    ),
    Mutation(
        "cursor-before-removal",
        DRAIN,
        "journal/journal.py",
        "self._checkpoint(done[-1].header.id + 1 if done else self._segments.oldest.header.id)\n",
        "pass\n",
    ),
    Mutation(
        "mark-at-opening",
        "test_what_was_accepted_before_a_loss_of_power_is_not_cut_off_as_torn",
        "journal/journal.py",
        "self._have_synced(segments.newest.header.id, self.last)",
        "self._synced = self.last",
    ),
    Mutation(
        "remove-when-acked",
        AWAY,
        "journal/open_segments.py",
        "if each.last <= acked]",
        "if each.header.first <= acked]",
    ),
    Mutation(
        "removed-stays-removed",
        DRAIN,
        "journal/scanning.py",
        "old = [name for name in live if ids[name] < cursor.first_segment]",
        "old = []",
    ),
    Mutation(
        "torn-is-last",
        "test_damage_before_complete_entries_is_no_torn_tail",
        "journal/scanning.py",
        "and not damage.complete",
        "",
    ),
    Mutation(
        "accepted-not-torn",
        ROT,
        "journal/scanning.py",
        "and not (number, damage.sequence) <= self._mark",
        "",
    ),
    Mutation(
        "content-crc",
        ROT,
        "journal/segment.py",
        "if crc32(content) != crc:",
        "if False:",
    ),
    Mutation(
        "salt-per-file",
        "test_an_entry_of_another_file_is_none",
        "journal/opening.py",
        "salt = secrets.randbits(32) if salt is None else salt",
        "salt = 0",
    ),
    Mutation(
        "sync-before-name",
        "test_what_has_a_name_is_whole",
        "journal/files.py",
        "            file.sync()\n    except OSError as error:\n        with",
        "            pass\n    except OSError as error:\n        with",
    ),
    Mutation(
        "header-readable",
        "test_a_header_that_nobody_would_read_is_not_written",
        "journal/files.py",
        "if len(head) > LARGEST_HEADER:",
        "if False:",
    ),
    Mutation(
        "reserve-frees",
        "test_a_full_disk_is_made_empty_by_what_the_log_has",
        "journal/files.py",
        "folder.remove(RESERVE)",
        "raise",
    ),
    Mutation(
        "missing-is-damage",
        "test_a_file_that_somebody_removed_is_missed",
        "journal/scanning.py",
        "if number >= there and upto >= self._next():",
        "if False:",
    ),
    Mutation(
        "loss-is-noted",
        ROT,
        "journal/opening.py",
        "self._quarantine = self._quarantine.add(incident)",
        "pass",
    ),
    Mutation(
        "unreadable-note-error",
        "test_a_note_of_what_was_lost_that_cannot_be_read_is_not_empty",
        "journal/quarantine.py",
        'raise JournalReadError(\n        f"{folder',
        'return Quarantine(folder, "", "")\n    raise JournalReadError(\n        f"{folder',
    ),
    Mutation(
        "one-incident",
        "test_what_damage_left_is_found_wherever_the_opening_that_noted_it_died",
        "journal/quarantine.py",
        "if before and before[-1].took(new.name):",
        "if False:",
    ),
    Mutation(
        "newest-incident",
        "journal: a byte of it changes, and nobody sends again",
        "journal/quarantine.py",
        "for incident in reversed(self.incidents):",
        "for incident in self.incidents:",
    ),
    Mutation(
        "undo-append",
        "test_an_append_that_a_signals_handler_ended_leaves_its_sequence_to_the_next",
        "journal/open_segments.py",
        "self.file.writer.truncate(segment.size)",
        "pass",
    ),
    Mutation(
        "sender-before-rows",
        POWER,
        "journal/files.py",
        "                file.sync()\n    except OSError as error:\n        if",
        "                pass\n    except OSError as error:\n        if",
    ),
    Mutation(
        "sender-twice",
        "test_a_flipped_bit_leaves_one_note_of_who_sent",
        "journal/files.py",
        "for place in (0, _PLACE):",
        "for place in (0,):",
    ),
    Mutation(
        "sender-wrote-it",
        TWIN,
        "appender/journal_backend.py",
        "if wrote != sender.leader_id:",
        "if False:",
    ),
    Mutation(
        "unknown-is-not-sent",
        "journal: the floor passes what it or another sent",
        "appender/journal_backend.py",
        "if confirmed != known:",
        "if False:",
    ),
    Mutation(
        "search-kept-slots",
        "journal: the floor passes what it sent",
        "appender/journal_backend.py",
        "kept = max(0, Floor(log, log_id).current() - KEPT_SLOTS)",
        "kept = Floor(log, log_id).current()",
    ),
    Mutation(
        "failed-sync-final",
        "test_after_a_failed_sync_a_handle_is_of_no_use",
        "journal/storage.py",
        "if self._poisoned:",
        "if False:",
    ),
    Mutation(
        "sync-what-was-read",
        "test_what_only_memory_had_is_on_the_disk_before_another_file_follows",
        "journal/opening.py",
        "            file.sync()\n\n\ndef _free",
        "            pass\n\n\ndef _free",
    ),
    Mutation(
        "rewrite-before-sync",
        FAILS,
        "journal/opening.py",
        "file.writer.write_at(offset, part)",
        "pass",
    ),
    Mutation(
        "sync-inherited-name",
        "test_what_is_accepted_where_a_process_died_anywhere_outlives_a_loss_of_power",
        "journal/opening.py",
        "sync_folder(folder)\n            return",
        "return",
    ),
    Mutation(
        "drop-what-log-has",
        UNSYNCED,
        "journal/opening.py",
        "if self._is_foreign or (contents.segments and contents.last <= owner.durable):",
        "if self._is_foreign:",
    ),
    Mutation(
        "sequence-after-log",
        UNSYNCED,
        "journal/opening.py",
        "first = last.last + 1 if last is not None else owner.durable + 1",
        "first = last.last + 1 if last is not None else 0",
    ),
    Mutation(
        "own-entries-only",
        OTHER,
        "journal/opening.py",
        "if segments and segments[0].header.owner != owner.name:",
        "if False:",
    ),
    Mutation(
        "foreign-never-dropped",
        OTHER,
        "journal/opening.py",
        "if last == done and contents.damage is None and not lost:",
        "if True:",
    ),
    Mutation(
        "send-from-log-end",
        KILL,
        "appender/journal_sender.py",
        "self._fed = session.known\n        self._seconds",
        "self._fed = intake.journal.last\n        self._seconds",
    ),
    Mutation(
        "ack-when-decided",
        AWAY,
        "appender/journal_sender.py",
        "self._journal.acknowledge(self._intake.decided)",
        "self._journal.acknowledge(self._fed)",
    ),
    Mutation(
        "session-from-log",
        AWAY,
        "appender/journal_sender.py",
        "self._fed = session.known\n        self.is_away",
        "self.is_away",
    ),
]
