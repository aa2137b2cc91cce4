"""The published positions of a reader: a line of JSON in the store, and its CRC-32.

In memory a consumer maps the logs that it reads to its positions. The object of a consumer of one
log holds that one position; the object of a consumer of all logs under a path holds the map.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys, versions
from sparkwal.format.checked import LATER, Moment, Whole, parse, plain, prepare, read, to_json
from sparkwal.format.header import crc_hex


@dataclass(frozen=True)
class LogPosition:
    """The next position that a reader will read of one log. It needs no record below.

    Attributes:
        log_id: the id of the log. A log that was recreated at the same path has another id.
        position: the position.
    """

    log_id: str
    position: Whole


@dataclass(frozen=True)
class Consumer:
    """One reader, or one lease.

    Attributes:
        name: the last part of its key, without the suffix.
        logs: how far it is, by the names of the logs.
        timestamp_ms: the time by the reader's clock, for people.
        host: the reader's machine, for people.
        run_id: a random id of the reader's run. Another id shows that two readers use one name.
        expires_ms: for a lease, the duration from its last write.
        table_files: the number of files of the table that it reads before the logs, for people.
    """

    name: str
    logs: Mapping[str, LogPosition]
    timestamp_ms: Moment
    host: str
    run_id: str
    expires_ms: Whole | None = None
    table_files: Annotated[Whole | None, LATER] = None

    def in_log(self, log: str, log_id: str) -> Consumer | None:
        """A consumer of all logs with its position in one, or None if it is a lease without it."""
        own = self.logs.get(log)
        if own is not None and own.log_id == log_id:
            return self
        if self.expires_ms is not None:
            return None
        # SAFETY(unseen-logs-held) §10: a consumer of all logs holds those that it has not seen
        return replace(self, logs={log: LogPosition(log_id, 0)})


prepare(Consumer, LogPosition)


def encode(consumer: Consumer, only: str | None) -> bytes:
    """The bytes of a consumer's object.

    Args:
        only: the name of the only log that it reads; None for a consumer of all logs.
    """
    fields = plain(consumer)
    if only is not None:
        del fields["logs"]
        fields = {"name": fields.pop("name"), **plain(consumer.logs[only]), **fields}
    text = to_json(versions.CONSUMER, fields)
    return text + b"\n" + crc_hex(text) + b"\n"


def decode(body: bytes, location: str, only: str | None) -> Consumer:
    """Decode and check a consumer.

    Args:
        location: the object's URL, for errors.
        only: see `encode`.

    Raises:
        InvalidLogError: the text is not intact, or a field is wrong.
    """
    text, _, crc = body.partition(b"\n")
    if crc != crc_hex(text) + b"\n":
        raise InvalidLogError(
            f"{location}: this is no intact consumer: its second line is not the CRC-32 of its "
            "first"
        )
    fields = parse(text, location, versions.CONSUMER)
    if only is not None:
        fields = {**fields, "logs": {only: fields}}
    consumer = read(Consumer, fields, location)
    for name, log in consumer.logs.items():
        if not keys.is_sequencer(name):
            raise InvalidLogError(f"{location}: {name[:80]!r} is no name of a log")
        if log.position > keys.MOST_POSITIONS:
            raise InvalidLogError(f"{location}: no log has so many positions")
    return consumer
