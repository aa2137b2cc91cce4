"""The mutations of what leaders take out of the records, and of how it is found again."""

from __future__ import annotations

from tests.simulation.mutation import Mutation

_LOST = "two leaders archive, a crash and a lost reply"
_CRASH = "two leaders archive, a crash, a straggler"
_AGAIN = "a query of the archive comes back and is archived again"
_PRODUCER = "a producer of the archive, a leader that archives, a lost reply"
_INHERITED = "leaders that have nothing to archive, a crash"

MUTATIONS = [
    Mutation(
        "archive-read-back",
        "two leaders archive, the store keeps a part",
        "protocol/archive.py",
        "        is_new = log.store.put_if_absent(key, body)\n",
        "        is_new = log.store.put_if_absent(key, body) or True\n",
    ),
    Mutation(
        "archive-first",
        _CRASH,
        "protocol/takeover.py",
        "        put_archive(log, header.txns_archive, archived)\n",
        "",
        (
            "            return _Gap(looked_ms",
            "            put_archive(log, header.txns_archive, archived)\n"
            "            return _Gap(looked_ms",
        ),
    ),
    Mutation(
        "archive-is-whole",
        _CRASH,
        "protocol/archive.py",
        "read_archive(log, live.txns_archive) if live.txns_archive else QueryProgress({}, {})",
        "QueryProgress({}, {})",
    ),
    Mutation(
        "record-is-newer",
        _AGAIN,
        "protocol/archive.py",
        "archived = QueryProgress({**older.txns, **live.txns}, ",
        "archived = QueryProgress({**live.txns, **older.txns}, ",
    ),
    Mutation(
        "ask-archive",
        _LOST,
        "protocol/archive.py",
        "    if query_id not in memory.txns and memory.txns_archive:\n",
        "    if False:\n",
    ),
    Mutation(
        "inherit-archive",
        _INHERITED,
        "protocol/archive.py",
        "return QueryProgress(live.txns, live.checkpoints, live.txns_archive)",
        "return QueryProgress(live.txns, live.checkpoints)",
    ),
    Mutation(
        "leader-names-archive",
        _CRASH,
        "protocol/takeover.py",
        "txns_archive=progress.txns_archive,",
        'txns_archive="",',
        ("put_archive(log, header.txns_archive, ", "put_archive(log, claim.plan_id, "),
    ),
    Mutation(
        "commit-names-archive",
        _LOST,
        "protocol/commit_record.py",
        "txns_archive=lead.txns_archive,",
        'txns_archive="",',
    ),
    Mutation(
        "appender-names-archive",
        _PRODUCER,
        "protocol/commit_record.py",
        "txns_archive=lead.txns_archive,",
        'txns_archive="",',
    ),
]
