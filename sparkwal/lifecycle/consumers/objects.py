"""The objects of consumers: readers with a name, for which the log keeps what they have not read.

A consumer of one log publishes its position in the object `{path}/consumers/{name}`. A consumer of
all logs under a path has one object there, `{path}/consumers/{name}.all`, with its position in each
log. In a log that the object does not have, it counts as a consumer at position 0.

The floor passes no live consumer. A consumer that has not published for longer than its expiry is
not live any more. It reads the floor after its rows, and so detects rows that were collected.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format import keys, limits
from sparkwal.format.consumer_record import (
    Consumer,
    ConsumerOfAll,
    LogPosition,
    decode,
    decode_of_all,
    encode,
)
from sparkwal.protocol.chain import newest_record
from sparkwal.store.base import (
    LogStore,
    NotFound,
    Store,
    Tagged,
    get_whole,
    get_whole_tagged,
    sound,
)

C = TypeVar("C", Consumer, ConsumerOfAll)
# The most attempts to publish while others under the same name publish first.
_TRIES = 5


def publish(log: LogStore, consumer: Consumer) -> None:
    """Publish the position of a consumer: 1 PUT, which replaces the former position."""
    log.store.put(keys.consumer_key(log.prefix, consumer.name), encode(consumer))


def publish_of_all(root: LogStore, consumer: ConsumerOfAll) -> None:
    """Publish the positions of a consumer in all logs: 1 PUT, which replaces the former ones.

    Args:
        root: the log at the path, which need not exist.
        consumer: the consumer. It counts as a consumer at position 0 in other logs.

    Raises:
        OptionError: the positions are larger than readers take.
    """
    root.store.put(keys.consumer_of_all_key(root.prefix, consumer.name), encode(consumer))


def read(log: LogStore, name: str) -> Consumer | None:
    """Read the last position of a consumer: 1 GET.

    Returns:
        The consumer, or None if it does not exist.

    Raises:
        InvalidLogError: the consumer's object is damaged, or is no consumer.
    """
    return _read(log, name, "", limits.CONSUMER, decode)


def read_of_all(root: LogStore, name: str) -> ConsumerOfAll | None:
    """Read the last positions of a consumer of all logs: 1 GET. See `read`."""
    return _read(root, name, keys.OF_ALL, limits.CONSUMER_OF_ALL, decode_of_all)


def _read(
    log: LogStore, name: str, suffix: str, most: int, decode_it: Callable[[bytes, str], C]
) -> C | None:
    # A name from a LIST may be anything, and is not checked yet.
    key = keys.consumers_prefix(log.prefix) + name + suffix
    url = f"{log.store.url}/{key}"
    if not keys.CONSUMER_NAME.fullmatch(name):
        raise InvalidLogError(f"{url!r}: this is no name of a consumer; delete the object")

    def read_it() -> C:
        return _decoded(get_whole(log.store, key, most), url, name, decode_it)

    try:
        return sound(key, read_it, read_it)
    except NotFound:
        return None


def _decoded(body: bytes, url: str, name: str, decode_it: Callable[[bytes, str], C]) -> C:
    try:
        consumer = decode_it(body, url)
    except InvalidLogError as error:
        raise InvalidLogError(
            f"{error}. If it belongs to no other log, and no reader needs it, delete it"
        ) from None
    if consumer.name != name:
        raise InvalidLogError(
            f"{url}: the consumer in it has the name {consumer.name!r}; delete it"
        )
    return consumer


def forget(log: LogStore, name: str) -> None:
    """Let the floor pass a consumer; it need not exist."""
    log.store.delete(keys.consumer_key(log.prefix, name))


def forget_of_all(root: LogStore, name: str) -> None:
    """Let the floors of all logs pass a consumer of all; it need not exist."""
    root.store.delete(keys.consumer_of_all_key(root.prefix, name))


class Registry(Protocol):
    """The object of a consumer of one log, or of all."""

    @property
    def log(self) -> LogStore:
        """The log, or the one at the path."""

    def key(self, name: str) -> str:
        """The key of the object of a consumer."""

    @property
    def most(self) -> int:
        """The most bytes of an object."""

    def encode(self, consumer: ConsumerOfAll) -> bytes:
        """The bytes of a consumer's object."""

    def decode(self, body: bytes, name: str) -> ConsumerOfAll:
        """Decode and check the object of a consumer."""

    def publish(self, consumer: ConsumerOfAll) -> None:
        """Publish positions: 1 PUT."""

    def forget(self, name: str) -> None:
        """Delete the object: 1 DELETE."""


