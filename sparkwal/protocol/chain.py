"""The chain of lifecycle records of a path. Each is derived from the one before (PROTOCOL §10).

All logs under a path share one chain. The next record is made from the newest one by a step of
`lifecycle_steps`; if two processes do so at the same time, one of them is first.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from sparkwal.errors import CompactionError, InvalidLogError, PublishError, StoreUnavailableError
from sparkwal.format import keys, limits
from sparkwal.format.lifecycle_record import ChainRecord, LogInChain, decode, encode, is_torn
from sparkwal.protocol.clock import Clock
from sparkwal.store.base import Entry, LogStore, NotFound, all_entries, get_whole, sound

# Of the newest numbers of a chain so many are never freed.
KEPT_RECORDS = 1000


def newest_lifecycle(log: LogStore, log_id: str | None = None) -> LogInChain | None:
    """Read the state of a log in the newest record, as `newest_record`.

    Returns:
        The state, or None if the chain does not have the log, or with `log_id` if it has an earlier
        log of this name.

    Raises:
        InvalidLogError: a record is damaged.
    """
    record = newest_record(log)
    return record.log(log.name, log_id) if record else None


def newest_record(log: LogStore) -> ChainRecord | None:
    """Read the newest record of the chain of the log's path, or None without one: 1 LIST, and 1 GET
    if there is a record.

    It passes over torn records, which cost 2 GETs each.

    Raises:
        InvalidLogError: a record is damaged.
    """
    root = log.root
    prefix = keys.lifecycle_prefix(root.prefix)
    while (newest := _newest_entry(root, prefix)) is not None:
        number, entry = newest
        try:
            record = record_at(root, number, entry.size)
        except NotFound:
            # The log is being deleted.
            continue
        while record is None and number < keys.MAX:
            number += 1
            try:
                record = record_at(root, number)
            except NotFound:
                raise InvalidLogError(
                    f"{log.store.url}/{keys.lifecycle_key(root.prefix, number)} is missing: it was "
                    "deleted from outside. Restore it"
                ) from None
        return record
    return None


def _newest_entry(root: LogStore, prefix: str) -> tuple[int, Entry] | None:
    """The number and the object of the newest record: 1 LIST, and 1 more for each object of another
    program.

    Raises:
        InvalidLogError: an object before it belongs to another log inside this one.
    """
    # Some tools create an object with the prefix itself as its name, to mark a folder: skip it.
    for entry in all_entries(root.store, prefix, prefix, limit=1):
        name = entry.key.removeprefix(prefix)
        if (number := keys.listed(name)) is not None:
            return number, entry
        if not keys.is_foreign(name):
            raise InvalidLogError(
                f"{root.store.url}/{entry.key}: this is no name of a lifecycle record; move it "
                "away. (It may belong to another log, which began inside this one)"
            )
    return None


def record_at(log: LogStore, number: int, listed: int | None = None) -> ChainRecord | None:
    """Read the record of a number: 1 GET, and 1 more if it is damaged.

    Args:
        log: any log of the path.
        number: the record's number.
        listed: the size of the object in a LIST.

    Returns:
        The record, or None if it is torn: the store has a part of a PUT, which was acknowledged to
        no writer.

    Raises:
        NotFound: there is no such record.
        InvalidLogError: the record is damaged.
    """
    key = keys.lifecycle_key(log.root.prefix, number)
    name = f"{log.store.url}/{key}"
    bodies: list[bytes] = []

    def read() -> ChainRecord:
        bodies.append(get_whole(log.store, key, limits.LIFECYCLE_RECORD))
        record = decode(bodies[-1], name)
        if record.number != number:
            raise InvalidLogError(f"{name}: the record holds number {record.number}")
        return record

    try:
        return sound(key, read, read)
    except InvalidLogError:
        is_same = len(bodies) == 2 and bodies[0] == bodies[1]
        # SAFETY(chain-torn-passed) §10: a torn lifecycle record is passed over
        if is_same and is_torn(bodies[0]) and listed in (None, len(bodies[0])):
            return None
        raise


def trusted(began_ms: int, record: ChainRecord | None) -> int:
    """The time since the boot until which the record after this one is not deleted.

    That record will be younger than a look that shows this one. No process deletes a record that is
    younger than the grace.

    Args:
        began_ms: the time since the boot before the look, or before the PUT of this record.
        record: the newest record, or None without one.
    """
    return began_ms + (record.gc_grace_ms // 2 if record else 0)


def _counts(log: LogStore, record: ChainRecord, clock: Clock, until_ms: int | None) -> bool:
    """Whether the number of a record that was put was never taken before.

    A process may have slept since its look. Others may have put a record there, and deleted it.
    Then the record is no part of the chain, whose newest record is far below.
    """
    # SAFETY(chain-put-in-time) §10: a lifecycle record that was put late counts only if its number
    # was never free twice
    if record.number == keys.MAX or (until_ms is not None and clock.boot_ms() < until_ms):
        return True
    newest = newest_record(log)
    return newest is not None and record.number - newest.number < KEPT_RECORDS


def _check_readable(data: bytes, record: ChainRecord, location: str) -> None:
    """Raises InvalidLogError for a record that readers refuse: the chain would end with it."""
    try:
        if keys.listed(keys.encode(record.number)) is None or decode(data, location) != record:
            raise InvalidLogError(f"{location}: the record reads back as another")
    except InvalidLogError as error:
        raise InvalidLogError(
            f"{error}. No reader would take this record, so it was not written. Look at the record "
            "before it: no compaction makes one from which none can follow"
        ) from None


def put_record(
    log: LogStore, base: ChainRecord, clock: Clock, host: str, *, until_ms: int | None = None
) -> ChainRecord | None:
    """Put a record that was derived from the one of the same number: 1 conditional PUT.

    It goes to the first number after the torn records that follow that one.

    Args:
        log: any log of the path.
        base: the record, with the number and the time of the one from which it was derived.
        clock: dates the record.
        host: the machine that writes it.
        until_ms: the time since the boot until which the next record is not deleted (`trusted`).
            After it the PUT costs 1 LIST and 1 GET more.

    Returns:
        The record, or None if another process has put one there: then read the newest
            record again and decide anew.

    Raises:
        InvalidLogError: a record after that one is damaged.
    """
    log = log.root
    number = base.number
    while True:
        # SAFETY(next-of-its-base) §10: a lifecycle record goes to the number after its base's
        number = number - 1
        record = replace(
            base,
            number=number,
            record_id=uuid.uuid4().hex,
            timestamp_ms=max(clock.now_ms(), base.timestamp_ms),
            host=host,
        )
        key = keys.lifecycle_key(log.prefix, number)
        data = encode(record)
        _check_readable(data, record, f"{log.store.url}/{key}")
        if log.store.put_if_absent(key, data):
            return record if _counts(log, record, clock, until_ms) else None
        # The number is taken, perhaps by our own PUT whose reply was lost.
        try:
            # SAFETY(chain-read-back) §10: a refused lifecycle record counts only if its bytes are
            # there
            if log.store.get_range(key, 0, len(data) + 1) == data:
                return record if _counts(log, record, clock, until_ms) else None
            # SAFETY(chain-only-torn) §10: only torn records lie between a lifecycle record and its
            # base
            if record_at(log, number) is not None:
                return None
        except NotFound:
            return None


class MovedOn(Exception):
    """Another process changed the lifecycle meanwhile: read the chain again and decide again."""


@dataclass(frozen=True)
class Chain:
    """The chain of a path, for a process that puts records.

    Attributes:
        log: any log of the path.
        clock: dates the records.
        host: the machine that writes them.
        trusted: the times until which the record after a number is not deleted, by that number.
    """

    log: LogStore
    clock: Clock
    host: str
    trusted: dict[int, int] = field(default_factory=dict, compare=False)

    def newest(self) -> ChainRecord | None:
        """Read the newest record, as `newest_record`."""
        began_ms = self.clock.boot_ms()
        record = newest_record(self.log)
        self._trust(began_ms, record)
        return record

    def put(self, record: ChainRecord) -> ChainRecord:
        """Put the record that a step made from the newest one, as `put_record`.

        Raises:
            PublishError: the store did not answer.
            MovedOn: another process put a record first.
        """
        began_ms = self.clock.boot_ms()
        until_ms = self.trusted.get(record.number)
        try:
            done = put_record(self.log, record, self.clock, self.host, until_ms=until_ms)
        except StoreUnavailableError as error:
            text = f"the record of {self.log.url}'s lifecycle failed: {error}"
            raise PublishError(text) from error
        if done is None:
            raise MovedOn
        self._trust(began_ms, done)
        return done

    @contextmanager
    def unless_moved_on(self, record: ChainRecord) -> Iterator[None]:
        """Run a step that relies on `record`, the newest one.

        Raises:
            MovedOn: the step failed, and the chain has a newer record. The rows that it reads may
                be collected.
        """
        try:
            yield
        except (CompactionError, InvalidLogError) as error:
            now = newest_record(self.log)
            if (now.number if now else keys.MAX + 1) != record.number:
                raise MovedOn from error
            raise

    def _trust(self, began_ms: int, record: ChainRecord | None) -> None:
        self.trusted.clear()
        if record is not None:
            self.trusted[record.number] = trusted(began_ms, record)
