"""Consumers as tests publish them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sparkwal.errors import InvalidLogError
from sparkwal.format.consumer_record import Consumer, LogPosition
from sparkwal.lifecycle.consumers import objects
from sparkwal.lifecycle.consumers.objects import ConsumerObject, with_lower
from sparkwal.lifecycle.consumers.readers import look_at_readers
from sparkwal.store.base import LogStore


def consumer(
    name: str, positions: int | Mapping[str, int], log_id: str = "log-1", **more: Any
) -> Consumer:
    """A consumer at a position of the log at the path, or at these positions of logs."""
    by_log = {"default": positions} if isinstance(positions, int) else positions
    logs = {log: LogPosition(log_id, position) for log, position in by_log.items()}
    return replace(Consumer(name, logs, 1_700_000_000_000, "here", "run-1"), **more)


def publish(log: LogStore, consumer: Consumer, *, is_of_all: bool = False) -> None:
    objects.publish(ConsumerObject(log, consumer.name, is_of_all), consumer)


def join(log: LogStore, consumer: Consumer, *, is_of_all: bool = False) -> dict[str, int]:
    """Register a consumer. A lower position that was published under its name stays in force.

    Returns:
        The position at which it may begin in each log.
    """

    def change(published: Consumer | None) -> Consumer:
        return with_lower(consumer, published, consumer.logs) if published else consumer

    starts = {name: own.position for name, own in consumer.logs.items()}
    return objects.join(ConsumerObject(log, consumer.name, is_of_all), starts, change)


def bounds(
    wanted: Sequence[tuple[LogStore, str, int]], expiry_ms: int | None
) -> list[int | InvalidLogError]:
    """The highest floors, at most the wanted ones, that pass no live consumer."""
    return look_at_readers([log for log, _, _ in wanted]).bounds(wanted, expiry_ms)


def bound(log: LogStore, log_id: str, floor: int, expiry_ms: int | None) -> int:
    (found,) = bounds([(log, log_id, floor)], expiry_ms)
    if isinstance(found, InvalidLogError):
        raise found
    return found


def consumers_and_ages(log: LogStore, log_id: str = "") -> list[tuple[Consumer, int]]:
    (found,) = look_at_readers([log]).with_ages([(log, log_id)])
    if isinstance(found, InvalidLogError):
        raise found
    return found
