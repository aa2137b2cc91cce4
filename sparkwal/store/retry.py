"""A `Store` that retries transient failures with backoff, and sends late requests twice."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sparkwal import events
from sparkwal.errors import OptionError, SparkWalError, StoreUnavailableError
from sparkwal.store.base import (
    NotFound,
    Page,
    Refusal,
    Store,
    Transient,
    Unfinished,
    UnfinishedPage,
    Upload,
)
from sparkwal.store.config import RetryPolicy
from sparkwal.store.hedge import Call, Pace, Request

if TYPE_CHECKING:
    from sparkwal.store.s3_get import SentObject

R = TypeVar("R")


@dataclass(eq=False, repr=False)
class RetryingStore:
    """Decorates any store. Its own failures are final: never a `Transient`.

    Every method raises StoreUnavailableError once the attempts are used up (its `maybe_applied`
    says whether a write may be there all the same), and OptionError for what no attempt would mend.

    Args:
        store: makes one attempt per call.
        rng: a number in [0, 1).
        fail_fast: do not retry what reached no server (a wrong endpoint) before a first answer.
        pace: this process's for the store, whose attempts then run in any thread; None: no hedging.
        served: the kinds of requests (operation, folder of the key) that the store has served.
    """

    store: Store
    policy: RetryPolicy
    _: KW_ONLY
    sleep: Callable[[float], None] = time.sleep
    rng: Callable[[], float] = random.random
    fail_fast: bool = False
    parts_in_flight: int = 1
    pace: Callable[[], Pace] | None = None
    served: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        store = self.store
        self.url = store.url
        self.identity = store.identity
        self.concurrency = store.concurrency
        # Counted by appending: an upload's parts have threads of their own.
        self._repeats: list[None] = []

    @property
    def retries(self) -> int:
        return len(self._repeats)

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Create the object. False may mean: created by an attempt whose reply was lost or late."""
        put, size = self.store.put_if_absent, len(body)
        return self.attempt("put", key, put, key, body, size=size, writes=True)

    def put(self, key: str, body: bytes) -> None:
        """Sent once: its late twin would overwrite a newer value."""
        self.attempt("put", key, self.store.put, key, body, writes=True)

    def get(self, key: str) -> bytes:
        return self.attempt("get", key, self.store.get, key, size=0)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self.attempt("get", key, self.store.get_range, key, offset, length, size=length)

    def send_range(self, key: str, offset: int, length: int) -> Ahead | None:
        """Send a `get_range` now; None where this thread would have to wait for that."""
        # Of a store of which one thread can have many requests on their way.
        send = getattr(self.store, "send_range", None)
        sent = send and send(key, offset, length)
        return sent and Ahead(self, sent, key, offset, length)

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        return self.attempt("list", prefix, self.store.list, prefix, limit, after, size=0)

    def delete(self, key: str) -> None:
        self.attempt("delete", key, self.store.delete, key)

    def delete_many(self, keys: Sequence[str], etags: Sequence[str] = ()) -> None:
        """All are sent again while any of them fails in passing."""
        if keys:
            self.attempt("delete", keys[0], self.store.delete_many, keys, etags)

    def age_ms(self, key: str) -> int:
        return self.attempt("get", key, self.store.age_ms, key, size=0)

    def upload(self, key: str) -> RetryingUpload:
        """Each of its requests is repeated on its own. A part that comes twice replaces itself."""
        inner = self.attempt("upload", key, self.store.upload, key)
        return RetryingUpload(self, inner, key, self.parts_in_flight)

    def unfinished(self, prefix: str, after: str = "", limit: int = 1000) -> UnfinishedPage:
        return self.attempt("list", prefix, self.store.unfinished, prefix, after, limit, size=0)

    def discard(self, upload: Unfinished) -> None:
        self.attempt("abort", upload.key, self.store.discard, upload)

    def attempt(
        self,
        operation: str,
        key: str,
        request: Callable[..., R],
        *given: Any,
        size: int | None = None,
        writes: bool = False,
        stopped: Callable[[], bool] = lambda: False,
    ) -> R:
        """Run `request` until it answers, the attempts are used up, or `stopped`. `size` is about
        how many bytes go or come; None where it may not be sent twice."""
        attempt = 0
        maybe_applied = False
        kind = operation, key.rpartition("/")[0]
        call: Call[R] | None = None
        while True:
            attempt += 1
            try:
                if size is None or self.pace is None:
                    result = request(*given)
                else:
                    if call is None:
                        now = Request(self.pace(), operation, key, size)
                        call = Call(partial(request, *given), now)
                    else:
                        call.again()
                    result = call.result()
            except NotFound:
                self.fail_fast = False
                self.served.add(kind)
                raise
            except Transient as failure:
                fault = failure
                if not fault.unreachable:
                    self.fail_fast = False
                    maybe_applied = maybe_applied or writes
                elif self.fail_fast:
                    raise StoreUnavailableError(
                        f"nothing answers at {self.url} ({fault.reason}); check the option "
                        "endpoint and the network"
                    ) from None
            except StoreUnavailableError as error:
                error.maybe_applied |= maybe_applied
                raise
            except OptionError as error:
                is_last = attempt > self.policy.max_retry_attempts or stopped()
                passes = isinstance(error, Refusal) and kind in self.served and not is_last
                if not passes and not maybe_applied:
                    raise
                if not passes:
                    # An attempt before may be stored: "nothing was written" could be false.
                    raise StoreUnavailableError(
                        f"{operation} of {key} at {self.url}: an attempt got no answer, and the "
                        f"next one was refused: {error}",
                        maybe_applied=True,
                    ) from None
                fault = Transient(str(error))
            else:
                self.fail_fast = False
                self.served.add(kind)
                return result
            if attempt > self.policy.max_retry_attempts or stopped():
                raise StoreUnavailableError(
                    f"{operation} of {key} at {self.url} failed after {attempt} "
                    f"attempt{'s' if attempt > 1 else ''}; the last one: {fault.reason}. "
                    "Run it again once the store answers",
                    maybe_applied=maybe_applied,
                ) from None
            delay = self.policy.delay(attempt, self.rng, fault.retry_after)
            events.emit(events.Retried(operation, key, attempt, round(delay * 1000), fault.reason))
            self._repeats.append(None)
            self.sleep(delay)


