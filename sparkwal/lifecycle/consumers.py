"""Consumers: readers with a name, for which the log keeps the rows that they have not read.

A consumer publishes its position in the object `{path}/consumers/{name}`. The floor passes no live
consumer. A consumer that has not published for longer than its expiry is not live any more. It
reads the floor after its rows, and so detects rows that were collected.

A consumer of all logs under a path has one more object there, `{path}/consumers/{name}.all`. In a
log where it has not registered yet, it counts as a consumer at position 0.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format import keys, limits
from sparkwal.format.consumer_record import Consumer, decode, encode
from sparkwal.lifecycle.policy import LifecycleOptions
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.chain import newest_lifecycle
from sparkwal.protocol.recovery import Head, find_head
from sparkwal.reading.estimates import lag_ms
from sparkwal.reading.listing import list_logs
from sparkwal.reading.sequencers import all_logs
from sparkwal.store.base import LogStore, NotFound, all_entries, get_whole
from sparkwal.store.parallel import run_parallel

# The log_id in the object of a consumer of all logs. No log has this id.
_OF_NONE = "*"


def is_live(consumer: Consumer, log_id: str, age_ms: int, expiry_ms: int | None) -> bool:
    """Whether the floor of the log must not pass a consumer that published `age_ms` ago.

    A lease lives until it expires, any other consumer until it is older than `expiry_ms`. Without
    `expiry_ms` it lives for ever.
    """
    limit = expiry_ms if consumer.expires_ms is None else consumer.expires_ms
    return consumer.log_id == log_id and (limit is None or age_ms <= limit)


def publish(log: LogStore, consumer: Consumer) -> None:
    """Publish the position of a consumer: 1 PUT, which replaces the former position."""
    log.store.put(keys.consumer_key(log.prefix, consumer.name), encode(consumer))


def publish_of_all(root: LogStore, consumer: Consumer) -> None:
    """Protect the logs under a path in which a consumer of all has not registered yet: 1 PUT.

    Args:
        root: the log at the path, which need not exist.
        consumer: the consumer, whose `log_id` and `position` are replaced.
    """
    written = replace(consumer, log_id=_OF_NONE, position=0)
    root.store.put(keys.consumer_of_all_key(root.prefix, consumer.name), encode(written))


def read(log: LogStore, name: str) -> Consumer | None:
    """Read the last position of a consumer: 1 GET.

    Returns:
        The consumer, or None if it does not exist.

    Raises:
        InvalidLogError: the consumer's object is damaged, or is no consumer.
    """
    return _read(log, name, name)


def _read(log: LogStore, entry: str, name: str) -> Consumer | None:
    key = keys.consumers_prefix(log.prefix) + entry
    url = f"{log.store.url}/{key}"
    if not keys.CONSUMER_NAME.fullmatch(name):
        raise InvalidLogError(f"{url!r}: this is no name of a consumer; delete the object")
    try:
        consumer = decode(get_whole(log.store, key, limits.CONSUMER), url)
    except NotFound:
        return None
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


@dataclass(frozen=True)
class Names:
    """The names of the objects of a log's consumers, and of the consumers of all logs."""

    own: Sequence[str]
    of_all: Sequence[str]


def consumers_and_ages(
    log: LogStore, log_id: str = "", names: Names | None = None
) -> list[tuple[Consumer, int]]:
    """List all consumers by name, and the age of their positions in ms by the store's clock.

    It costs 1 LIST for each thousand, and 2 requests for each; 1 LIST more in a sequencer's log.

    Args:
        log: the open log.
        log_id: its id; without it, consumers of all logs that have not registered are left out.
        names: what the caller has listed, instead of the LISTs.

    Raises:
        InvalidLogError: a consumer's object is damaged.
    """

    def with_age(consumer_and_key: tuple[Consumer, str]) -> tuple[Consumer, int | None]:
        consumer, key = consumer_and_key
        return consumer, published_ms_ago(log, key)

    pairs = run_parallel(log.store, with_age, iter_consumers(log, log_id, names))
    listed = [(consumer, age_ms) for consumer, age_ms in pairs if age_ms is not None]
    return sorted(listed, key=lambda pair: pair[0].name)


