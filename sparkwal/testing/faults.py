"""The faults that a proxy injects into requests, decided by rules and a seed."""

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


# Compared by identity, because `times` counts each rule separately.
@dataclass(frozen=True, eq=False)
class Fault:
    """A rule. For each request, the first rule that matches and fires counts.

    Args:
        action: "lost_reply" forwards the request, then closes the connection without an answer.
            "reset" breaks the connection in the middle of the request's body, and does not forward
            it. "error" answers `status` and does not forward the request. "error_after" forwards
            it, then answers `status`. "delay" only waits. "stall" forwards it, then waits.
            "truncate" cuts the body of a GET in half.
        kind: the kind of the requests, e.g. "PUT"; by default all kinds.
        key_contains: a part of the requests' keys (for a LIST, of its prefix).
        probability: the share of matching requests. The proxy's seed and the request decide.
        times: the most times that the rule fires.
        status: the status of the actions "error" and "error_after".
        retry_after: the seconds in a Retry-After header of such an answer.
        seconds: the wait before the action; for "stall", the wait after it.
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
        """The headers and S3's body for an answer of "error" or "error_after"."""
        retry_after = [] if self.retry_after is None else [("Retry-After", str(self.retry_after))]
        code = _CODES.get(self.status, "InternalError")
        body = f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
        return [("Content-Type", "application/xml"), *retry_after], body


class Draws:
    """Chooses the rule for each request, and counts the injected faults. It is not thread-safe."""

    def __init__(self, seed: int) -> None:
        self.injected: Counter[str] = Counter()
        self._seed = seed
        self._fired: Counter[Fault] = Counter()
        self._seen: Counter[str] = Counter()

    def pick(self, faults: Iterable[Fault], kind: str, key: str, part: str) -> Fault | None:
        """The first rule that matches this request and fires, or None."""
        identity = f"{kind}/{key}/{part}"
        self._seen[identity] += 1
        for index, fault in enumerate(list(faults)):
            if fault.kind not in (None, kind) or (fault.key_contains or "") not in key:
                continue
            if fault.action == "truncate" and kind != "GET":
                continue
            if fault.times is not None and self._fired[fault] >= fault.times:
                continue
            if fault.probability < 1:
                draw = f"{self._seed}/{index}/{identity}/{self._seen[identity]}"
                if random.Random(draw).random() >= fault.probability:
                    continue
            self._fired[fault] += 1
            self.injected[fault.action] += 1
            return fault
        return None