class Ahead:
    """A GET that is sent before its reply is needed. Whatever goes wrong with it, the store makes
    it once more: with all attempts, and with its errors."""

    def __init__(
        self, store: RetryingStore, sent: SentObject, key: str, offset: int, length: int
    ) -> None:
        self._store = store
        self._sent = sent
        self._asked = (key, offset, length)
        self._process = os.getpid()
        self._now = Request(store.pace(), "get", key, length) if store.pace is not None else None

    def result(self) -> bytes:
        """The bytes. Raises as `get_range`."""
        try:
            # Two processes would share the reply.
            found = self._answer() if os.getpid() == self._process else None
        except Transient as failure:
            events.emit(events.Retried("get", self._asked[0], 1, 0, failure.reason))
            found = None
        finally:
            self._sent.close()
        return self._store.get_range(*self._asked) if found is None else found

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


class RetryingUpload:
    """Sends parts in the background, at most `in_flight` at once, each with its own retries. One
    thread calls it; those parts and the one being handed over are in memory."""

    def __init__(self, store: RetryingStore, upload: Upload, key: str, in_flight: int) -> None:
        self._store = store
        self._upload = upload
        self._key = key
        self._in_flight = in_flight
        self._pool = ThreadPoolExecutor(in_flight, thread_name_prefix="sparkwal-part")
        # Those on their way; one that failed stays, and fails each later call.
        self._parts: set[Future[None]] = set()
        self._stopped = False

    def part(self, number: int, offset: int, body: bytes) -> None:
        self._wait(0 if len(self._parts) < self._in_flight else None, FIRST_COMPLETED)
        sent = self._pool.submit(
            self._store.attempt,
            "part",
            self._key,
            self._upload.part,
            number,
            offset,
            body,
            size=len(body),
            stopped=lambda: self._stopped,
        )
        self._parts.add(sent)

    def complete(self) -> bool:
        """False may mean: it is there, and ours."""
        self._wait(None, FIRST_EXCEPTION)
        self._pool.shutdown()
        return self._store.attempt(
            "complete", self._key, self._upload.complete, size=0, writes=True
        )

    def abort(self) -> None:
        """Never raises for the store: an event reports parts that remain."""
        self._stopped = True
        # A part that arrives after the abort would stay in the store, unseen and paid for.
        self._pool.shutdown(cancel_futures=True)
        try:
            self._store.attempt("abort", self._key, self._upload.abort)
        except SparkWalError as error:
            events.emit(events.UploadLeftBehind(key=self._key, reason=str(error)))

    def _wait(self, seconds: float | None, until: str) -> None:
        """Raises what a part that ended raised."""
        ended, others = wait(self._parts, seconds, until)
        for each in ended:
            each.result()
        self._parts = others
