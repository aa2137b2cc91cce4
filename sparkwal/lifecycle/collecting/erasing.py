"""Erases the rows of records that a collection must not delete (PROTOCOL §10)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sparkwal.errors import InvalidLogError, OptionError, SparkWalError
from sparkwal.format import keys
from sparkwal.protocol.erasing import without_rows
from sparkwal.store.base import LogStore, NotFound, Tagged, holds, sound
from sparkwal.store.conditional_replace import replace_fault
from sparkwal.store.parallel import run_parallel


@dataclass(frozen=True)
class Erasure:
    """The result of an erasure.

    Attributes:
        erased: the records whose rows were erased, or would be.
        left: the positions whose records still hold rows, or may hold them.
        reason: for people: why the first of them still does.
        failure: for people: the first error of them; "" if the store cannot erase rows at all.
    """

    erased: int = 0
    left: tuple[int, ...] = ()
    reason: str = ""
    failure: str = ""

    def among(self, positions: Collection[int]) -> "Erasure":
        """The failures at these positions."""
        left = tuple(at for at in self.left if at in positions)
        return Erasure(0, left, self.reason, self.failure) if left else Erasure()

    def __add__(self, later: "Erasure") -> "Erasure":
        return Erasure(
            self.erased + later.erased,
            self.left + later.left,
            self.reason or later.reason,
            self.failure or later.failure,
        )


def erase_rows(
    log: LogStore,
    window: int,
    log_id: str,
    positions: Sequence[int],
    *,
    dry_run: bool = False,
) -> Erasure:
    """Erase the rows in the records of these positions.

    It costs 1 GET for each record, and 1 PUT for each with rows. The first PUT of a process needs
    the proof that the store enforces If-Match.

    Args:
        log: the log.
        window: its window.
        log_id: its id.
        positions: the positions. They are below the floor for longer than the grace, and no
            consumer needs them.
        dry_run: count the records only.
    """

    def erase(position: int) -> bool | str | SparkWalError:
        """Whether the record held rows, or the reason why it still does."""
        try:
            return _erase(log, position, window, log_id, dry_run=dry_run)
        except NotFound:
            # Another collection deleted it.
            return False
        except (InvalidLogError, OptionError) as error:
            return error

    results = [*run_parallel(log.store, erase, positions)]
    left = [
        (position, result)
        for position, result in zip(positions, results, strict=True)
        if not isinstance(result, bool)
    ]
    reason = str(left[0][1]) if left else ""
    failure = next((str(error) for _, error in left if isinstance(error, SparkWalError)), "")
    return Erasure(results.count(True), tuple(position for position, _ in left), reason, failure)


def _erase(log: LogStore, position: int, window: int, log_id: str, *, dry_run: bool) -> bool | str:
    key = log.key(keys.slot(position, window))
    stored, body = _read(log, key, position, window, log_id)
    if body is None or dry_run:
        return body is not None
    fault = replace_fault(log.store, log.root.prefix)
    if fault:
        return fault
    # SAFETY(erase-if-match) §10: only the record that was read is replaced
    if log.store.replace(key, body, stored.etag):
        return True
    # Perhaps by an attempt whose reply was lost.
    return holds(log.store, key, body) or "another process changed the record meanwhile"


def _read(
    log: LogStore, key: str, position: int, window: int, log_id: str
) -> tuple[Tagged, bytes | None]:
    """Read a record, and make the one without rows.

    Raises:
        NotFound: there is no record.
        InvalidLogError: see `without_rows`.
    """

    def read() -> tuple[Tagged, bytes | None]:
        stored = log.store.get_tagged(key)
        return stored, without_rows(log, position, window, stored.body, log_id)

    return sound(key, read, read)
