"""The CRC-32 of joined pieces."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from sparkwal.format.arrowfile import combine


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_the_checksum_of_two_pieces_is_that_of_the_whole(first: bytes, second: bytes) -> None:
    assert combine(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


@given(st.lists(st.binary(max_size=50), max_size=10))
def test_any_number_of_pieces_can_be_joined_from_the_left(pieces: list[bytes]) -> None:
    crc = 0
    for piece in pieces:
        crc = combine(crc, zlib.crc32(piece), len(piece))
    assert crc == zlib.crc32(b"".join(pieces))


@given(st.binary(max_size=50), st.integers(2**20, 2**24))
def test_long_pieces_cost_no_reading(first: bytes, length: int) -> None:
    second = bytes(length)
    assert combine(zlib.crc32(first), zlib.crc32(second), length) == zlib.crc32(first + second)