def names_of_all(root: LogStore) -> list[str]:
    """The names of the objects of the consumers of all logs under a path: 1 LIST."""
    return [*filter(_is_of_all, _entries(root))]


def iter_consumers(
    log: LogStore, log_id: str = "", names: Names | None = None
) -> Iterator[tuple[Consumer, str]]:
    """Each consumer of the log, and the key of its object.

    With `log_id`, this includes consumers of all logs that have not registered in this log, at
    position 0.
    """
    entries = names.own if names else _entries(log)
    seen = set()
    for _, consumer in _read_all(log, [name for name in entries if not _is_of_all(name)]):
        if consumer.log_id == log_id:
            seen.add(consumer.name)
        yield consumer, keys.consumer_key(log.prefix, consumer.name)
    if not log_id:
        return
    root = log.root
    in_root = names.of_all if names else entries if root is log else _entries(root)
    of_all = filter(_is_of_all, in_root)
    unseen = [name for name in of_all if name.removesuffix(keys.OF_ALL) not in seen]
    for name, consumer in _read_all(root, unseen):
        # Its object is at the root. In this log, it counts as a consumer at position 0.
        yield replace(consumer, log_id=log_id, position=0), keys.consumer_key(root.prefix, name)


def _entries(log: LogStore) -> list[str]:
    prefix = keys.consumers_prefix(log.prefix)
    entries = all_entries(log.store, prefix, after=prefix)
    return [entry.key.removeprefix(prefix) for entry in entries]


def _is_of_all(entry: str) -> bool:
    return entry.endswith(keys.OF_ALL)


def _read_all(log: LogStore, entries: list[str]) -> Iterator[tuple[str, Consumer]]:
    """The consumers of these objects, without those that were deleted after the LIST."""

    def read_entry(entry: str) -> tuple[str, Consumer | None]:
        return entry, _read(log, entry, entry.removesuffix(keys.OF_ALL))

    for entry, consumer in run_parallel(log.store, read_entry, entries):
        if consumer is not None:
            yield entry, consumer


def published_ms_ago(log: LogStore, key: str) -> int | None:
    """The age of a consumer's position, or None if the consumer was forgotten.

    Call it after its position was read. A position published in between is newer, so no live
    consumer counts as expired.
    """
    try:
        return log.store.age_ms(key)
    except NotFound:
        return None


def bound(log: LogStore, log_id: str, floor: int, expiry_ms: int | None) -> int:
    """Find the highest floor up to `floor` that passes no live consumer (see `is_live`).

    The result is below the present floor if a consumer joined too late; the floor then stays. It
    costs 1 LIST for each thousand consumers, 1 GET for each, and 1 request more for each that is
    below `floor` and might have expired; 1 LIST more in a sequencer's log.

    Raises:
        InvalidLogError: a consumer's object is damaged.
    """
    return bounds([(log, log_id, floor)], expiry_ms)[0]


