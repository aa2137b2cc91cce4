"""CRC-32 of joined pieces from the CRCs of the pieces, without reading them again.

The method is zlib's crc32_combine: appending n zero bytes to a message multiplies its CRC by x^(8n)
modulo the CRC polynomial over GF(2).
"""

from __future__ import annotations

from functools import lru_cache

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31


def _multiply(a: int, b: int) -> int:
    """a · b modulo the polynomial, bit-reflected."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


@lru_cache(maxsize=1024)
def _shift(length: int) -> int:
    """x^(8 · length) modulo the polynomial, by repeated squaring."""
    result, power = _ONE, 1 << 23  # 1 and x^8
    while length:
        if length & 1:
            result = _multiply(result, power)
        power = _multiply(power, power)
        length >>= 1
    return result


def combine(first: int, second: int, second_length: int) -> int:
    """CRC-32 of A + B from crc32(A), crc32(B) and len(B)."""
    return _multiply(_shift(second_length), first) ^ second