@dataclass(frozen=True)
class OfOneLog:
    """The objects of consumers of one log."""

    log: LogStore
    most = limits.CONSUMER

    def key(self, name: str) -> str:
        """The key of the object of a consumer."""
        return keys.consumer_key(self.log.prefix, name)

    def encode(self, consumer: ConsumerOfAll) -> bytes:
        """The bytes of a consumer's object, with the position in this log."""
        ((name, own),) = consumer.logs.items()
        of_one = consumer.in_log(name, own.log_id)
        assert of_one is not None
        return encode(of_one)

    def decode(self, body: bytes, name: str) -> ConsumerOfAll:
        """Decode and check the object of a consumer."""
        return self.of_all(_decoded(body, f"{self.log.store.url}/{self.key(name)}", name, decode))

    def of_all(self, consumer: Consumer) -> ConsumerOfAll:
        """A consumer of this log in the form of one of all logs."""
        return ConsumerOfAll(
            consumer.name,
            {self.log.name: LogPosition(consumer.log_id, consumer.position)},
            consumer.timestamp_ms,
            consumer.host,
            consumer.run_id,
            consumer.expires_ms,
        )

    def publish(self, consumer: ConsumerOfAll) -> None:
        """Publish the position: 1 PUT."""
        self.log.store.put(self.key(consumer.name), self.encode(consumer))

    def forget(self, name: str) -> None:
        """Delete the object: 1 DELETE."""
        forget(self.log, name)


@dataclass(frozen=True)
class OfAllLogs:
    """The objects of consumers of all logs under the path of `log`."""

    log: LogStore
    most = limits.CONSUMER_OF_ALL

    def key(self, name: str) -> str:
        """The key of the object of a consumer."""
        return keys.consumer_of_all_key(self.log.prefix, name)

    def encode(self, consumer: ConsumerOfAll) -> bytes:
        """The bytes of a consumer's object."""
        return encode(consumer)

    def decode(self, body: bytes, name: str) -> ConsumerOfAll:
        """Decode and check the object of a consumer."""
        return _decoded(body, f"{self.log.store.url}/{self.key(name)}", name, decode_of_all)

    def publish(self, consumer: ConsumerOfAll) -> None:
        """Publish the positions: 1 PUT."""
        publish_of_all(self.log, consumer)

    def forget(self, name: str) -> None:
        """Delete the object: 1 DELETE."""
        forget_of_all(self.log, name)


def update(
    registry: Registry, name: str, change: Callable[[ConsumerOfAll | None], ConsumerOfAll]
) -> ConsumerOfAll:
    """Publish what `change` makes of the published positions: 1 GET and 1 PUT.

    If another process publishes in between, this reads again, so no position is lost. Where the
    store does not compare ETags, the later PUT counts.

    Raises:
        InvalidLogError: the object of a consumer with this name is damaged.
        OptionError: the positions are larger than readers take.
    """
    store = registry.log.store
    key = registry.key(name)
    sent = b""
    before: ConsumerOfAll | None = None

    def look() -> tuple[Tagged | None, ConsumerOfAll | None]:
        tagged = _tagged(store, key, registry.most)
        # The store may have kept a part of the bytes that an earlier attempt sent.
        if tagged and len(tagged.body) < len(sent) and sent.startswith(tagged.body):
            return tagged, before
        return tagged, registry.decode(tagged.body, name) if tagged else None

    for _ in range(_TRIES):
        tagged, before = sound(key, look, look)
        consumer = change(before)
        sent = registry.encode(consumer)
        if _replaced(store, key, sent, tagged):
            return consumer
    store.put(key, sent)
    return consumer


def _tagged(store: Store, key: str, most: int) -> Tagged | None:
    try:
        return get_whole_tagged(store, key, most)
    except NotFound:
        return None


