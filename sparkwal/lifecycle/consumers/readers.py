"""The consumers and leases of several logs, as one look shows them."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Generic

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.format.consumer_record import Consumer, ConsumerOfAll
from sparkwal.lifecycle.consumers.objects import C, read, read_of_all
from sparkwal.reading.listing import Listed, list_logs
from sparkwal.store.base import LogStore, NotFound, all_entries
from sparkwal.store.parallel import run_parallel


def is_live(consumer: Consumer, log_id: str, age_ms: int, expiry_ms: int | None) -> bool:
    """Whether the floor of the log must not pass a consumer that published `age_ms` ago.

    A lease lives until it expires, any other consumer until it is older than `expiry_ms`. Without
    `expiry_ms` it lives for ever.
    """
    limit = expiry_ms if consumer.expires_ms is None else consumer.expires_ms
    return consumer.log_id == log_id and (limit is None or age_ms <= limit)


@dataclass
class _Objects(Generic[C]):
    """The consumers in one folder, by the keys of their objects.

    Attributes:
        error: one of the objects is damaged.
    """

    consumers: dict[str, C] = field(default_factory=dict)
    error: InvalidLogError | None = None


@dataclass
class Readers:
    """The consumers and leases of logs of one path.

    A damaged object of a log is an error of that log. A damaged object of a consumer of all logs is
    an error of each log.
    """

    _root: LogStore
    _by_log: dict[str, _Objects[Consumer]]
    _of_all: _Objects[ConsumerOfAll]
    _ages: dict[str, int | None] = field(default_factory=dict)

    def of(self, log: LogStore, log_id: str) -> list[tuple[Consumer, str]]:
        """The consumers of a log with the keys of their objects, by name.

        Args:
            log: one of the logs.
            log_id: its id; without it, consumers of all logs are left out.

        Raises:
            InvalidLogError: one of the objects is damaged.
        """
        own = self._by_log[log.name]
        for error in (own.error, self._of_all.error):
            if error is not None:
                raise error
        pairs = [(consumer, key) for key, consumer in own.consumers.items()]
        for key, of_all in self._of_all.consumers.items() if log_id else ():
            consumer = of_all.in_log(log.name, log_id)
            if consumer is not None:
                pairs.append((consumer, key))
        return sorted(pairs, key=lambda pair: pair[0].name)

    def keys(self, log: LogStore, log_id: str) -> list[str]:
        """The keys of the objects of a log's consumers, or nothing if one is damaged."""
        try:
            return [key for _, key in self.of(log, log_id)]
        except InvalidLogError:
            return []

    def read_ages(self, wanted: Sequence[str]) -> None:
        """Read the ages of objects, 1 request for each. Those of deleted ones are None.

        They are read after the positions. A position that was published in between is newer, so no
        live consumer counts as expired.
        """

        def age(key: str) -> int | None:
            try:
                return self._root.store.age_ms(key)
            except NotFound:
                return None

        new = [key for key in dict.fromkeys(wanted) if key not in self._ages]
        self._ages.update(zip(new, run_parallel(self._root.store, age, new), strict=True))

    def with_ages(self, log: LogStore, log_id: str) -> list[tuple[Consumer, int]]:
        """The consumers of a log, and the ages of their positions in ms by the store's clock.

        It costs 1 request for each whose age is not known yet.

        Raises:
            InvalidLogError: one of the objects is damaged.
        """
        pairs = self.of(log, log_id)
        self.read_ages([key for _, key in pairs])
        ages = ((consumer, self._ages[key]) for consumer, key in pairs)
        return [(consumer, age_ms) for consumer, age_ms in ages if age_ms is not None]

    def bounds(
        self, wanted: Sequence[tuple[LogStore, str, int]], expiry_ms: int | None
    ) -> list[int | InvalidLogError]:
        """Find the highest floor of each log that passes no live consumer (see `is_live`).

        It costs 1 request for each consumer below a wanted floor that might have expired.

        Args:
            wanted: the logs, their ids and the floors that they would have without consumers.
            expiry_ms: see `is_live`.

        Returns:
            The floors, or the errors of logs with a damaged consumer. A floor is below the present
            one if a consumer joined too late; the floor then stays.
        """
        below: list[list[tuple[Consumer, str]] | InvalidLogError] = []
        for log, log_id, floor in wanted:
            try:
                below.append(
                    [
                        (consumer, key)
                        for consumer, key in self.of(log, log_id)
                        if consumer.log_id == log_id and consumer.position < floor
                    ]
                )
            except InvalidLogError as error:
                below.append(error)
        known = (pairs for pairs in below if not isinstance(pairs, InvalidLogError))
        self._read_needed([pair for pairs in known for pair in pairs], expiry_ms)
        floors: list[int | InvalidLogError] = []
        for (_, log_id, floor), pairs in zip(wanted, below, strict=True):
            if isinstance(pairs, InvalidLogError):
                floors.append(pairs)
                continue
            # SAFETY(floor-below-consumers) §10: the floor passes no live consumer
            for consumer, key in pairs:
                if self._is_live(consumer, key, log_id, expiry_ms):
                    floor = min(floor, consumer.position)
            floors.append(floor)
        return floors

    def holders(
        self, log: LogStore, log_id: str, position: int, expiry_ms: int | None
    ) -> list[str]:
        """Name the live consumers and leases that keep a floor from moving above `position`.

        Raises:
            InvalidLogError: a consumer's object is damaged.
        """
        pairs = [pair for pair in self.of(log, log_id) if pair[0].position <= position]
        self._read_needed(pairs, expiry_ms)
        return [
            consumer.name
            for consumer, key in pairs
            if self._is_live(consumer, key, log_id, expiry_ms)
        ]

    def _read_needed(self, pairs: Sequence[tuple[Consumer, str]], expiry_ms: int | None) -> None:
        """Read the ages of those that might have expired."""
        self.read_ages(
            [
                key
                for consumer, key in pairs
                if consumer.expires_ms is not None or expiry_ms is not None
            ]
        )

    def _is_live(self, consumer: Consumer, key: str, log_id: str, expiry_ms: int | None) -> bool:
        # Without an expiry the age does not matter.
        age_ms = self._ages.get(key, 0)
        return age_ms is not None and is_live(consumer, log_id, age_ms, expiry_ms)

    def forget_expired_leases(self) -> None:
        """Delete the leases that have expired: no lease is written twice."""
        leases = dict(self._leases())
        self.read_ages([*leases])
        for key, expires_ms in leases.items():
            age_ms = self._ages[key]
            if age_ms is not None and age_ms > expires_ms:
                self._root.store.delete(key)

    def _leases(self) -> Iterator[tuple[str, int]]:
        """The keys of the leases, and their durations."""
        consumers: dict[str, Consumer | ConsumerOfAll] = {**self._of_all.consumers}
        for objects in self._by_log.values():
            consumers |= objects.consumers
        for key, consumer in consumers.items():
            if consumer.expires_ms is not None:
                yield key, consumer.expires_ms


