"""The mutations of what happens to a log after its rows were written."""

from __future__ import annotations

from tests.simulation.mutation import Mutation

_TWO = "two compactors, a crash"
_WRITER = "a compactor, a writer, a crash"
_OPTIMIZE = "a compactor takes over, OPTIMIZE"
_RESTORED = "a compactor takes over, the table is restored"
_ACCEPTED = "the table is restored before an open range, and accepted"
_AGAIN = "a log that is recreated"
_ZOMBIE = "a zombie's slot is collected"

_KEPT = "two compactors with tombstones, a crash"
_KEPT_RESTORED = "a compactor takes over, the tombstones are restored"
_KEPT_ACCEPTED = "the tombstones are restored before a promised range, and accepted"
_KEPT_READ = "table, tombstones and log as one, a compactor, a writer"

# Random runs of a stream that begins with a table: tests/lifecycle/table_runs.py.
TABLE_RUNS = "random runs of a stream that begins with a table"
_BEGINS = "a stream begins with the table while the floor moves"

# Runs of a compaction into an Iceberg table: tests/lifecycle/iceberg_runs.py.
ICEBERG_RUNS = "runs of a compaction into an Iceberg table"

# The line that writes a range.
_WRITES = "write_open_range(promise, table, snapshot)\n"

_LOGS = "a compactor of two logs and one of a log take over, a crash"

_DAMAGED = "the rows of a second log are damaged, a crash"
_REFUSED = "the table refuses the rows of a second log, a crash"
_GIVEN_UP_ASIDE = "a user gives a range up from which a row stepped aside"
_AGAIN_ASIDE = "a refused row is written again, a crash"
_AGAIN_GIVEN_UP = "a user gives a range up that writes a refused row again"
_ASIDE_RESTORED = "the refused rows are restored before an open range, and accepted"

