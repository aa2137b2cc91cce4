"""A PUT whose last byte is held back: everything else of it has been sent already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkwal.store.base import NotFound, Transient
from sparkwal.store.s3 import S3Store
from sparkwal.store.s3_errors import KeyTaken


class HeldBody:
    """A body to read that calls `wait` before its last byte, once it is sent.

    The signature reads a body too; `sending` is set when that is over.
    """

    def __init__(self, body: bytes, wait: Callable[[], None]) -> None:
        self._body, self._wait, self._at = body, wait, 0
        self.sending = False

    def __len__(self) -> int:
        return len(self._body)

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, len(self._body))[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = len(self._body) - self._at
        wanted = left if size is None or size < 0 else min(size, left)
        if self.sending and left > 1:
            wanted = min(wanted, left - 1)
        elif self.sending and left == 1:
            self._wait()
        found = self._body[self._at : self._at + wanted]
        self._at += wanted
        return found


def put_held(store: S3Store, key: str, body: bytes, wait: Callable[[], None]) -> bool:
    """As `store.put_if_absent`, with `wait` called when only the last byte is not yet sent."""
    try:
        with store.request(key) as client:
            client.meta.events.register(
                "before-send.s3.PutObject", _sending, unique_id="sparkwal-held"
            )
            sent = {**store.sent(key, body), "Body": HeldBody(body, wait)}
            client.put_object(**sent, IfNoneMatch="*")
    except KeyTaken:
        return False
    except NotFound:
        raise Transient("404 to a PUT") from None
    return True


def _sending(request: Any, **_: object) -> None:
    if isinstance(request.body, HeldBody):
        request.body.sending = True
