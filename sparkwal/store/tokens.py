"""A cloud's token of this process, which is renewed before it ends."""

import os
import threading
import time
from collections.abc import Callable
from weakref import WeakSet

from sparkwal.store.concealing import conceal

# A token is renewed so many seconds before it ends.
_EARLY = 300


class Token:
    """The token of this process.

    Args:
        new: gets a token, and the time of its end in seconds since 1970.
    """

    def __init__(self, new: Callable[[], tuple[str, float]]) -> None:
        self._new = new
        self.forget_parent()
        _tokens.add(self)

    def forget_parent(self) -> None:
        """Begin without a token: a thread of the parent of a fork may hold the lock."""
        self._lock = threading.Lock()
        self._text, self._until = "", 0.0

    def forget(self) -> None:
        """Let the next request get a new token, because the store refused this one."""
        self._until = 0.0

    def text(self) -> str:
        """The token. Raises the errors of `new`."""
        with self._lock:
            if time.time() > self._until - _EARLY:
                self._text, self._until = self._new()
                conceal([self._text])
            return self._text


_tokens: WeakSet[Token] = WeakSet()


def _forget_parent() -> None:
    for token in _tokens:
        token.forget_parent()


os.register_at_fork(after_in_child=_forget_parent)
