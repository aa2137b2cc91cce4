"""The archive: the transactions of queries that wrote to the log long ago (PROTOCOL §5)."""

from collections.abc import Set
from dataclasses import replace

from isal.isal_zlib import crc32

from sparkwal.errors import InvalidLogError, StoreUnavailableError
from sparkwal.format import keys
from sparkwal.format.checked import parse, plain, read, to_json
from sparkwal.format.header import ANONYMOUS, Checkpoint, QueryProgress, SlotHeader
from sparkwal.protocol.leadership import Leadership
from sparkwal.protocol.slots import OpenLog
from sparkwal.store.base import LogStore, NotFound

# A leader that finds more entries than MOST keeps the KEPT newest in its records.
MOST, KEPT = 1000, 500

# What remembers the transactions and the checkpoints of queries.
Memory = SlotHeader | Leadership | QueryProgress


def last_batch(open_log: OpenLog, memory: Memory, query_id: str) -> int:
    """The last microbatch of a query in the log, −1 for none. 1 GET if only an archive may know."""
    return recall(open_log, memory, query_id)[0]


def recall(open_log: OpenLog, memory: Memory, query_id: str) -> tuple[int, Checkpoint | None]:
    """As `last_batch`, and where its checkpoint is. Raises InvalidLogError: no intact archive."""
    memory = knowing(open_log, memory, query_id)
    last, _ = memory.txns.get(query_id, (-1, 0))
    return last, memory.checkpoints.get(query_id)


def knowing(open_log: OpenLog, memory: Memory, query_id: str) -> Memory:
    """The memory that names the query, if any: the record's or the archive's."""
    # SAFETY(ask-archive) §5: a query that the record does not know is looked up in the archive
    if query_id not in memory.txns and memory.txns_archive:
        return read_archive(open_log(), memory.txns_archive)
    return memory


def shortened(log: LogStore, live: Memory, name: str) -> tuple[QueryProgress, bytes]:
    """What a new leader's records inherit from `live`, and the archive of the rest for
    `put_archive`; b"" if the records can keep all. `name` is unique to this attempt to lead."""
    if len(live.txns) <= MOST:
        # SAFETY(inherit-archive) §5: a leader that archives nothing inherits the archive's name
        return QueryProgress(live.txns, live.checkpoints, live.txns_archive), b""
    newest = set(sorted(live.txns, key=lambda query: live.txns[query][1])[-KEPT:])
    # SAFETY(archive-is-whole) §5: an archive includes the archive before it
    older = read_archive(log, live.txns_archive) if live.txns_archive else QueryProgress({}, {})
    # SAFETY(record-is-newer) §5: where record and archive know a query, the record is newer
    archived = QueryProgress({**older.txns, **live.txns}, {**older.checkpoints, **live.checkpoints})
    nameless = {query for query in archived.txns if query.startswith(ANONYMOUS)}
    queries = archived.txns.keys() | archived.checkpoints.keys()
    body = encode(_of(archived, queries - newest - nameless))
    return replace(_of(live, newest), txns_archive=f"{name}-{crc32(body):08x}"), body


def _of(memory: Memory, queries: Set[str]) -> QueryProgress:
    """What is remembered of these queries."""
    return QueryProgress(
        {query: last for query, last in memory.txns.items() if query in queries},
        {query: each for query, each in memory.checkpoints.items() if query in queries},
    )


def put_archive(log: LogStore, archive: str, body: bytes) -> None:
    """Make an archive durable, before the leader record that names it is sent: 1 PUT, or none."""
    if body:
        # A refusal means that a reply was lost: the name holds the CRC of the bytes. But the store
        # may have kept a part of them.
        key = keys.archive_key(log.prefix, archive)
        # SAFETY(archive-read-back) §5: a refused archive counts only if its bytes are there
        if not log.store.put_if_absent(key, body) and log.store.get(key) != body:
            raise StoreUnavailableError(
                f"{log.store.url}/{key} is not what was sent. Nothing was written to the log: "
                "start again, which writes another archive"
            )


def encode(memory: QueryProgress) -> bytes:
    """The content of an archive; `txns_archive` is not in it."""
    return to_json(plain(replace(memory, txns_archive="")))


def decode(body: bytes, where: str) -> QueryProgress:
    """What `encode` has encoded. Raises InvalidLogError for what an archive cannot hold."""
    return read(QueryProgress, parse(body, where, "archive"), where)


def read_archive(log: LogStore, archive: str) -> QueryProgress:
    """Read an archive. Raises InvalidLogError if it is missing or damaged."""
    key = keys.archive_key(log.prefix, archive)
    where = f"{log.store.url}/{key}"
    try:
        body = log.store.get(key)
    except NotFound:
        raise InvalidLogError(
            f"{where} is missing: it holds the transactions of older queries, without which their "
            "rows could be written twice. Restore it"
        ) from None
    if not archive.endswith(f"-{crc32(body):08x}"):
        raise InvalidLogError(f"{where}: its CRC-32 is not the one in its name")
    return decode(body, where)
