"""Deletes old records of the chain, so that their number is bounded."""

from bisect import bisect
from contextlib import suppress
from itertools import islice

from sparkwal.errors import OptionError
from sparkwal.format import keys
from sparkwal.format.lifecycle_record import ChainRecord
from sparkwal.protocol import chain
from sparkwal.store.base import KEYS_OF_DELETE, Entry, LogStore, NotFound, delete_listed, numbered

# A run deletes old records if the newest number passed a multiple of this one meanwhile.
EVERY = 100


def forget_old_records(
    log: LogStore, begun: ChainRecord | None, newest: ChainRecord | None, grace_ms: int
) -> int:
    """Delete records that no process needs, after each hundred new ones.

    The first record stays (§4), and the newest `chain.KEPT_RECORDS` numbers. A collection takes its
    floor from a record that is older than the grace, or than twice the grace. So records up to that
    age stay, and the newest older record. It costs 1 LIST, 1 DELETE, and the requests of a binary
    search for ages.

    Args:
        log: any log of the path.
        begun: the newest record when the run began; with None it deletes in any case.
        newest: the newest record now.
        grace_ms: the grace.

    Returns:
        The number of deleted records.
    """
    if newest is None or newest.number >= keys.MAX - chain.KEPT_RECORDS:
        return 0
    before = keys.MAX + 1 if begun is None else begun.number
    if (keys.MAX - before) // EVERY == (keys.MAX - newest.number) // EVERY:
        return 0
    prefix = keys.lifecycle_prefix(log.root.prefix)
    # SAFETY(chain-newest-kept) §10: the newest thousand numbers of the chain are never freed
    last_kept = newest.number + chain.KEPT_RECORDS - 1
    after = keys.lifecycle_key(log.root.prefix, last_kept)
    entries = [entry for _, entry in islice(numbered(log.store, prefix, after), KEYS_OF_DELETE)]
    first = keys.lifecycle_key(log.root.prefix, keys.MAX)
    age_ms = 2 * max(grace_ms, newest.gc_grace_ms)
    old = _older(log, [entry for entry in entries if entry.key != first], age_ms)
    # A policy from before this version does not allow the delete. Then the records stay.
    with suppress(OptionError):
        delete_listed(log.store, old)
        return len(old)
    return 0


def _older(log: LogStore, entries: list[Entry], age_ms: int) -> list[Entry]:
    """The records that are older than the newest one of this age.

    A late PUT at a freed number is younger than its neighbours. It may end the search early: then
    fewer records are deleted.

    Args:
        log: any log of the path.
        entries: the records, newest first.
        age_ms: the age, by the store's clock.
    """

    def is_old(entry: Entry) -> bool:
        try:
            # SAFETY(chain-record-age) §10: a record is deleted only if it is older than the grace
            return log.store.age_ms(entry.key) > age_ms
        except NotFound:
            # Another process deletes it now.
            return True

    return entries[bisect(entries, False, key=is_old) + 1 :]
