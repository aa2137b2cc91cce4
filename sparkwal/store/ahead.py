"""A GET that is sent before its reply is needed: one thread has many of them on their way."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from sparkwal import events
from sparkwal.store.base import Transient
from sparkwal.store.hedge import Pace, Request

if TYPE_CHECKING:
    from sparkwal.store.s3_get import SentObject


class Ahead:
    """A GET on its way. Whatever goes wrong with it, `again` makes it once more: with all attempts,
    and with its errors."""

    def __init__(
        self, sent: SentObject, again: Callable[[], bytes], key: str, length: int, pace: Pace | None
    ) -> None:
        self._sent, self._again, self._key = sent, again, key
        self._process = os.getpid()
        self._now = Request(pace, "get", key, length) if pace is not None else None

    def result(self) -> bytes:
        """The bytes. Raises as `again`."""
        try:
            # Two processes would share the reply.
            found = self._answer() if os.getpid() == self._process else None
        except Transient as failure:
            events.emit(events.Retried("get", self._key, 1, 0, failure.reason))
            found = None
        finally:
            self._sent.close()
        return self._again() if found is None else found

    def close(self) -> None:
        self._sent.close()

    def _answer(self) -> bytes | None:
        now = self._now
        if now is None:
            return self._sent.read(None)
        is_there = self._sent.wait(0)
        while not (is_there or self._sent.wait(now.left())):
            if now.may_repeat():
                return None
        found = self._sent.read(now.given_up)
        # When an answer came that was there already, nobody knows.
        if found is not None and not is_there:
            now.answered()
        return found
