"""Which requests a proxy disturbs, and how: rules, drawn from a seed."""

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

Action = Literal["lost_reply", "reset", "error", "error_after", "delay", "stall", "truncate"]

_CODES = {
    403: "AccessDenied",
    409: "ConditionalRequestConflict",
    429: "TooManyRequests",
    503: "SlowDown",
}


@dataclass(frozen=True, eq=False)  # by identity: `times` counts each rule for itself
class Fault:
    """One rule; the first in the list that matches and fires decides.

    Args:
        action: "lost_reply" takes effect, then closes without an answer; "reset" breaks the
            connection halfway through the request's body, never forwarded; "error" answers
            `status`, never forwarded; "error_after" takes effect, then answers `status`; "delay"
            only waits; "stall" takes effect, then waits; "truncate" cuts the body of a GET in half.
        kind: only requests of this kind, e.g. "PUT".
        key_contains: only requests whose key (of a LIST: prefix) contains this.
        probability: how often it fires, decided by the proxy's seed and the request itself.
        times: how often it may fire at most.
        retry_after: seconds for a Retry-After header of an answer of `status`.
        seconds: wait this long first, whatever the action but "stall".
    """

    action: Action
    kind: str | None = None
    key_contains: str | None = None
    probability: float = 1.0
    times: int | None = None
    status: int = 500
    retry_after: int | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.action not in get_args(Action):
            raise ValueError(f"unknown action {self.action!r}, use one of {get_args(Action)}")

    def answer(self) -> tuple[list[tuple[str, str]], bytes]:
        """The headers and the body, as S3 writes it, of what "error" and "error_after" answer."""
        later = [] if self.retry_after is None else [("Retry-After", str(self.retry_after))]
        code = _CODES.get(self.status, "InternalError")
        body = f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
        return [("Content-Type", "application/xml"), *later], body


class Draws:
    """Which rule each request met so far, and what was injected. One caller at a time."""

    def __init__(self, seed: int) -> None:
        self.injected: Counter[str] = Counter()
        self._seed = seed
        self._fired: Counter[Fault] = Counter()
        self._seen: Counter[str] = Counter()

    def pick(self, faults: Iterable[Fault], kind: str, key: str, part: str) -> Fault | None:
        """The first rule that matches this request and fires, or None."""
        identity = f"{kind}/{key}/{part}"
        self._seen[identity] += 1
        for place, fault in enumerate(list(faults)):
            if fault.kind not in (None, kind) or (fault.key_contains or "") not in key:
                continue
            if fault.action == "truncate" and kind != "GET":
                continue
            if fault.times is not None and self._fired[fault] >= fault.times:
                continue
            if fault.probability < 1:
                draw = f"{self._seed}/{place}/{identity}/{self._seen[identity]}"
                if random.Random(draw).random() >= fault.probability:
                    continue
            self._fired[fault] += 1
            self.injected[fault.action] += 1
            return fault
        return None
