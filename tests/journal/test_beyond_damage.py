"""Entries behind the first invalid entry of a journal."""

from __future__ import annotations

import zlib
from dataclasses import replace

from sparkwal.journal import segment
from sparkwal.journal.files import make_segment, segment_name
from sparkwal.journal.scanning import scan_folder
from sparkwal.journal.segment import VERSION, Header, Scan, entry
from tests.journal.disk import MemoryFolder
from tests.journal.stand import SMALL, content, fill, open_journal, segments
from tests.journal.test_damage import flip, places


def test_entries_beyond_the_damage_are_read_once_and_not_a_block_for_each() -> None:
    folder = MemoryFolder()
    settings = replace(SMALL, segment_bytes=2**24, max_bytes=2**26, slots=2**17)
    run = open_journal(folder, settings=settings)
    body = content(0, 100)
    for _ in range(40_000):
        run.journal.write(body)
    run.journal.close()
    (name,) = segments(folder)
    hurt = flip(folder, name, 300, 1)
    size = len(hurt.bytes_of(name))
    read = 0
    reader = type(folder.read(name))
    read_at = reader.read_at

    def counting(self: object, offset: int, length: int) -> bytes:
        nonlocal read
        got = read_at(self, offset, length)  # type: ignore[arg-type]
        read += len(got)
        return got

    reader.read_at = counting  # type: ignore[method-assign]
    try:
        contents = scan_folder(hurt, settings)
    finally:
        reader.read_at = read_at  # type: ignore[method-assign]
    assert contents.damage is not None
    assert contents.damage.complete == 39_999 - contents.damage.sequence
    assert read < 4 * size


def test_a_magic_that_lies_across_two_blocks_is_found() -> None:
    folder = MemoryFolder()
    header = Header(0, "log-1", "orders", 64, 0, 1234, b"", VERSION)
    begin = make_segment(folder, header)
    for shift in range(0, 64, 8):
        # An invalid place, then zeros up to an entry near the end of a block.
        gap = segment.BLOCK - 32 + shift
        one = b"".join(entry(1, b"content", zlib.crc32(b"content"), 1234))
        folder.put("x", folder.bytes_of(segment_name(0)) + b"garbage!" + bytes(gap - 8) + one)
        scan = Scan(folder.read("x"), begin, header)
        assert list(scan) == [] and scan.wrong
        assert [sequence for sequence, _ in scan.rest()] == [1], shift


def test_an_entry_within_the_content_of_another_is_none() -> None:
    folder = MemoryFolder()
    run = open_journal(folder)
    fill(run, [10])
    inner = b"".join(entry(50, b"content", zlib.crc32(b"content"), 99))
    run.append(inner)
    run.journal.close()
    (name,) = segments(folder)
    for sequence, at in ((1, places(folder, name)[1][1]), (0, 20)):
        run = open_journal(flip(folder, name, at, 0))
        assert run.lost == range(sequence, 2)
