"""The mutations of what happens to a log after its rows were written."""

from __future__ import annotations

from .mutation import Mutation

_TWO = "two compactors, a crash"
_WRITER = "a compactor, a writer, a crash"
_OPTIMIZE = "a compactor takes over, OPTIMIZE"
_RESTORED = "a compactor takes over, the table is restored"
_ACCEPTED = "the table is restored before an open range, and accepted"
_AGAIN = "a log that is made again"
_ZOMBIE = "a zombie's slot is collected"

MUTATIONS = [
    Mutation(
        "a lifecycle record is put after the newest one instead of the one that it was made from",
        _TWO,
        "protocol/chain.py",
        "number=head.number - 1,",
        "number=(look(log) or head).number - 1,",
    ),
    Mutation(
        "a lifecycle record that was refused counts as put",
        "two compactors, the log grows",
        "protocol/chain.py",
        "return record if found.record_id == record.record_id else None",
        "return record",
    ),
    Mutation(
        "a range is published without another look at the table",
        _OPTIMIZE,
        "lifecycle/compaction.py",
        "with unless_moved_on(log, intent):\n                table.write(intent)\n",
        "with unless_moved_on(log, intent):\n                table.write(intent)\n"
        "            return TableState(found.table_id, found.version + 1, intent.k, ()), False\n",
    ),
    Mutation(
        "who carries a range on takes what came since too",
        _WRITER,
        "lifecycle/compaction.py",
        "with unless_moved_on(log, intent):\n                table.write(intent)\n",
        "from dataclasses import replace\n"
        "            from sparkwal.protocol.recovery import find_head\n"
        "            table.write(replace(intent, to=find_head(log).gap))\n",
    ),
    Mutation(
        "a range brings the rows of a log that was made again",
        _AGAIN,
        "simulation/compacting.py",
        "log_id=state.log_id)",
        "log_id=None)",
    ),
    Mutation(
        "a log that was made again is collected as the one before was",
        "a log that is made again before it is collected",
        "lifecycle/compaction.py",
        "if state.log_id != log_id:",
        "if False:",
    ),
    Mutation(
        "a table whose transactions were forgotten gets a range again",
        "a compactor takes over, the table forgets",
        "lifecycle/compaction.py",
        "if found.k not in (before, state.k):",
        "if False:",
    ),
    Mutation(
        "a table that was restored is taken as it is",
        _RESTORED,
        "lifecycle/table.py",
        "if change.undoes:",
        "if False:",
    ),
    Mutation(
        "a range that a RESTORE took away counts as written",
        _ACCEPTED,
        "lifecycle/accepting.py",
        "k = found.k + 1 if state.is_open else found.k",
        "k = state.k",
    ),
    Mutation(
        "a range that a RESTORE kept is written again",
        "the table is restored to its newest version, and accepted",
        "lifecycle/accepting.py",
        "held = _held(state, found)",
        "held: Ranges = ()",
    ),
    Mutation(
        "a RESTORE to before what was confirmed is accepted",
        _ACCEPTED,
        "lifecycle/accepting.py",
        "if change.restores < confirmed and change.restores not in at:",
        "if False:",
    ),
    Mutation(
        "the floor passes what the table is confirmed to have",
        _WRITER,
        "lifecycle/coordinator.py",
        "floor = state.cut if keeps == (None, None) else min(floor, state.cut)",
        "floor = head.gap",
    ),
    Mutation(
        "what is below a new floor is deleted at once",
        _ZOMBIE,
        "lifecycle/collection.py",
        "if log.store.age_ms(keys.lifecycle_key(log.prefix, middle)) > grace_ms:",
        "if log.store.age_ms(keys.lifecycle_key(log.prefix, middle)) >= 0:",
    ),
    Mutation(
        "the log is collected although the table was restored",
        _RESTORED,
        "lifecycle/collection.py",
        "confirmed(log, state, table)\n",
        "pass\n",
    ),
    Mutation(
        "a writer that starts finds no records to look back at",
        "a collection and a writer",
        "lifecycle/collection.py",
        "position >= bound - KEPT_SLOTS",
        "position >= bound",
    ),
    Mutation(
        "a full LIST counts as the whole of a log",
        "an appender sleeps until all but the last records are collected",
        "protocol/recovery.py",
        "if page.more or len(page.entries) >= LIST_LIMIT:",
        "if page.more:",
    ),
    Mutation(
        "the floor goes back",
        "a consumer comes back",
        "lifecycle/coordinator.py",
        "if floor <= state.floor:",
        "if floor == state.floor:",
    ),
    Mutation(
        "consumers are listed before the floor is taken",
        "a consumer joins while the floor moves and the log is collected",
        "lifecycle/collection.py",
        "bound = consumers_bound(log, state.log_id, floor, expiry_ms)\n",
        "bound = min(floor, early)\n",
        (
            "    floor = old_floor(log, state, grace_ms)\n",
            "    early = consumers_bound(log, state.log_id, 2**40, expiry_ms)\n"
            "    from sparkwal.protocol.chain import look\n"
            "    state = look(log) or state\n"
            "    floor = old_floor(log, state, grace_ms)\n",
        ),
    ),
    Mutation(
        "the floor passes a consumer that is live",
        "a consumer joins while the floor moves",
        "lifecycle/consumers.py",
        "for consumer in _consumers(log):\n        if consumer.log_id != log_id or",
        "for consumer in ():\n        if consumer.log_id != log_id or",
    ),
    Mutation(
        "a new consumer begins where the floor was before it told so",
        "a consumer joins while the log is collected",
        "lifecycle/consumers.py",
        "if floor <= consumer.position:",
        "if True:",
    ),
    Mutation(
        "a reader does not look at the floor after it has read",
        "a reader while all is collected, a stray leader",
        "reading/floor.py",
        "if reached < end:\n            self.check(reached)\n",
        "",
        (
            "for record in records:\n                self.check(reached)\n",
            "for record in records:\n",
        ),
    ),
    Mutation(
        "the chain of a log that was there before is taken for this one's",
        "a log that is made again, and a consumer that joins",
        "protocol/chain.py",
        "return found if log_id in (None, found.log_id) else None",
        "return found",
    ),
    Mutation(
        "a reader takes the floor of a log that was there before for this one's",
        "a log that is made again, and a consumer that joins",
        "reading/floor.py",
        "return self._looked.position if self._looked.log_id == self.log_id else 0",
        "return self._looked.position",
    ),
    Mutation(
        "the log is read from the cut although the table holds the open range",
        "table and log as one, a compactor, a writer",
        "lifecycle/current.py",
        "return head.to\n",
        "return head.cut\n",
    ),
    Mutation(
        "a table that is ahead of the chain is read as if it were not",
        "table and log as one, a compactor, a writer",
        "lifecycle/current.py",
        "if table is not None and table.table_id == head.table_id and table.k > head.k:\n"
        "        return None\n",
        "if table is not None and table.k > head.k:\n        return head.to\n",
    ),
    Mutation(
        "a reader trusts a look at the floor for ever",
        "a reader while all is collected, a stray",
        "reading/floor.py",
        "return self._looked is not None and not self._is_old(self._looked)",
        "return self._looked is not None",
    ),
]
