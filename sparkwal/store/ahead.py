"""A GET that is sent before its reply is needed: one thread has many of them on their way."""

import os
from collections.abc import Callable

from sparkwal import events
from sparkwal.store.base import Sent, Transient
from sparkwal.store.hedge import Pace, kind_of


class Ahead:
    """A GET on its way. Whatever goes wrong with it, `again` makes it once more: with all attempts,
    and with its errors."""

    def __init__(
        self, sent: Sent, again: Callable[[], bytes], key: str, length: int, pace: Pace | None
    ) -> None:
        self._sent, self._again, self._key, self._pace = sent, again, key, pace
        self._process = os.getpid()
        if pace is not None:
            self._kind = kind_of("get", length)
            self._late, self._given_up = pace.begin(self._kind)
            self._began = pace.clock()

    def result(self) -> bytes:
        """The bytes. Raises as `again`."""
        try:
            # Two processes would share the reply.
            found = self._answer() if os.getpid() == self._process else None
        except Transient as failure:
            self._retried(failure.reason)
            found = None
        finally:
            self._sent.close()
        return self._again() if found is None else found

    def close(self) -> None:
        self._sent.close()

    def _answer(self) -> bytes | None:
        pace, is_waited_for = self._pace, False
        if pace is not None and not self._sent.wait(0):
            is_waited_for = True
            if not self._sent.wait(self._left(self._late)):
                if pace.may_repeat():
                    late = round(self._late * 1000)
                    events.emit(events.Hedged("get", self._key, after_ms=late))
                    return None
                if not self._sent.wait(self._left(self._given_up)):
                    pace.gave_up()
                    self._retried(f"no answer in {self._given_up:.1f} s")
                    return None
        found = self._sent.read(self._given_up if pace is not None else None)
        # An answer that was there already came at a time that nobody knows.
        if pace is not None and is_waited_for and found is not None:
            pace.answered(self._kind, pace.clock() - self._began)
        return found

    def _left(self, seconds: float) -> float:
        assert self._pace is not None
        return max(0.0, self._began + seconds - self._pace.clock())

    def _retried(self, why: str) -> None:
        events.emit(events.Retried("get", self._key, 1, 0, why))
