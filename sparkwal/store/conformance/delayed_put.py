"""A PUT whose last byte is held back: everything else of it has been sent already."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

from sparkwal.store.base import NotFound, Transient
from sparkwal.store.s3 import S3Store
from sparkwal.store.s3_errors import KeyTaken


class _DelayedBody(BytesIO):
    """A body that calls `wait` before its last byte, once it is sent.

    The signature reads a body too; `sending` is set when that is over.
    """

    def __init__(self, body: bytes, wait: Callable[[], None]) -> None:
        super().__init__(body)
        self._wait, self._size = wait, len(body)
        self.sending = False

    def __len__(self) -> int:
        return self._size

    def read(self, size: int | None = -1) -> bytes:
        left = self._size - self.tell()
        wanted = left if size is None or size < 0 else min(size, left)
        if self.sending and left > 1:
            wanted = min(wanted, left - 1)
        elif self.sending and left == 1:
            self._wait()
        return super().read(wanted)


def delayed_put(store: S3Store, key: str, body: bytes, wait: Callable[[], None]) -> bool:
    """As `store.put_if_absent`, with `wait` called when only the last byte is not yet sent."""
    try:
        with store.request(key) as client:
            client.meta.events.register(
                "before-send.s3.PutObject", _sending, unique_id="sparkwal-delayed"
            )
            sent = {**store.sent(key, body), "Body": _DelayedBody(body, wait)}
            client.put_object(**sent, IfNoneMatch="*")
    except KeyTaken:
        return False
    except NotFound:
        raise Transient("404 to a PUT") from None
    return True


def _sending(request: Any, **_: object) -> None:
    if isinstance(request.body, _DelayedBody):
        request.body.sending = True