def bounds(
    logs: Sequence[tuple[LogStore, str, int]],
    expiry_ms: int | None,
    small: Collection[str] = (),
) -> list[int]:
    """As `bound`, for several logs of one path with their ids and floors.

    It lists the consumers of all logs once, after those of each log.

    Args:
        logs: the logs, their ids and their floors.
        expiry_ms: see `is_live`.
        small: the names of logs with few objects. One LIST shows the consumers of many of them.

    Raises:
        InvalidLogError: a consumer's object is damaged.
    """
    if not logs:
        return []
    root = logs[0][0].root

    walked = list_logs(root, small) if small else {}

    def own(log: LogStore) -> tuple[Sequence[str], list[Consumer]]:
        walk = walked.get(log.name)
        listed = walk.consumers if walk else None
        entries: Sequence[str] = _entries(log) if listed is None else listed
        names = [name for name in entries if not _is_of_all(name)]
        return entries, [consumer for _, consumer in _read_all(log, names)]

    listed = [*run_parallel(root.store, own, [log for log, _, _ in logs])]
    seen_by = [
        {consumer.name for consumer in consumers if consumer.log_id == log_id}
        for (_, log_id, _), (_, consumers) in zip(logs, listed, strict=True)
    ]
    seen_by_all = set.intersection(*seen_by)
    is_root_alone = len(logs) == 1 and logs[0][0] is root
    in_root = filter(_is_of_all, listed[0][0] if is_root_alone else _entries(root))
    wanted_of_all = [name for name in in_root if name.removesuffix(keys.OF_ALL) not in seen_by_all]
    of_all = [*_read_all(root, wanted_of_all)]
    ages: dict[str, int | None] = {}

    def is_waited_for(consumer: Consumer, log_id: str, key: str) -> bool:
        if consumer.expires_ms is None and expiry_ms is None:
            return True
        if key not in ages:
            ages[key] = published_ms_ago(root, key)
        age_ms = ages[key]
        return age_ms is not None and is_live(consumer, log_id, age_ms, expiry_ms)

    results = []
    for (log, log_id, wanted), (_, consumers), seen in zip(logs, listed, seen_by, strict=True):
        here = [(c, keys.consumer_key(log.prefix, c.name)) for c in consumers]
        # SAFETY(unseen-logs-held) §10: a consumer of all logs holds those that it has not seen
        unseen = [pair for pair in of_all if pair[1].name not in seen]
        here += [
            (replace(consumer, log_id=log_id, position=0), keys.consumer_key(root.prefix, entry))
            for entry, consumer in unseen
        ]
        floor = wanted
        # SAFETY(floor-below-consumers) §10: the floor passes no live consumer
        for consumer, key in here:
            if consumer.log_id != log_id or consumer.position >= floor:
                continue
            if is_waited_for(consumer, log_id, key):
                floor = consumer.position
        results.append(floor)
    return results


def holders(log: LogStore, log_id: str, position: int, expiry_ms: int | None) -> list[str]:
    """Name the live consumers and leases that keep a floor from moving above `position`.

    It costs 1 LIST for each thousand consumers, and 2 requests for each.

    Raises:
        InvalidLogError: a consumer's object is damaged.
    """
    return sorted(
        consumer.name
        for consumer, age_ms in consumers_and_ages(log, log_id)
        if consumer.position <= position and is_live(consumer, log_id, age_ms, expiry_ms)
    )


def join(log: LogStore, consumer: Consumer) -> int:
    """Register a consumer before it reads: 1 GET, 1 PUT, and 1 or 2 requests for the floor.

    A lower position that was published under its name stays in force: another reader may have the
    same name.

    Returns:
        The position at which it may begin: its own, or the floor if that is higher.

    Raises:
        InvalidLogError: the object of a consumer with this name is damaged.
    """
    before = read(log, consumer.name)
    if before is None or before.log_id != consumer.log_id:
        return register(log, consumer)
    lowest = replace(consumer, position=min(before.position, consumer.position))
    return max(register(log, lowest), consumer.position)


def register(log: LogStore, consumer: Consumer) -> int:
    """Publish a consumer at its position, or at the floor if that is higher.

    Returns:
        The published position.
    """
    # If a coordinator listed the consumers before this PUT, the read after it returns the new
    # floor.
    while True:
        publish(log, consumer)
        head = newest_lifecycle(log, consumer.log_id)
        floor = head.floor if head else 0
        # SAFETY(join-then-floor) §10: a new consumer reads the floor after it wrote its position
        if floor <= consumer.position:
            return consumer.position
        consumer = replace(consumer, position=floor)


@dataclass(frozen=True)
class ConsumerInfo:
    """The progress of a consumer.

    Attributes:
        name: the consumer's name.
        sequencer: the log under the path that it reads; "default" is the log at the path itself.
        position: the next position that it will read, as it published last; 0 if it reads all logs
            and has not registered in this one yet.
        lag: the number of positions from there to the end of the log.
        lag_ms: the time between the record at its position and the newest one, or None if that
            record was collected, or if the consumer read another log.
        age_ms: the time since it last published, by the store's clock.
        host: the machine that it runs on.
        expires_ms: the duration of a lease, or None for other consumers.
        of_this_log: whether it reads this log. Otherwise it read a former log at this path; forget
            it.
        live: whether the floor waits for it.
    """

    name: str
    sequencer: str
    position: int
    lag: int
    lag_ms: int | None
    age_ms: int
    host: str
    expires_ms: int | None
    of_this_log: bool
    live: bool