def _replaced(store: Store, key: str, body: bytes, before: Tagged | None) -> bool:
    """Write an object, unless another process has written it since it was read."""
    if before is None:
        return store.put_if_absent(key, body)
    try:
        return store.replace(key, body, before.etag)
    except OptionError:
        # The store has no If-Match, or refuses the caller.
        store.put(key, body)
        return True


def with_lower(
    consumer: ConsumerOfAll, published: ConsumerOfAll | None, names: Collection[str]
) -> ConsumerOfAll:
    """Keep lower positions in force that were published under the consumer's name.

    Args:
        consumer: the positions of one reader.
        published: the positions in the object.
        names: the logs of which lower positions count. The reader itself has released the others.
    """
    before = published.logs if published else {}
    waiting = {*names}

    def lower(name: str, own: LogPosition) -> LogPosition:
        other = before.get(name)
        if name not in waiting or other is None or other.log_id != own.log_id:
            return own
        return LogPosition(own.log_id, min(own.position, other.position))

    # SAFETY(lowest-stays) §10: a reader keeps the lower position that another of its name published
    return replace(consumer, logs={name: lower(name, own) for name, own in consumer.logs.items()})


def join(log: LogStore, consumer: Consumer) -> int:
    """Register a consumer of one log before it reads, as `join_of_all`.

    Returns:
        The position at which it may begin: its own, or the floor if that is higher.

    Raises:
        InvalidLogError: the object of a consumer with this name is damaged.
    """
    registry = OfOneLog(log)
    return _join(registry, registry.of_all(consumer))[log.name]


def join_of_all(root: LogStore, consumer: ConsumerOfAll) -> Mapping[str, int]:
    """Register a consumer before it reads: 1 GET, 1 PUT, and 1 or 2 requests for the floors.

    A lower position that was published under its name stays in force: another reader may have the
    same name.

    Returns:
        The position at which it may begin in each log: its own, or the floor if that is higher.

    Raises:
        InvalidLogError: the object of a consumer with this name is damaged.
        OptionError: the positions are larger than readers take.
    """
    return _join(OfAllLogs(root), consumer)


def _join(registry: Registry, consumer: ConsumerOfAll) -> Mapping[str, int]:
    def publish_above(floors: Mapping[str, int]) -> ConsumerOfAll:
        return update(
            registry,
            consumer.name,
            lambda before: at_least(with_lower(consumer, before, consumer.logs), floors),
        )

    registered = register(registry.log, consumer.logs, publish_above)
    return {name: max(registered[name], own.position) for name, own in consumer.logs.items()}


def register(
    log: LogStore,
    names: Collection[str],
    publish_above: Callable[[Mapping[str, int]], ConsumerOfAll],
) -> Mapping[str, int]:
    """Publish a consumer. If the floor of a log is above its position, the floor takes its place.

    Args:
        log: the log of the object, or the one at the path.
        names: the logs in which the consumer registers now.
        publish_above: publishes the positions, at least the given ones, and returns them.

    Returns:
        The published position in each of these logs.
    """
    # If a coordinator listed the consumers before this PUT, the read after it returns the new
    # floor.
    least: dict[str, int] = {}
    while True:
        consumer = publish_above(least)
        own = consumer.logs
        floors = _floors(log, consumer, names)
        passed = {name: floor for name, floor in floors.items() if floor > own[name].position}
        # SAFETY(join-then-floor) §10: a new consumer reads the floors after it wrote its positions
        if not passed:
            return {name: own[name].position for name in names}
        least |= passed


def at_least(consumer: ConsumerOfAll, floors: Mapping[str, int]) -> ConsumerOfAll:
    """The consumer with the floors of logs in place of lower positions."""
    raised = {
        name: LogPosition(own.log_id, max(own.position, floors.get(name, 0)))
        for name, own in consumer.logs.items()
    }
    return replace(consumer, logs=raised)


def _floors(log: LogStore, consumer: ConsumerOfAll, names: Collection[str]) -> dict[str, int]:
    """The floors of these logs: 1 LIST, and 1 GET if the path has a chain."""
    record = newest_record(log)
    floors = {}
    for name in names:
        state = record.log(name, consumer.logs[name].log_id) if record else None
        floors[name] = state.floor if state else 0
    return floors
