"""Lists the consumers of logs with their progress, and forgets one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Unpack

from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format.consumer_record import Consumer
from sparkwal.lifecycle.consumers.objects import ConsumerObject, read
from sparkwal.lifecycle.consumers.readers import has_expired, look_at_readers
from sparkwal.lifecycle.policy import LifecycleOptions
from sparkwal.options.keywords import SourceKeywords
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.options.types import ALL
from sparkwal.protocol.recovery import Head, find_head
from sparkwal.protocol.segments import with_copies
from sparkwal.reading.estimates import lag_ms
from sparkwal.reading.listing import Listed
from sparkwal.reading.sequencers import logs_of
from sparkwal.store.base import KEYS_OF_DELETE, LogStore
from sparkwal.store.parallel import run_parallel


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
        table_files: the number of files of the table that it will read first, as it published last;
            None if it reads the log.
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
    table_files: int | None


def consumers(
    path: str, *, expiry: str | None = None, **options: Unpack[SourceKeywords]
) -> list[ConsumerInfo]:
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
    logs = _logs(settings)
    if not logs:
        return []
    store = next(iter(logs.values())).store
    heads = run_parallel(store, find_head, logs.values())
    listed = []
    for infos in consumer_infos(
        [(log, name, head) for (name, log), head in zip(logs.items(), heads, strict=True)],
        expiry_ms,
    ):
        if isinstance(infos, InvalidLogError):
            raise infos
        listed += infos
    return listed


def _logs(settings: SourceOptions) -> dict[str, LogStore]:
    """The logs of these options, by sequencer."""
    root = open_log(settings, fail_fast=True)
    if settings.sequencers:
        return {name: with_copies(root.sequencer(name)) for name in logs_of(root, settings)}
    return {settings.sequencer: with_copies(root)}


def consumer_infos(
    logs: Sequence[tuple[LogStore, str, Head]],
    expiry_ms: int | None,
    walked: Mapping[str, Listed] = MappingProxyType({}),
) -> list[list[ConsumerInfo] | InvalidLogError]:
    """List the consumers of open logs of one path, as `consumers`.

    Args:
        logs: the logs, the names of their sequencers, and their heads.
        expiry_ms: see `has_expired`.
        walked: see `look_at_readers`.

    Returns:
        The consumers of each log, or the error of a log with a damaged consumer.
    """
    if not logs:
        return []
    readers = look_at_readers([log for log, _, _ in logs], walked)
    pairs_of_logs = readers.with_ages([(log, _log_id(head)) for log, _, head in logs])

    def infos(number: int) -> list[ConsumerInfo] | InvalidLogError:
        log, sequencer, head = logs[number]
        pairs = pairs_of_logs[number]
        if isinstance(pairs, InvalidLogError):
            return pairs
        return [_info(log, sequencer, head, pair, expiry_ms) for pair in pairs]

    return [*run_parallel(logs[0][0].store, infos, range(len(logs)))]


def _log_id(head: Head) -> str:
    return head.live.header.log_id if head.live else ""


def _info(
    log: LogStore,
    sequencer: str,
    head: Head,
    consumer_and_age: tuple[Consumer, int],
    expiry_ms: int | None,
) -> ConsumerInfo:
    consumer, age_ms = consumer_and_age
    own = consumer.logs[log.name]
    of_this_log = own.log_id == _log_id(head)
    return ConsumerInfo(
        name=consumer.name,
        sequencer=sequencer,
        position=own.position,
        lag=max(0, head.gap - own.position) if of_this_log else 0,
        lag_ms=lag_ms(log, head, own.position) if of_this_log else None,
        age_ms=age_ms,
        host=consumer.host,
        expires_ms=consumer.expires_ms,
        of_this_log=of_this_log,
        live=of_this_log and not has_expired(consumer, age_ms, expiry_ms),
        table_files=consumer.table_files,
    )


def forget_consumer(path: str, name: str, **options: Unpack[SourceKeywords]) -> None:
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
    root = open_log(settings, fail_fast=True).root
    of_all = ConsumerObject(root, name, is_of_all=True)
    forgotten = [ConsumerObject(log, name).key for log in _logs(settings).values()]
    if settings.sequencers == ALL:
        forgotten.insert(0, of_all.key)
    elif read(of_all) is not None:
        raise OptionError(
            f"the consumer {name} reads all logs under {root.url}, and would hold this one at its "
            'beginning: forget it in all of them, with sequencers="*"'
        )
    for begin in range(0, len(forgotten), KEYS_OF_DELETE):
        root.store.delete_many(forgotten[begin : begin + KEYS_OF_DELETE])
