"""How far one reader of a log has come: a line of JSON beside the log, and its CRC-32."""

from dataclasses import dataclass

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.format.checked import Moment, Whole, parse, plain, prepare, read, to_json
from sparkwal.format.header import crc_hex


@dataclass(frozen=True)
class Consumer:
    """One reader of one log (`log_id`; a log recreated at the same path is another).

    Attributes:
        name: the last part of its key.
        position: the next it will read; it needs nothing below.
        timestamp_ms: when it published it, by its own clock; for people, as `host`.
        run_id: drawn by each of its runs; another one's shows that two use one name.
        expires_ms: of a lease, how long after it was written it counts.
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


def decode(body: bytes, where: str) -> Consumer:
    """A consumer. Raises InvalidLogError naming `where` and what was expected."""
    text, _, crc = body.partition(b"\n")
    if crc != crc_hex(text) + b"\n":
        raise InvalidLogError(
            f"{where}: this is no intact consumer: its second line is not the CRC-32 of its first"
        )
    consumer = read(Consumer, parse(text, where, "consumer"), where)
    if consumer.position > keys.MOST_POSITIONS:
        raise InvalidLogError(f"{where}: no log has so many positions")
    return consumer
