"""The objects of consumers: readers with a name, for which the log keeps what they have not read.

A consumer of one log publishes its position in the object `{path}/consumers/{name}`. A consumer of
all logs under a path has one object there, `{path}/consumers/{name}.all`, with its position in each
log. In a log that the object does not have, it counts as a consumer at position 0.

The floor passes no live consumer. A consumer that has not published for longer than its expiry is
not live any more. It reads the floor after its rows, and so detects rows that were collected.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format import consumer_record, keys, limits
from sparkwal.format.consumer_record import Consumer, LogPosition
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

# The most attempts to publish while others under the same name publish first.
_TRIES = 5


@dataclass(frozen=True)
class ConsumerObject:
    """The object of a consumer: its key, its size and its form.

    Attributes:
        log: the log that the consumer reads. For a consumer of all logs, the log at the path, which
            need not exist.
        name: the consumer's name.
        is_of_all: the consumer reads all logs under the path.
    """

    log: LogStore
    name: str
    is_of_all: bool = False

    @property
    def key(self) -> str:
        """Its key."""
        name = self.name + keys.OF_ALL if self.is_of_all else self.name
        return keys.consumer_key(self.log.prefix, name)

    @property
    def most(self) -> int:
        """The most bytes that readers take."""
        return limits.CONSUMER_OF_ALL if self.is_of_all else limits.CONSUMER

    def encode(self, consumer: Consumer) -> bytes:
        """The bytes of the object.

        Raises:
            OptionError: they are more than readers take.
        """
        body = consumer_record.encode(consumer, self._only)
        if len(body) > self.most:
            raise OptionError(
                f"the positions of {len(consumer.logs)} logs take {len(body)} bytes; "
                f"{self.most} are read: divide the logs among several paths"
            )
        return body

    def decode(self, body: bytes) -> Consumer:
        """Decode and check the object.

        Raises:
            InvalidLogError: it is damaged, or is another consumer.
        """
        url = f"{self.log.store.url}/{self.key}"
        try:
            consumer = consumer_record.decode(body, url, self._only)
        except InvalidLogError as error:
            raise InvalidLogError(
                f"{error}. If it belongs to no other log, and no reader needs it, delete it"
            ) from None
        if consumer.name != self.name:
            raise InvalidLogError(
                f"{url}: the consumer in it has the name {consumer.name!r}; delete it"
            )
        return consumer

    @property
    def _only(self) -> str | None:
        return None if self.is_of_all else self.log.name


def publish(stored: ConsumerObject, consumer: Consumer) -> None:
    """Publish the positions of a consumer: 1 PUT, which replaces the former ones.

    Raises:
        OptionError: the positions are larger than readers take.
    """
    stored.log.store.put(stored.key, stored.encode(consumer))


def read(stored: ConsumerObject) -> Consumer | None:
    """Read the last positions of a consumer: 1 GET.

    Returns:
        The consumer, or None if it does not exist.

    Raises:
        InvalidLogError: the consumer's object is damaged, or is no consumer.
    """

    def look() -> Consumer:
        return stored.decode(get_whole(stored.log.store, stored.key, stored.most))

    try:
        return sound(stored.key, look, look)
    except NotFound:
        return None


def forget(stored: ConsumerObject) -> None:
    """Let the floors pass a consumer, which need not exist: 1 DELETE."""
    stored.log.store.delete(stored.key)


def update(stored: ConsumerObject, change: Callable[[Consumer | None], Consumer]) -> Consumer:
    """Publish what `change` makes of the published positions: 1 GET and 1 PUT.

    If another process publishes in between, this reads again, so no position is lost. Where the
    store does not compare ETags, the later PUT counts.

    Raises:
        InvalidLogError: the object of a consumer with this name is damaged.
        OptionError: the positions are larger than readers take.
    """
    store, key = stored.log.store, stored.key
    sent = b""
    before: Consumer | None = None

    def look() -> tuple[Tagged | None, Consumer | None]:
        tagged = _tagged(store, key, stored.most)
        # The store may have kept a part of the bytes that an earlier attempt sent.
        if tagged and len(tagged.body) < len(sent) and sent.startswith(tagged.body):
            return tagged, before
        return tagged, stored.decode(tagged.body) if tagged else None

    for _ in range(_TRIES):
        tagged, before = sound(key, look, look)
        consumer = change(before)
        sent = stored.encode(consumer)
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


def with_lower(consumer: Consumer, published: Consumer, names: Collection[str]) -> Consumer:
    """Keep lower positions in force that were published under the consumer's name.

    Args:
        consumer: the positions of one reader.
        published: the positions in the object.
        names: the logs of which lower positions count. The reader itself has released the others.
    """
    waiting = {*names}

    def lower(name: str, own: LogPosition) -> LogPosition:
        other = published.logs.get(name)
        if name not in waiting or other is None or other.log_id != own.log_id:
            return own
        return LogPosition(own.log_id, min(own.position, other.position))

    # SAFETY(lowest-stays) §10: a reader keeps the lower position that another of its name published
    return replace(consumer, logs={name: lower(name, own) for name, own in consumer.logs.items()})


def join(
    stored: ConsumerObject,
    starts: Mapping[str, int],
    change: Callable[[Consumer | None], Consumer],
    *,
    is_new: bool = False,
) -> dict[str, int]:
    """Register a consumer in logs before it reads them.

    It costs 1 GET, 1 PUT, and 1 or 2 requests for the floors.

    Args:
        stored: the consumer's object.
        starts: the positions from which it reads, by the names of the logs.
        change: makes the consumer from the published one. If the floor of a log is above its
            position, the floor takes its place.
        is_new: the name is random, so nothing was published under it: no GET.

    Returns:
        The position at which it may begin in each log: its own, or the floor if that is higher.

    Raises:
        InvalidLogError: the object of a consumer with this name is damaged.
        OptionError: the positions are larger than readers take.
    """
    least: dict[str, int] = {}

    def above(published: Consumer | None) -> Consumer:
        return _at_least(change(published), least)

    # If a coordinator listed the consumers before this PUT, the read after it returns the new
    # floor.
    while True:
        if is_new:
            consumer = above(None)
            publish(stored, consumer)
        else:
            consumer = update(stored, above)
        own = consumer.logs
        floors = _floors(stored.log, consumer, starts)
        passed = {name: floor for name, floor in floors.items() if floor > own[name].position}
        # SAFETY(join-then-floor) §10: a new consumer reads the floors after it wrote its positions
        if not passed:
            return {name: max(start, own[name].position) for name, start in starts.items()}
        least |= passed


def _at_least(consumer: Consumer, floors: Mapping[str, int]) -> Consumer:
    """The consumer with the floors of logs in place of lower positions."""
    raised = {
        name: LogPosition(own.log_id, max(own.position, floors.get(name, 0)))
        for name, own in consumer.logs.items()
    }
    return replace(consumer, logs=raised)


def _floors(log: LogStore, consumer: Consumer, names: Collection[str]) -> dict[str, int]:
    """The floors of these logs: 1 LIST, and 1 GET if the path has a chain."""
    record = newest_record(log)
    floors = {}
    for name in names:
        state = record.log(name, consumer.logs[name].log_id) if record else None
        floors[name] = state.floor if state else 0
    return floors