def consumers(path: str, *, expiry: str | None = None, **options: object) -> list[ConsumerInfo]:
    """List the consumers of a log, or with sequencers="*" of all logs under the path.

    It costs 2 requests for each consumer, and 1 more if it lags.

    Args:
        path: s3://bucket/prefix, file:///folder or a folder.
        expiry: the expiry that compaction runs with, such as "7d". A consumer that has not
            published for longer is not live. By default each is live.
        **options: as for `sparkwal.Log`.

    Returns:
        The consumers, by log and name. Leases are among them.

    Raises:
        InvalidLogError: a consumer's object or the log's end is damaged.
        OptionError: an option or the path is wrong.
        StoreUnavailableError: the store did not answer.
    """
    settings = from_keywords(SourceOptions, path, options)
    expiry_options = {} if expiry is None else {"consumerExpiry": expiry}
    expiry_ms = from_keywords(LifecycleOptions, path, expiry_options).consumer_expiry_ms
    logs = _logs(settings).items()
    infos = (consumer_infos(log, name, find_head(log), expiry_ms) for name, log in logs)
    return [*chain.from_iterable(infos)]


def _logs(settings: SourceOptions) -> dict[str, LogStore]:
    """The logs of these options, by sequencer."""
    root = open_log(settings, fail_fast=True)
    if settings.sequencers:
        return {name: root.sequencer(name) for name in all_logs(root)}
    return {settings.sequencer: root}


def consumer_infos(
    log: LogStore,
    sequencer: str,
    head: Head,
    expiry_ms: int | None,
    names: Names | None = None,
) -> list[ConsumerInfo]:
    """List the consumers of one open log, as `consumers`. See `consumers_and_ages`."""
    log_id = head.live.header.log_id if head.live else ""

    def info(consumer_and_age: tuple[Consumer, int]) -> ConsumerInfo:
        consumer, age_ms = consumer_and_age
        of_this_log = consumer.log_id == log_id
        return ConsumerInfo(
            name=consumer.name,
            sequencer=sequencer,
            position=consumer.position,
            lag=max(0, head.gap - consumer.position) if of_this_log else 0,
            lag_ms=lag_ms(log, head, consumer.position) if of_this_log else None,
            age_ms=age_ms,
            host=consumer.host,
            expires_ms=consumer.expires_ms,
            of_this_log=of_this_log,
            live=is_live(consumer, log_id, age_ms, expiry_ms),
        )

    return list(run_parallel(log.store, info, consumers_and_ages(log, log_id, names)))


def forget_consumer(path: str, name: str, **options: object) -> None:
    """Let the floor of a log pass a consumer that will not read again: 1 DELETE.

    The consumer need not exist. If it still runs, it registers again when it next publishes.
    A consumer of all logs is forgotten in all of them.

    Args:
        path: s3://bucket/prefix, file:///folder or a folder.
        name: the consumer's name.
        **options: as for `sparkwal.Log`; with sequencers="*" in all logs under the path.

    Raises:
        OptionError: an option, the path or the name is wrong, or the consumer reads all logs and
            `sequencers` is not "*".
        StoreUnavailableError: the store did not answer.
    """
    settings = from_keywords(SourceOptions, path, {**options, "consumer": name})
    logs = _logs(settings)
    root = open_log(settings, fail_fast=True).root
    if settings.sequencers:
        root.store.delete(keys.consumer_of_all_key(root.prefix, name))
    elif _read(root, name + keys.OF_ALL, name) is not None:
        raise OptionError(
            f"the consumer {name} reads all logs under {root.url}, and would hold this one at its "
            'beginning: forget it in all of them, with sequencers="*"'
        )
    for log in logs.values():
        forget(log, name)
