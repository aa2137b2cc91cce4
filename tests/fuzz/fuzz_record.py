"""Coverage-guided fuzzing of everything that decodes an object of the log.

`python -m tests.fuzz.fuzz_record -runs=200000 [CORPUS]`: the arguments are libFuzzer's.
For any bytes, decoding raises InvalidLogError or gives the encoded header; memory stays
bounded; no other error escapes.
"""

from __future__ import annotations

import resource
import sys

import atheris

with atheris.instrument_imports(include=["sparkwal"]):
    from sparkwal.errors import InvalidLogError
    from sparkwal.format import arrowfile, keys, schema
    from sparkwal.format.header import (
        CRC_KEY,
        HEADER_KEY,
        SCHEMA_KEY,
        DataHeader,
        crc_hex,
        from_metadata,
        to_json,
    )
    from sparkwal.protocol.slots import SlotRecord
    from sparkwal.reading.rows import pieces_of, read_pieces
    from sparkwal.store.base import LogStore
    from sparkwal.testing.memory import MemoryStore

from tests.fuzz.samples import samples

# Well above what the interpreter and Arrow need, far below what a lying length could ask.
MEMORY = 3 * 2**30


def decode(data: bytes) -> None:
    """Decode as readers do: the front, the header, the rows after it."""
    try:
        opened = arrowfile.open_front(data, "fuzz")
    except InvalidLogError:
        return
    # Encoding an accepted header gives the same bytes.
    again = to_json(opened.header)
    checked = {
        HEADER_KEY: again,
        CRC_KEY: crc_hex(again),
        SCHEMA_KEY: opened.spark_schema.encode(),
    }
    assert from_metadata(checked, "again")[0] == opened.header
    if isinstance(opened.header, DataHeader):
        return
    store = MemoryStore()
    store.objects[keys.key("", opened.header.number)] = data
    found = SlotRecord(opened.header, opened.spark_schema, opened.body)
    target = schema.to_arrow(opened.spark_schema)
    log = LogStore(store, "")
    for piece in pieces_of(log, found):
        if piece.length > len(data):
            continue
        try:
            for _ in read_pieces(log, [piece], target):
                pass
        except InvalidLogError:
            return


def rows(data: bytes) -> None:
    """Decode bytes as frames, as if their CRC had been right."""
    try:
        for _ in arrowfile.read_frames(data, _SCHEMA, "fuzz"):
            pass
    except InvalidLogError:
        return


_SCHEMA = schema.normalize(
    {"type": "struct", "fields": [{"name": "v", "type": "long", "nullable": True, "metadata": {}}]}
)


def header(data: bytes) -> None:
    """Decode bytes as a header whose CRC is right: past the checksum, into the checks."""
    fields = {
        HEADER_KEY: data,
        CRC_KEY: crc_hex(data),
        SCHEMA_KEY: b"",
    }
    try:
        from_metadata(fields, "fuzz")
    except InvalidLogError:
        return


def one_input(data: bytes) -> None:
    kind, body = data[:1], data[1:]
    {b"h": header, b"r": rows}.get(kind, decode)(body)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    if "--seeds" in sys.argv:
        folder = sys.argv[sys.argv.index("--seeds") + 1]
        for number, sample in enumerate(samples()):
            with open(f"{folder}/{number}", "wb") as file:
                file.write(sample)
        return
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
