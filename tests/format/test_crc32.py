"""The CRC-32 of the format is zlib's with each library that computes it."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st
from isal.isal_zlib import crc32, crc32_combine


@given(st.binary(), st.binary(), st.integers(0, 2**32 - 1))
def test_the_crc_of_parts_equals_zlibs(first: bytes, second: bytes, salt: int) -> None:
    whole = zlib.crc32(first + second)
    assert crc32(memoryview(first), salt) == zlib.crc32(first, salt)
    assert crc32(second, crc32(first)) == whole
    assert crc32_combine(zlib.crc32(first), zlib.crc32(second), len(second)) == whole


def test_the_crc_of_large_parts_equals_zlibs() -> None:
    length = 3 * 2**30 + 5
    assert crc32_combine(crc32(b"front"), zeros(length), length) == zeros(length, crc32(b"front"))


def zeros(length: int, crc: int = 0) -> int:
    part = bytes(2**26)
    for begin in range(0, length, len(part)):
        crc = crc32(part[: length - begin], crc)
    return crc
