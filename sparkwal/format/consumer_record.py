"""The published position of a reader: a line of JSON in the store, and its CRC-32.

A reader of one log publishes one position, a reader of all logs under a path a map of positions.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format import keys, limits, versions
from sparkwal.format.checked import Moment, Whole, parse, plain, prepare, read, to_json
from sparkwal.format.header import crc_hex


@dataclass(frozen=True)
class Consumer:
    """One reader of one log.

    Attributes:
        name: the last part of its key.
        log_id: the id of the log. A log that was recreated at the same path has another id.
        position: the next position that it will read. It needs no record below.
        timestamp_ms: the time by the reader's clock, for people.
        host: the reader's machine, for people.
        run_id: a random id of the reader's run. Another id shows that two readers use one name.
        expires_ms: for a lease, the duration from its last write.
    """

    name: str
    log_id: str
    position: Whole
    timestamp_ms: Moment
    host: str
    run_id: str
    expires_ms: Whole | None = None


@dataclass(frozen=True)
class LogPosition:
    """The next position that a reader will read of one log, and the id of that log."""

    log_id: str
    position: Whole


@dataclass(frozen=True)
class ConsumerOfAll:
    """One reader of all logs under a path, or a lease for some of them.

    Attributes:
        name: the last part of its key, without the suffix.
        logs: how far it is, by the names of the logs.
        timestamp_ms, host, run_id, expires_ms: as for `Consumer`.
    """

    name: str
    logs: Mapping[str, LogPosition]
    timestamp_ms: Moment
    host: str
    run_id: str
    expires_ms: Whole | None = None

    def in_log(self, sequencer: str, log_id: str) -> Consumer | None:
        """The reader as a consumer of one log, or None if it is a lease without that log."""
        own = self.logs.get(sequencer)
        if own is None or own.log_id != log_id:
            if self.expires_ms is not None:
                return None
            # SAFETY(unseen-logs-held) §10: a consumer of all logs holds those that it has not seen
            own = LogPosition(log_id, 0)
        return Consumer(
            self.name,
            own.log_id,
            own.position,
            self.timestamp_ms,
            self.host,
            self.run_id,
            self.expires_ms,
        )


prepare(Consumer, LogPosition, ConsumerOfAll)


def encode(consumer: Consumer | ConsumerOfAll) -> bytes:
    """The bytes of a consumer's object.

    Raises:
        OptionError: they are more than readers take.
    """
    text = to_json(versions.CONSUMER, plain(consumer))
    body = text + b"\n" + crc_hex(text) + b"\n"
    if isinstance(consumer, ConsumerOfAll) and len(body) > limits.CONSUMER_OF_ALL:
        raise OptionError(
            f"the positions of {len(consumer.logs)} logs take {len(body)} bytes; "
            f"{limits.CONSUMER_OF_ALL} are read: divide the logs among several paths"
        )
    return body


def decode(body: bytes, location: str) -> Consumer:
    """Decode and check a consumer of one log.

    Raises:
        InvalidLogError: the text is not intact, or a field is wrong.
    """
    consumer = read(Consumer, _parsed(body, location), location)
    _check_position(consumer.position, location)
    return consumer


def decode_of_all(body: bytes, location: str) -> ConsumerOfAll:
    """Decode and check a consumer of all logs under a path.

    Raises:
        InvalidLogError: the text is not intact, or a field is wrong.
    """
    consumer = read(ConsumerOfAll, _parsed(body, location), location)
    for name, log in consumer.logs.items():
        if not keys.is_sequencer(name):
            raise InvalidLogError(f"{location}: {name[:80]!r} is no name of a log")
        _check_position(log.position, location)
    return consumer


def _parsed(body: bytes, location: str) -> dict[str, object]:
    text, _, crc = body.partition(b"\n")
    if crc != crc_hex(text) + b"\n":
        raise InvalidLogError(
            f"{location}: this is no intact consumer: its second line is not the CRC-32 of its "
            "first"
        )
    return parse(text, location, versions.CONSUMER)


def _check_position(position: int, location: str) -> None:
    if position > keys.MOST_POSITIONS:
        raise InvalidLogError(f"{location}: no log has so many positions")
