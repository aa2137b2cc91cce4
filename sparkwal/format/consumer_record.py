"""The published position of a reader: a line of JSON in the store, and its CRC-32."""

from dataclasses import dataclass

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
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


prepare(Consumer)


def encode(consumer: Consumer) -> bytes:
    text = to_json(plain(consumer))
    return text + b"\n" + crc_hex(text) + b"\n"


def decode(body: bytes, location: str) -> Consumer:
    """Decode and check a consumer.

    Raises:
        InvalidLogError: the text is not intact, or a field is wrong.
    """
    text, _, crc = body.partition(b"\n")
    if crc != crc_hex(text) + b"\n":
        raise InvalidLogError(
            f"{location}: this is no intact consumer: its second line is not the CRC-32 of its "
            "first"
        )
    consumer = read(Consumer, parse(text, location, "consumer"), location)
    if consumer.position > keys.MOST_POSITIONS:
        raise InvalidLogError(f"{location}: no log has so many positions")
    return consumer
