"""The consumers and leases of several logs, as one look shows them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.format.consumer_record import Consumer
from sparkwal.lifecycle.consumers.objects import ConsumerObject, read
from sparkwal.reading.listing import Listed
from sparkwal.store.base import LogStore, NotFound, Store, all_entries
from sparkwal.store.parallel import run_parallel


def has_expired(consumer: Consumer, age_ms: int, expiry_ms: int | None) -> bool:
    """Whether the floor may pass a consumer that published `age_ms` ago.

    A lease lives until it expires, any other consumer until it is older than `expiry_ms`. Without
    `expiry_ms` it lives for ever.
    """
    limit = _limit(consumer, expiry_ms)
    return limit is not None and age_ms > limit


def _limit(consumer: Consumer, expiry_ms: int | None) -> int | None:
    return expiry_ms if consumer.expires_ms is None else consumer.expires_ms


# Consumers with the keys of their objects or their ages, or the error of a damaged one.
_Found: TypeAlias = list[tuple[Consumer, str]] | InvalidLogError
_Aged: TypeAlias = list[tuple[Consumer, int]] | InvalidLogError


@dataclass
class _Objects:
    """The consumers in one folder, by the keys of their objects.

    Attributes:
        error: one of the objects is damaged.
    """

    consumers: dict[str, Consumer] = field(default_factory=dict)
    error: InvalidLogError | None = None


@dataclass
class Readers:
    """The consumers and leases of logs of one path.

    A damaged object of a log is an error of that log. A damaged object of a consumer of all logs is
    an error of each log.
    """

    _store: Store
    _by_log: dict[str, _Objects]
    _of_all: _Objects
    _ages: dict[str, int | None] = field(default_factory=dict)

    def _of(self, log: LogStore, log_id: str) -> _Found:
        """The consumers of a log by name. Each has a position in it.

        Without a `log_id`, consumers of all logs are left out.
        """
        own = self._by_log[log.name]
        if error := own.error or self._of_all.error:
            return error
        pairs = [(consumer, key) for key, consumer in own.consumers.items()]
        for key, of_all in self._of_all.consumers.items() if log_id else ():
            consumer = of_all.in_log(log.name, log_id)
            if consumer is not None:
                pairs.append((consumer, key))
        return sorted(pairs, key=lambda pair: pair[0].name)

    def _read_ages(self, wanted: Iterable[str]) -> None:
        """Read the ages of objects, 1 request for each. Those of deleted ones are None.

        They are read after the positions. A position that was published in between is newer, so no
        live consumer counts as expired.
        """

        def age(key: str) -> int | None:
            try:
                return self._store.age_ms(key)
            except NotFound:
                return None

        new = [key for key in dict.fromkeys(wanted) if key not in self._ages]
        self._ages.update(zip(new, run_parallel(self._store, age, new), strict=True))

    def _aged(self, of_logs: Sequence[_Found], matters: Callable[[Consumer], bool]) -> list[_Aged]:
        """The consumers that were not deleted, with their ages, or 0 where that does not matter."""
        self._read_ages(
            key
            for pairs in of_logs
            if not isinstance(pairs, InvalidLogError)
            for consumer, key in pairs
            if matters(consumer)
        )
        return [
            pairs
            if isinstance(pairs, InvalidLogError)
            else [
                (consumer, age_ms)
                for consumer, key in pairs
                if (age_ms := self._ages.get(key, 0)) is not None
            ]
            for pairs in of_logs
        ]

    def with_ages(self, wanted: Sequence[tuple[LogStore, str]]) -> list[_Aged]:
        """The consumers of logs, and the ages of their positions in ms by the store's clock.

        It costs 1 request for each object.

        Args:
            wanted: the logs and their ids. Without an id, consumers of all logs are left out.

        Returns:
            The consumers of each log by name, or the error of a damaged one. Each has a position in
            the log.
        """
        return self._aged([self._of(log, log_id) for log, log_id in wanted], lambda _: True)

    def _holding(
        self, wanted: Sequence[tuple[LogStore, str, int]], expiry_ms: int | None
    ) -> list[_Aged]:
        """The consumers of each log below a floor."""

        def below(log: LogStore, log_id: str, floor: int) -> _Found:
            consumers = self._of(log, log_id)
            if isinstance(consumers, InvalidLogError):
                return consumers
            return [
                (consumer, key)
                for consumer, key in consumers
                if (own := consumer.logs[log.name]).log_id == log_id and own.position < floor
            ]

        return self._aged(
            [below(*item) for item in wanted],
            lambda consumer: _limit(consumer, expiry_ms) is not None,
        )

    def bounds(
        self, wanted: Sequence[tuple[LogStore, str, int]], expiry_ms: int | None
    ) -> list[int | InvalidLogError]:
        """Find the highest floor of each log that passes no live consumer (see `has_expired`).

        It costs 1 request for each consumer below a wanted floor that might have expired.

        Args:
            wanted: the logs, their ids and the floors that they would have without consumers.
            expiry_ms: see `has_expired`.

        Returns:
            The floors, or the errors of logs with a damaged consumer. A floor is below the present
            one if a consumer joined too late; the floor then stays.
        """
        floors: list[int | InvalidLogError] = []
        holding = self._holding(wanted, expiry_ms)
        for (log, _, floor), pairs in zip(wanted, holding, strict=True):
            if isinstance(pairs, InvalidLogError):
                floors.append(pairs)
                continue
            # SAFETY(floor-below-consumers) §10: the floor passes no live consumer
            for consumer, age_ms in pairs:
                if not has_expired(consumer, age_ms, expiry_ms):
                    floor = min(floor, consumer.logs[log.name].position)
            floors.append(floor)
        return floors

    def holders(
        self, log: LogStore, log_id: str, position: int, expiry_ms: int | None
    ) -> list[str]:
        """Name the live consumers and leases that keep a floor from moving above `position`.

        Raises:
            InvalidLogError: a consumer's object is damaged.
        """
        (pairs,) = self._holding([(log, log_id, position + 1)], expiry_ms)
        if isinstance(pairs, InvalidLogError):
            raise pairs
        return [
            reader.name for reader, age_ms in pairs if not has_expired(reader, age_ms, expiry_ms)
        ]

    def forget_expired_leases(self) -> None:
        """Delete the leases that have expired: no lease is written twice."""
        leases = {
            key: consumer
            for objects in (self._of_all, *self._by_log.values())
            for key, consumer in objects.consumers.items()
            if consumer.expires_ms is not None
        }
        self._read_ages(leases)
        for key, lease in leases.items():
            age_ms = self._ages[key]
            if age_ms is not None and has_expired(lease, age_ms, None):
                self._store.delete(key)


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

    def own(log: LogStore) -> tuple[list[ConsumerObject], _Objects]:
        walk = walked.get(log.name)
        listed = _listed(log, walk.consumers if walk else None)
        return listed, _read([stored for stored in listed if not stored.is_of_all])

    names = [log.name for log in logs]
    own_objects = dict(zip(names, run_parallel(root.store, own, logs), strict=True))
    in_root = own_objects[root.name][0] if root.name in own_objects else _listed(root, None)
    return Readers(
        root.store,
        {name: objects for name, (_, objects) in own_objects.items()},
        _read([stored for stored in in_root if stored.is_of_all]),
    )


def _listed(log: LogStore, names: Sequence[str] | None) -> list[ConsumerObject]:
    """The objects of these names in a log's folder of consumers; without names, all in it."""
    if names is None:
        prefix = keys.consumers_prefix(log.prefix)
        entries = all_entries(log.store, prefix, prefix)
        names = [entry.key.removeprefix(prefix) for entry in entries]
    return [
        ConsumerObject(log, name.removesuffix(keys.OF_ALL), name.endswith(keys.OF_ALL))
        for name in names
        if keys.is_consumer(name)
    ]


def _read(listed: Sequence[ConsumerObject]) -> _Objects:
    """Read objects, without those that were deleted after the LIST."""

    def outcome(stored: ConsumerObject) -> Consumer | InvalidLogError | None:
        try:
            return read(stored)
        except InvalidLogError as error:
            return error

    objects = _Objects()
    if listed:
        outcomes = run_parallel(listed[0].log.store, outcome, listed)
        for stored, one in zip(listed, outcomes, strict=True):
            if isinstance(one, InvalidLogError):
                objects.error = objects.error or one
            elif one is not None:
                objects.consumers[stored.key] = one
    return objects
