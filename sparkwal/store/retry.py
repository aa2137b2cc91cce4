"""A `Store` that retries failed requests with backoff, and hedges late ones."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, wait
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sparkwal import events
from sparkwal.errors import OptionError, SparkWalError, StoreUnavailableError
from sparkwal.store.base import (
    Folders,
    NotFound,
    Page,
    Refusal,
    Store,
    Tagged,
    Transient,
    Unfinished,
    UnfinishedPage,
    Upload,
)
from sparkwal.store.config import RetryPolicy
from sparkwal.store.hedge import Call, Pace, Request
from sparkwal.store.threads import run_in_thread

if TYPE_CHECKING:
    from sparkwal.store.s3_get import SentObject

R = TypeVar("R")


@dataclass(eq=False, repr=False)
class RetryingStore:
    """Adds retries to a store that makes one attempt per call.

    No method raises `Transient`. After the last attempt a method raises StoreUnavailableError,
    whose `maybe_applied` shows whether a write may have taken effect. If no other attempt can
    succeed, it raises OptionError.

    Args:
        rng: returns a random number in [0, 1).
        fail_fast: until the store has answered once, do not retry if no connection can be made:
            the endpoint may be wrong.
        pace: returns this process's Pace of the store. With it, requests are hedged and run in
            other threads.
        served: the kinds of requests (operation, folder of the key) that the store has served. A
            refusal of such a request may be temporary, so it is retried.
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
        # One item for each retry. Appending is atomic, and several threads of an upload retry.
        self._repeats: list[None] = []

    @property
    def retries(self) -> int:
        return len(self._repeats)

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Create the object.

        Returns:
            True if this call created it. False if the key is taken: perhaps by an attempt of this
            call whose reply was lost or late.
        """
        put, size = self.store.put_if_absent, len(body)
        return self.attempt("put", key, put, key, body, size=size, writes=True)

    def put(self, key: str, body: bytes) -> None:
        """Write the object. This is never hedged: a late attempt would overwrite a newer value."""
        self.attempt("put", key, self.store.put, key, body, writes=True)

    def replace(self, key: str, body: bytes, etag: str) -> bool:
        """Replace the object.

        Returns:
            True if this call replaced it. False if its ETag is another one: perhaps by an attempt
            of this call whose reply was lost.
        """
        return self.attempt("put", key, self.store.replace, key, body, etag, writes=True)

    def get_tagged(self, key: str, length: int | None = None) -> Tagged:
        return self.attempt("get", key, self.store.get_tagged, key, length, size=0)

    def get(self, key: str) -> bytes:
        return self.attempt("get", key, self.store.get, key, size=0)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self.attempt("get", key, self.store.get_range, key, offset, length, size=length)

    def send_range(self, key: str, offset: int, length: int) -> SentRange | None:
        """Send a `get_range` now and read its reply later.

        Returns:
            The request, or None if the store cannot do that, or this thread would have to wait.
        """
        send = getattr(self.store, "send_range", None)
        sent = send and send(key, offset, length)
        return sent and SentRange(self, sent, key, offset, length)

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        return self.attempt("list", prefix, self.store.list, prefix, limit, after, size=0)

    def folders(self, prefix: str, inside: str, after: str = "") -> Folders | None:
        list_folders = self.store.folders
        return self.attempt("list", prefix, list_folders, prefix, inside, after, size=0)

    def delete(self, key: str) -> None:
        self.attempt("delete", key, self.store.delete, key)

    def delete_many(self, keys: Sequence[str], etags: Sequence[str] = ()) -> Sequence[str]:
        """Remove the objects. If one key fails, all are sent again."""
        if not keys:
            return []
        return self.attempt("delete", keys[0], self.store.delete_many, keys, etags)

    def age_ms(self, key: str) -> int:
        return self.attempt("get", key, self.store.age_ms, key, size=0)

    def upload(self, key: str) -> RetryingUpload:
        """Begin an upload, whose requests are retried one by one. A repeated part does no harm."""
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
        function: Callable[..., R],
        *arguments: Any,
        size: int | None = None,
        writes: bool = False,
        stopped: Callable[[], bool] = lambda: False,
    ) -> R:
        """Call `function` until it returns, or the attempts are used up.

        Args:
            operation: the name of the request in errors and events.
            key: the key of the request in errors and events.
            function: makes one attempt.
            *arguments: the arguments of `function`.
            size: about the number of bytes to transfer. Without it the request is not hedged.
            writes: whether a failed attempt may have taken effect.
            stopped: whether to stop before the next attempt.

        Raises:
            NotFound: the object is missing.
            StoreUnavailableError: the last attempt failed.
            OptionError: the store refused the request, so no other attempt can succeed.
        """
        attempt = 0
        maybe_applied = False
        kind = operation, key.rpartition("/")[0]
        send = self._sender(operation, key, partial(function, *arguments), size)
        while True:
            attempt += 1
            try:
                result = send()
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
                if not isinstance(error, Refusal) or kind not in self.served or is_last:
                    raise self._refused(
                        operation, key, error, maybe_applied=maybe_applied
                    ) from None
                # The store has served such requests, so the refusal may be temporary.
                fault = Transient(str(error))
            else:
                self.fail_fast = False
                self.served.add(kind)
                return result
            if attempt > self.policy.max_retry_attempts or stopped():
                raise StoreUnavailableError(
                    f"{operation} of {key} at {self.url} failed after {_attempts(attempt)}; the "
                    f"last one: {fault.reason}. Run it again once the store answers",
                    maybe_applied=maybe_applied,
                ) from None
            self._wait(operation, key, attempt, fault)

    def _sender(
        self, operation: str, key: str, function: Callable[[], R], size: int | None
    ) -> Callable[[], R]:
        """Returns what makes an attempt. If attempts are hedged, one before may still answer."""
        if size is None or self.pace is None:
            return function
        pace = self.pace
        call: Call[R] | None = None

        def send() -> R:
            nonlocal call
            if call is None:
                call = Call(function, Request(pace(), operation, key, size))
            else:
                call.repeat()
            return call.result()

        return send

    def _wait(self, operation: str, key: str, attempt: int, fault: Transient) -> None:
        delay = self.policy.delay(attempt, self.rng, fault.retry_after)
        events.emit(events.Retried(operation, key, attempt, round(delay * 1000), fault.reason))
        self._repeats.append(None)
        self.sleep(delay)

    def _refused(
        self, operation: str, key: str, error: OptionError, *, maybe_applied: bool
    ) -> OptionError | StoreUnavailableError:
        """The error for a refused request.

        An OptionError claims that no bytes were written, but an earlier attempt may have taken
        effect.
        """
        if not maybe_applied:
            return error
        return StoreUnavailableError(
            f"{operation} of {key} at {self.url}: an attempt got no answer, and the next one was "
            f"refused: {error}",
            maybe_applied=True,
        )


def _attempts(count: int) -> str:
    return "1 attempt" if count == 1 else f"{count} attempts"


class SentRange:
    """A GET that was sent before its reply is needed.

    If it fails for any reason, the store sends it again as `get_range`, with all its attempts.
    """

    def __init__(
        self, store: RetryingStore, sent: SentObject, key: str, offset: int, length: int
    ) -> None:
        self._store = store
        self._sent = sent
        self._range = (key, offset, length)
        self._process = os.getpid()
        self._timing = Request(store.pace(), "get", key, length) if store.pace else None

    def result(self) -> bytes:
        """Read the reply, or send the request again. Raises the errors of `get_range`."""
        try:
            # In a forked child the reply belongs to the parent: both would read from one socket.
            body = self._read() if os.getpid() == self._process else None
        except Transient as failure:
            events.emit(events.Retried("get", self._range[0], 1, 0, failure.reason))
            body = None
        finally:
            self._sent.close()
        return self._store.get_range(*self._range) if body is None else body

    def close(self) -> None:
        """Give the request up, unless its reply was read."""
        self._sent.close()

    def _read(self) -> bytes | None:
        """The bytes, or None if the request must be sent again."""
        timing = self._timing
        if timing is None:
            return self._sent.read(None)
        is_early = self._sent.wait(0)
        while not (is_early or self._sent.wait(timing.seconds_left())):
            if timing.may_repeat():
                return None
        body = self._sent.read(timing.patience)
        # The arrival time of an early reply is unknown, so it does not count as a duration.
        if body is not None and not is_early:
            timing.answered()
        return body


class RetryingUpload:
    """Sends parts in the background, at most `in_flight` at once, each with its own retries.

    One thread calls the methods. The parts in flight and the next one are in memory.
    """

    def __init__(self, store: RetryingStore, upload: Upload, key: str, in_flight: int) -> None:
        self._store = store
        self._upload = upload
        self._key = key
        self._in_flight = in_flight
        # The parts in flight. A failed part stays here, so that each later call raises its error.
        self._parts: set[Future[None]] = set()
        self._stopped = False

    def part(self, number: int, offset: int, body: bytes) -> None:
        self._wait(0 if len(self._parts) < self._in_flight else None, FIRST_COMPLETED)
        sending = run_in_thread(
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
        self._parts.add(sending)

    def complete(self) -> bool:
        """Create the object, as `Upload.complete` does."""
        self._wait(None, FIRST_EXCEPTION)
        return self._store.attempt(
            "complete", self._key, self._upload.complete, size=0, writes=True
        )

    def abort(self) -> None:
        """Remove the stored parts. If the store fails, emit an event instead of raising."""
        self._stopped = True
        # Wait for the parts in flight: a part that arrives after the abort would stay in the store,
        # and cost money.
        wait(self._parts)
        try:
            self._store.attempt("abort", self._key, self._upload.abort)
        except SparkWalError as error:
            events.emit(events.UploadLeftBehind(key=self._key, reason=str(error)))

    def _wait(self, seconds: float | None, until: str) -> None:
        """Wait for parts, and raise the error of one that failed."""
        ended, unfinished = wait(self._parts, seconds, until)
        for part in ended:
            part.result()
        self._parts = unfinished