MUTATIONS = [
    Mutation(
        "onto-looked-snapshot",
        ICEBERG_RUNS,
        "lifecycle/iceberg/catalog.py",
        "    own = transaction._requirements\n",
        "    own = ()\n",
    ),
    Mutation(
        "one-attempt",
        ICEBERG_RUNS,
        "lifecycle/iceberg/catalog.py",
        "now = place.catalog.commit_table(table, requirements, transaction._updates)",
        "now = transaction.commit_transaction()",
    ),
    Mutation(
        "range-outlives-snapshot",
        ICEBERG_RUNS,
        "lifecycle/iceberg/writing.py",
        'change.set_properties({f"{RANGE}.{log_id}": last})',
        "pass",
    ),
    Mutation(
        "rollback-undoes",
        ICEBERG_RUNS,
        "lifecycle/iceberg/history.py",
        'return [Change(entry.version, "rollback", undoes=True)]',
        'return [Change(entry.version, "rollback")]',
    ),
    Mutation(
        "picked-has-range",
        ICEBERG_RUNS,
        "lifecycle/iceberg/history.py",
        "_range_of(texts.get(RANGE)) or self._picked(texts)",
        "_range_of(texts.get(RANGE))",
    ),
    Mutation(
        "late-by-a-rollback",
        ICEBERG_RUNS,
        "lifecycle/iceberg/writing.py",
        "    if version < _FORMAT:\n",
        "    if False:\n",
    ),
    Mutation(
        "held-then-chosen",
        _BEGINS,
        "lifecycle/from_table.py",
        "        hold(logs)\n",
        "",
    ),
    Mutation(
        "version-of-its-end",
        TABLE_RUNS,
        "lifecycle/from_table.py",
        "        listed = self._files(end)\n",
        "        listed = self._files(start or end)\n",
    ),
    Mutation(
        "burned-has-no-rows",
        "table and log as one while a range is given up",
        "lifecycle/table.py",
        "return table.k == promise.table.k and not is_burned(promise, table)",
        "return table.k == promise.table.k",
    ),
    Mutation(
        "burn-in-table",
        "a second log vanishes, and its range is written late",
        "lifecycle/cycle.py",
        "table.burn(promise)\n",
        "from sparkwal.lifecycle.table import Change\n"
        "                    made = Change(0, 'WRITE', *promise.range_id, is_burned=True)\n"
        "                    return replace(snapshot, changes=(made,))\n",
    ),
    Mutation(
        "target-between-ranges",
        "a user changes the target of a promised range under a compactor, a crash",
        "lifecycle/coordinator.py",
        "if promise_to(record, target).is_open:",
        "if False:",
    ),
    Mutation(
        "chain-put-in-time",
        "a compactor sleeps until its number was used and freed",
        "protocol/chain.py",
        "if record.number == keys.MAX or (until_ms is not None and clock.boot_ms() < until_ms):",
        "if True:",
    ),
    Mutation(
        "chain-record-age",
        "a compactor does not sleep while records are deleted",
        "lifecycle/collecting/collection.py",
        "return log.store.age_ms(entry.key) > age_ms",
        "return log.store.age_ms(entry.key) >= 0",
    ),
    Mutation(
        "chain-newest-kept",
        "a compactor sleeps, and its number stays in use",
        "lifecycle/collecting/collection.py",
        "last_kept = newest.number + KEPT_RECORDS - 1",
        "last_kept = newest.number - 1",
    ),
    Mutation(
        "unreadable-marked",
        _DAMAGED,
        "lifecycle/cycle.py",
        "return *close_range(chain, record, table, snapshot, bad), bad\n",
        "return *close_range(chain, record, table, snapshot), bad\n",
    ),
    Mutation(
        "marked-read-first",
        _DAMAGED,
        "lifecycle/cycle.py",
        "if state.unreadable and (errors := unreadable(log.log.root, [range_])):",
        "if False:",
    ),
    Mutation(
        "refused-alone",
        _REFUSED,
        "lifecycle/cycle.py",
        "bad = {name: failed for name in names if len(names) == 1}",
        "bad = dict.fromkeys(names, failed)",
    ),
    Mutation(
        "aside-first",
        "a refused row steps aside, a crash",
        "lifecycle/table.py",
        "aside = _with_refused(promise, table.refused, snapshot.refused)\n",
        "aside = snapshot.refused\n",
    ),
    Mutation(
        "each process leaves out the rows that it finds",
        "two compactors, for which the table refuses other rows",
        "simulation/compacting.py",
        'aside = self.ask(Call("refused_rows", (promise.table.refused.version,)))',
        "aside = tuple((promise.table.k, *row) for row in self.refusal(promise, rows))",
    ),
    Mutation(
        "aside-until-done",
        _GIVEN_UP_ASIDE,
        "protocol/lifecycle_steps.py",
        "of_range = k if aside or log.aside else 0",
        "of_range = k if aside else 0",
    ),
    Mutation(
        "rows that stepped aside from a range that was given up stay",
        _GIVEN_UP_ASIDE,
        "simulation/outside.py",
        "table.stepped_aside(state.refused, begun, range_id, left, rows)",
        "table.stepped_aside(state.refused, begun, range_id, (left[0], 9), rows)",
    ),
    Mutation(
        "taken-when-done",
        _AGAIN_ASIDE,
        "protocol/lifecycle_steps.py",
        "logs[name] = replace(log, again=0, taken=table.k, rows_aside=rows_aside)",
        "logs[name] = replace(log, again=0, rows_aside=rows_aside)",
    ),
    Mutation(
        "burned-again-waits",
        _AGAIN_GIVEN_UP,
        "protocol/lifecycle_steps.py",
        "name: replace(log, to=log.cut, again=0) if log.table == url else log",
        "name: replace(log, to=log.cut, again=0, taken=log.again or log.taken)",
    ),
    Mutation(
        "aside-not-lost",
        _ASIDE_RESTORED,
        "lifecycle/accepting.py",
        "if is_range_written and promise.is_aside and promise.table.k not in ranges:",
        "if False:",
    ),
    Mutation(
        "accepted-aside-burned",
        _ASIDE_RESTORED,
        "lifecycle/accepting.py",
        "if promise.is_aside and not newer and snapshot.k < in_chain.k:",
        "if False:",
    ),
    Mutation(
        "one-open-range",
        "a compactor of one log finds an open range of another",
        "lifecycle/cycle.py",
        "if promise.is_open:\n            ranges =",
        "if any(log.state(self.record).is_open for log in self.sound):\n            ranges =",
        # The compactor promises another range.
        ("assert not (before and before.is_open) and", "assert"),
    ),
    Mutation(
        "done-closes-all",
        _LOGS,
        "protocol/lifecycle_steps.py",
        "cut=log.to,\n            unreadable=0,\n",
        "cut=log.to if name == min(record.logs) else log.cut,\n            unreadable=0,\n",
    ),
    Mutation(
        "an intent of several logs fixes the range of one",
        _LOGS,
        "simulation/compacting.py",
        "for part in promise.ranges:",
        "for part in promise.ranges[:1]:",
    ),
    Mutation(
        "a transaction is named by a log and not by its table",
        _LOGS,
        "simulation/compacting.py",
        'self._asked("write", begun, promise.range_id, rows)',
        "from sparkwal.protocol.recovery import find_head\n"
        "        own = find_head(self.log).live.header.log_id\n"
        '        self._asked("write", begun, (own, promise.table.k), rows)',
    ),
    Mutation(
        "tombstones-first",
        _KEPT,
        "lifecycle/table.py",
        "tombstones = _with_keys_of(promise, table.tombstones, snapshot.tombstones)\n"
        "    table.write(promise, tombstones.version)\n",
        "table.write(promise, 0)\n"
        "    _with_keys_of(promise, table.tombstones, snapshot.tombstones)\n",
    ),
    Mutation(
        "the tombstones of a range carry no transaction",
        _KEPT,
        "simulation/outside.py",
        "dict(newest.txns) | ({log_id: k} if has_txn else {})",
        "dict(newest.txns)",
    ),
    Mutation(
        "beside-undoes-nothing",
        _KEPT_RESTORED,
        "lifecycle/table.py",
        "if change.undoes:\n            what",
        "if False:\n            what",
    ),
    Mutation(
        "tombstones-again",
        _KEPT_ACCEPTED,
        "lifecycle/accepting.py",
        "if promise.is_open and (is_range_written or now.k >= k):",
        "if False:",
    ),
    Mutation(
        "tombstones-ahead-again",
        _KEPT_READ,
        "lifecycle/current.py",
        "if any(change.log_id == table.app_id and change.k > table.k for change in changes):",
        "if False:",
    ),
    Mutation(
        "a reader uses newer tombstones than its table",
        _KEPT_READ,
        "simulation/following.py",
        'Call("tombstones_rows", (plan.tombstones_version,))',
        'Call("tombstones_rows", (-1,))',
    ),
    Mutation(
        "next-of-its-base",
        _TWO,
        "protocol/chain.py",
        "        number = number - 1\n",
        "        number = (newest_record(log) or base).number - 1\n",
    ),
    Mutation(
        "chain-read-back",
        "two compactors, the log grows",
        "protocol/chain.py",
        "            if log.store.get_range(key, 0, len(data) + 1) == data:\n",
        "            if True:\n",
    ),
    Mutation(
        "chain-only-torn",
        "two compactors of a promised range, the store keeps a part",
        "protocol/chain.py",
        "            if record_at(log, number) is not None:\n",
        "            if record_at(log, number) is not None and False:\n",
    ),
    Mutation(
        "chain-torn-passed",
        "two compactors of a promised range, the store keeps a part",
        "protocol/chain.py",
        "        if is_same and is_torn(bodies[0]) and listed in (None, len(bodies[0])):\n",
        "        if False:\n",
    ),
    Mutation(
        "read-table-after-write",
        _OPTIMIZE,
        "lifecycle/cycle.py",
        _WRITES,
        f"{_WRITES}"
        "                    version = snapshot.version + 1\n"
        "                    return TableState(snapshot.table_id, version, promise.table.k, ())\n",
    ),
    Mutation(
        "range-is-fixed",
        _WRITER,
        "lifecycle/cycle.py",
        _WRITES,
        "from sparkwal.protocol.recovery import find_head\n"
        "                    root, logs = chain.log.root, {}\n"
        "                    for name, one in promise.logs.items():\n"
        "                        to = find_head(root.sequencer(name)).gap\n"
        "                        logs[name] = replace(one, to=to)\n"
        "                    table.write(replace(promise, logs=logs))\n",
    ),
    Mutation(
        "a range brings the rows of a log that was recreated",
        _AGAIN,
        "simulation/compacting.py",
        "log_id=part.log_id)",
        "log_id=None)",
    ),
    Mutation(
        "chain-of-this-log",
        "a log that is recreated before it is collected",
        "lifecycle/known_log.py",
        "if state is not None and state.log_id != log_id:",
        "if False:",
    ),
    Mutation(
        "table-knows-k",
        "a compactor takes over, the table forgets",
        "lifecycle/table.py",
        "if snapshot.k not in (promise.confirmed_k, promise.table.k):",
        "if False:",
    ),
    Mutation(
        "history-undoes-nothing",
        _RESTORED,
        "lifecycle/table.py",
        "if change.undoes:\n            raise",
        "if False:\n            raise",
    ),
    Mutation(
        "lost-range-new-k",
        _ACCEPTED,
        "lifecycle/accepting.py",
        "k = snapshot.k + 1 if promise.is_open else snapshot.k",
        "k = in_chain.k",
    ),
    Mutation(
        "kept-range-done",
        "the table is restored to its newest version, and accepted",
        "lifecycle/accepting.py",
        "newer = history.ranges",
        "newer = ()",
    ),
    Mutation(
        "restore-not-before",
        _ACCEPTED,
        "lifecycle/accepting.py",
        "if history.unknown:",
        "if False:",
    ),
    Mutation(
        "floor-below-cut",
        _WRITER,
        "lifecycle/cycle.py",
        "floor = state.cut if retention == (None, None) else min(floor, state.cut)",
        "floor = log.live_head.gap",
    ),
    Mutation(
        "grace-before-delete",
        _ZOMBIE,
        "lifecycle/collecting/collection.py",
        "return ages[number] > grace_ms",
        "return ages[number] >= 0",
    ),
    Mutation(
        "table-before-delete",
        _RESTORED,
        "lifecycle/collecting/collection.py",
        "confirm(promise, table)\n",
        "pass\n",
    ),
    Mutation(
        "keep-slots",
        "a collection and a writer",
        "lifecycle/collecting/collection.py",
        "position >= bound - KEPT_SLOTS",
        "position >= bound",
    ),
    Mutation(
        "erase-below-bound",
        "rows are erased beside a writer",
        "lifecycle/collecting/collection.py",
        "positions = [at for at in taken.staying if part.first <= at < part.erasable]",
        "positions = [*range(head.gap)]",
    ),
    Mutation(
        "erase-if-match",
        "rows are erased while the log is recreated",
        "lifecycle/collecting/erasing.py",
        "if log.store.replace(key, body, stored.etag):",
        "if log.store.put(key, body) or True:",
    ),
    Mutation(
        "erase-this-log",
        "rows are erased while the log is recreated",
        "protocol/erasing.py",
        "if header.log_id != log_id:",
        "if False:",
    ),
    Mutation(
        "erased-not-empty",
        "a reader while rows are erased",
        "reading/rows.py",
        "    if header.erased:\n",
        "    if False:\n",
        elsewhere=("reading/floor.py", "if not 0 <= position < floor:", "if True:"),
    ),
    Mutation(
        "full-list-not-whole",
        "a query begins when all but the last records are collected",
        "protocol/recovery.py",
        "if page.more or len(page.entries) >= LIST_LIMIT:",
        "if page.more:",
    ),
    Mutation(
        "floor-never-back",
        "a consumer comes back",
        "lifecycle/cycle.py",
        "elif result > state.floor:",
        "elif result != state.floor:",
    ),
    Mutation(
        "floor-then-consumers",
        "a consumer joins while the floor moves and the log is collected",
        "lifecycle/collecting/collection.py",
        "allowed = readers.bounds(floors, safeguards.expiry_ms)\n",
        "allowed = [min(parts[0].floor, early[0])]\n",
        (
            "    parts = [\n        _Part(",
            "    log = logs[0].log\n"
            "    asked = [(log, logs[0].log_id, 2**40)]\n"
            "    early = look_at_readers([log]).bounds(asked, safeguards.expiry_ms)\n"
            "    from sparkwal.protocol.chain import newest_record\n"
            "    record = newest_record(log) or record\n"
            "    parts = [\n        _Part(",
        ),
    ),
    Mutation(
        "floor-below-consumers",
        "a consumer joins while the floor moves",
        "lifecycle/consumers/readers.py",
        "            for consumer, age_ms in pairs:\n",
        "            for consumer, age_ms in pairs[:0]:\n",
    ),
    Mutation(
        "unseen-logs-held",
        "the floor moves in a log that a consumer of all has not seen",
        "format/consumer_record.py",
        "return replace(self, logs={log: LogPosition(log_id, 0)})",
        "return None",
    ),
    Mutation(
        "told-before-planned",
        "random runs of a consumer that asks and is told",
        "lifecycle/consumers/publishing.py",
        "if is_next and self._told != start:",
        "if False:",
    ),
    Mutation(
        "asked-for-an-interval",
        "random runs of a consumer that asks and is told",
        "lifecycle/consumers/publishing.py",
        "if not is_old_enough or not is_of_last or self._is_asynchronous:",
        "if not is_of_last or self._is_asynchronous:",
    ),
    Mutation(
        "lowest-stays",
        "a second consumer of all with one name joins",
        "lifecycle/consumers/objects.py",
        "return replace(consumer, logs={name: lower(name, own)",
        "return consumer or replace(consumer, logs={name: lower(name, own)",
    ),
    Mutation(
        "new-log-from-0",
        "the floor moves in a log that a reader of others has not seen",
        "reading/log_range.py",
        "return self.usable(0, what)",
        "return self.floor.current()",
    ),
    Mutation(
        "join-then-floor",
        "a consumer joins while the log is collected",
        "lifecycle/consumers/objects.py",
        "if not passed:",
        "if True:",
    ),
    Mutation(
        "floor-after-read",
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
        "unread-same-object",
        "a log at rest is recreated with as many records",
        "lifecycle/known_log.py",
        "parts = (newest.key, newest.etag, state.log_id, state.table, str(state.cut))",
        "parts = (newest.key, state.log_id, state.table, str(state.cut))",
    ),
    Mutation(
        "chain-log-id",
        "a log that is recreated, and a consumer that joins",
        "format/lifecycle_record.py",
        "return log if log and log_id in (None, log.log_id) else None",
        "return log",
    ),
    Mutation(
        "floor-of-this-log",
        "a log that is recreated, and a consumer that joins",
        "reading/floor.py",
        "return self._looked.position if self._looked.log_id == self.log_id else 0",
        "return self._looked.position",
    ),
    Mutation(
        "log-after-table",
        "table and log as one, a compactor, a writer",
        "lifecycle/current.py",
        "return state.to if has_open_range else state.cut\n",
        "return state.cut\n",
    ),
    Mutation(
        "table-ahead-again",
        "table and log as one, a compactor, a writer",
        "lifecycle/current.py",
        "if snapshot and snapshot.table_id == in_chain.table_id and snapshot.k > in_chain.k:\n"
        "        return None\n",
        "if snapshot and snapshot.k > in_chain.k:\n"
        "        starts = {name: one.to if one else 0 for name, one in states.items()}\n"
        "        return _Pins(snapshot.version, starts, True)\n",
    ),
    Mutation(
        "floor-look-expires",
        "a reader while all is collected, a stray",
        "reading/floor.py",
        "return self._looked is not None and not self._is_old(self._looked)",
        "return self._looked is not None",
    ),
]
