"""The archive: the transactions of queries that have not written to the log for long (PROTOCOL
§5)."""

from collections.abc import Set
from dataclasses import replace

from isal.isal_zlib import crc32

from sparkwal.errors import InvalidLogError, StoreUnavailableError
from sparkwal.format import keys, limits, versions
from sparkwal.format.checked import parse, plain, read, to_json
from sparkwal.format.header import ANONYMOUS, Checkpoint, QueryProgress, SlotHeader
from sparkwal.protocol.leadership import Leadership
from sparkwal.protocol.slots import OpenLog
from sparkwal.store.base import LogStore, NotFound, get_whole, holds, sound

# A leader that finds more entries than MOST puts only the KEPT newest into its records.
MOST, KEPT = 1000, 500

# An object that holds the transactions and checkpoints of queries.
Memory = SlotHeader | Leadership | QueryProgress


def last_batch(open_log: OpenLog, memory: Memory, query_id: str) -> int:
    """The last microbatch of a query in the log, −1 without one. 1 GET if only an archive may hold
    it."""
    return recall(open_log, memory, query_id)[0]


def recall(open_log: OpenLog, memory: Memory, query_id: str) -> tuple[int, Checkpoint | None]:
    """The last microbatch of a query in the log, see `last_batch`, and its checkpoint.

    Raises:
        InvalidLogError: the archive is missing or damaged.
    """
    memory = knowing(open_log, memory, query_id)
    last, _ = memory.txns.get(query_id, (-1, 0))
    return last, memory.checkpoints.get(query_id)


def named_records(log: LogStore, header: SlotHeader) -> set[int]:
    """The positions of the records that carry a query's checkpoint: no collection deletes them.

    1 GET if the record names an archive.

    Raises:
        InvalidLogError: the archive is missing or damaged.
    """
    entries = [*header.checkpoints.values()]
    if header.txns_archive:
        entries += read_archive(log, header.txns_archive).checkpoints.values()
    named = {entry.position for entry in entries}
    named |= {position for entry in entries for position, _ in entry.files.values()}
    # SAFETY(state-records-named) §12: no collection deletes a record that carries a part of a state
    states = (entry.state for entry in entries if entry.state is not None)
    return named.union(*(state.positions for state in states))


def knowing(open_log: OpenLog, memory: Memory, query_id: str) -> Memory:
    """The memory that holds the query, if any does: the record's or the archive's."""
    # SAFETY(ask-archive) §5: a query that the record does not know is looked up in the archive
    if query_id not in memory.txns and memory.txns_archive:
        return read_archive(open_log(), memory.txns_archive)
    return memory


def shortened(log: LogStore, live: Memory, name: str) -> tuple[QueryProgress, bytes]:
    """Divide the memory of `live` between a new leader's records and an archive.

    Args:
        log: the log.
        live: the memory of the last live record.
        name: unique to this attempt to lead.

    Returns:
        The memory for the records, and the archive's body for `put_archive`; b"" if no archive is
        needed.

    Raises:
        InvalidLogError: the former archive is missing or damaged.
    """
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
    """The part of a memory for these queries."""
    return QueryProgress(
        {query: last for query, last in memory.txns.items() if query in queries},
        {query: entry for query, entry in memory.checkpoints.items() if query in queries},
    )


def put_archive(log: LogStore, archive: str, body: bytes) -> None:
    """Make an archive durable before the leader record that names it is sent. 1 PUT, or none.

    Raises:
        StoreUnavailableError: the store holds other bytes under the archive's name.
    """
    if body:
        # The name holds the CRC of the bytes, so a refused PUT means that a reply was lost. But the
        # store may hold only a part of the bytes.
        key = keys.archive_key(log.prefix, archive)
        # SAFETY(archive-read-back) §5: a refused archive counts only if its bytes are there
        is_new = log.store.put_if_absent(key, body)
        if not is_new and not holds(log.store, key, body):
            raise StoreUnavailableError(
                f"{log.store.url}/{key} does not hold the bytes that were sent. sparkwal wrote "
                "nothing to the log: start again, which writes another archive"
            )


def encode(memory: QueryProgress) -> bytes:
    """Encode an archive, without `txns_archive`.

    Raises:
        InvalidLogError: it is larger than readers take.
    """
    body = to_json(versions.ARCHIVE, plain(replace(memory, txns_archive="")))
    try:
        limits.check_values(body)
        if len(body) > limits.ARCHIVE:
            raise ValueError(f"it has {len(body)} bytes; {limits.ARCHIVE} are read")
    except ValueError as error:
        raise InvalidLogError(
            f"an archive of {len(memory.txns)} transactions: {error}. Nothing was written. Begin a "
            "new log, and give each producer and query the name that it had before"
        ) from None
    return body


def decode(body: bytes, label: str) -> QueryProgress:
    """Decode an archive.

    Raises:
        InvalidLogError: the body is damaged; the text names it as `label`.
    """
    return read(QueryProgress, parse(body, label, versions.ARCHIVE), label)


def read_archive(log: LogStore, archive: str) -> QueryProgress:
    """Read an archive.

    Raises:
        InvalidLogError: it is missing or damaged.
    """
    key = keys.archive_key(log.prefix, archive)
    name = f"{log.store.url}/{key}"

    def read_it() -> QueryProgress:
        body = get_whole(log.store, key, limits.ARCHIVE)
        if not archive.endswith(f"-{crc32(body):08x}"):
            raise InvalidLogError(f"{name}: its CRC-32 does not match the one in its name")
        return decode(body, name)

    try:
        return sound(key, read_it, read_it)
    except NotFound:
        raise InvalidLogError(
            f"{name} is missing: it holds the transactions of older queries, without which their "
            "rows could be written twice. Restore it"
        ) from None
