"""What a lifecycle is run with: how to reach the log, when what is due, and when it is deleted."""

from __future__ import annotations

from dataclasses import dataclass

from sparkwal.errors import OptionError
from sparkwal.lifecycle.policy import Policy
from sparkwal.options.store import StoreOptions
from sparkwal.options.types import duration, option

_SMALLEST_GRACE_MS = 3_600_000


@dataclass(frozen=True)
class LifecycleOptions(StoreOptions, Policy):
    """Options of a lifecycle; a Policy too."""

    gc_grace_ms: int = option("gcGrace", duration, 86_400_000, "what the floor has passed is deleted so much later at the earliest, by the store's clock; at least 1h, and more than the planTtl of every writer plus 15min", "24h")  # fmt: skip  # noqa: E501
    consumer_expiry_ms: int | None = option("consumerExpiry", duration, None, "a consumer that has not published its position for so long holds nothing back any more", "never")  # fmt: skip  # noqa: E501

    def check(self) -> None:
        StoreOptions.check(self)
        Policy.check(self)
        # §10: the grace is at least an hour, longer than any claim
        if self.gc_grace_ms < _SMALLEST_GRACE_MS:
            raise OptionError(
                f"gcGrace is {self.gc_grace_ms} ms; at least 1h is needed: a request that is under "
                "way must not outlive what it was made from"
            )
        if self.consumer_expiry_ms == 0:
            raise OptionError("consumerExpiry must be greater than 0; leave it out for never")