def look_at_readers(
    logs: Sequence[LogStore], walked: Mapping[str, Listed] = MappingProxyType({})
) -> Readers:
    """Read the consumers and leases of logs of one path.

    It costs 1 LIST for each thousand consumers of a log, 1 LIST more for those of all logs unless
    the log at the path is one of these, and 1 GET for each consumer.

    Args:
        logs: the logs, at least one.
        walked: the result of LISTs of the path, which show some logs.
    """
    root = logs[0].root

    def own(log: LogStore) -> tuple[Sequence[str], _Objects[Consumer]]:
        walk = walked.get(log.name)
        listed = walk.consumers if walk else None
        names: Sequence[str] = _names(log) if listed is None else listed
        return names, _objects(log, [name for name in names if not _is_of_all(name)], read)

    listed = dict(zip((log.name for log in logs), run_parallel(root.store, own, logs), strict=True))
    in_root = next((listed[log.name][0] for log in logs if log == root), None)
    of_all = filter(_is_of_all, _names(root) if in_root is None else in_root)
    return Readers(
        root,
        {name: objects for name, (_, objects) in listed.items()},
        _objects(root, [*of_all], read_of_all),
    )


def _names(log: LogStore) -> list[str]:
    prefix = keys.consumers_prefix(log.prefix)
    names = (entry.key.removeprefix(prefix) for entry in all_entries(log.store, prefix, prefix))
    return [*filter(keys.is_consumer, names)]


def _is_of_all(name: str) -> bool:
    return name.endswith(keys.OF_ALL)


def _objects(
    log: LogStore, names: Sequence[str], read_one: Callable[[LogStore, str], C | None]
) -> _Objects[C]:
    """Read objects of these names, without those that were deleted after the LIST."""

    def outcome(name: str) -> C | InvalidLogError | None:
        try:
            return read_one(log, name.removesuffix(keys.OF_ALL))
        except InvalidLogError as error:
            return error

    objects: _Objects[C] = _Objects()
    for name, one in zip(names, run_parallel(log.store, outcome, names), strict=True):
        if isinstance(one, InvalidLogError):
            objects.error = objects.error or one
        elif one is not None:
            objects.consumers[keys.consumers_prefix(log.prefix) + name] = one
    return objects


def readers_of(logs: Sequence[LogStore], small: Collection[str]) -> Readers:
    """As `look_at_readers`. One LIST shows the consumers of many small logs.

    Args:
        logs: the logs, at least one.
        small: the names of logs with few objects.
    """
    walked = list_logs(logs[0].root, small) if small else {}
    return look_at_readers(logs, walked)


def bounds(
    wanted: Sequence[tuple[LogStore, str, int]],
    expiry_ms: int | None,
    small: Collection[str] = (),
) -> list[int | InvalidLogError]:
    """Find the highest floors that pass no live consumer, by `Readers.bounds` and one look.

    Args:
        wanted: see `Readers.bounds`.
        expiry_ms: see `is_live`.
        small: the names of logs with few objects. One LIST shows the consumers of many of them.
    """
    if not wanted:
        return []
    return readers_of([log for log, _, _ in wanted], small).bounds(wanted, expiry_ms)


def bound(log: LogStore, log_id: str, floor: int, expiry_ms: int | None) -> int:
    """As `bounds`, for one log.

    Raises:
        InvalidLogError: a consumer's object is damaged.
    """
    (result,) = bounds([(log, log_id, floor)], expiry_ms)
    if isinstance(result, InvalidLogError):
        raise result
    return result


def consumers_and_ages(log: LogStore, log_id: str = "") -> list[tuple[Consumer, int]]:
    """List the consumers of one log by name. See `Readers.with_ages`.

    Raises:
        InvalidLogError: a consumer's object is damaged.
    """
    return look_at_readers([log]).with_ages(log, log_id)
