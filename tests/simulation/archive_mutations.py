"""The mutations of what leaders take out of the records, and of how it is found again."""

from __future__ import annotations

from .mutation import Mutation

_LOST = "two leaders archive, a crash and a lost reply"
_CRASH = "two leaders archive, a crash, a straggler"
_AGAIN = "a query of the archive comes back and is archived again"
_PRODUCER = "a producer of the archive, a leader that archives, a lost reply"
_INHERITED = "leaders that have nothing to archive, a crash"

MUTATIONS = [
    Mutation(
        "an archive is put after the leader record that names it",
        _CRASH,
        "protocol/leadership.py",
        "        put_archive(log, header.txns_archive, archived)\n",
        "",
        (
            "            requests.withdraw()\n            return looked_ms",
            "            put_archive(log, header.txns_archive, archived)\n"
            "            requests.withdraw()\n            return looked_ms",
        ),
    ),
    Mutation(
        "an archive leaves out the archive before it",
        _CRASH,
        "protocol/archive.py",
        "older = read_archive(log, live.txns_archive) if live.txns_archive else Memories({}, {})",
        "older = Memories({}, {})",
    ),
    Mutation(
        "an archive keeps what the archive before it says of a query that came back",
        _AGAIN,
        "protocol/archive.py",
        "archived = Memories({**older.txns, **live.txns}, ",
        "archived = Memories({**live.txns, **older.txns}, ",
    ),
    Mutation(
        "a query that the records do not know is new whatever the archive says",
        _LOST,
        "protocol/archive.py",
        "    if query_id not in memory.txns and memory.txns_archive:\n",
        "    if False:\n",
    ),
    Mutation(
        "a leader that archives nothing forgets the archive",
        _INHERITED,
        "protocol/archive.py",
        "return Memories(live.txns, live.checkpoints, live.txns_archive)",
        "return Memories(live.txns, live.checkpoints)",
    ),
    Mutation(
        "a leader record does not name the archive",
        _CRASH,
        "protocol/leadership.py",
        "txns_archive=memories.txns_archive,",
        'txns_archive="",',
        ("put_archive(log, header.txns_archive, ", "put_archive(log, claim.plan_id, "),
    ),
    Mutation(
        "a commit record does not name the archive",
        _LOST,
        "protocol/commit_record.py",
        "txns_archive=lead.txns_archive,",
        'txns_archive="",',
    ),
    Mutation(
        "an appender's record does not name the archive",
        _PRODUCER,
        "protocol/pipeline.py",
        "txns_archive=lead.txns_archive,",
        'txns_archive="",',
    ),
]
