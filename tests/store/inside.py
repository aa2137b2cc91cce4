"""What tests ask the stores that no method shows: only this module reads private names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sparkwal.store import s3_client, s3_get, threads
from sparkwal.store.s3 import S3Store


def forget_clients() -> None:
    """Let the next store make a client, which has checked nothing of its store yet."""
    s3_client._clients.clear()


def clients() -> int:
    return len(s3_client._clients)


def forget_gets() -> None:
    """Let each client's next GET be its first one, which botocore makes."""
    s3_get._forms.clear()


@contextmanager
def first_gets() -> Iterator[None]:
    """The same for the GETs within."""
    known = s3_get._forms.copy()
    forget_gets()
    try:
        yield
    finally:
        s3_get._forms.update(known)


def form(store: S3Store, key: str) -> Any:
    """How `s3_get` makes a GET of this store by itself; None if botocore makes them all."""
    with store.request(key) as client:
        return s3_get._forms[client][store.bucket]


def reply_in_botocore() -> Any:
    """The reply that botocore reads in this thread, or None."""
    return s3_get._botocore_call.reply


def take_task() -> None:
    """Run the next task as a thread does that ended its task just now."""
    threads._idle.put(None)
    threads._tasks.get()()


def has_idle_thread() -> bool:
    return not threads._idle.empty()
