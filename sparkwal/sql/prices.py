"""What S3 charges for requests and storage: the one place that knows."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

# Whose list prices the defaults are, and of when; no prices are looked up.
OF = "S3 Standard, us-east-1, list prices of 2025"
# AWS counts 2^30 bytes as a GB, and bills them by the hour: 730 make a month.
GB = 2**30
MONTH_MS = 730 * 3_600_000


@dataclass(frozen=True)
class Prices:
    """In dollars: of 1,000 requests, and of a GB for a month. `put` is of PUT, COPY, POST and each
    request of an upload in parts, `get` of GET, HEAD and all others."""

    put: float = 0.005
    list: float = 0.005
    get: float = 0.0004
    delete: float = 0.0
    storage: float = 0.023

    def of(self, requests: Mapping[str, float]) -> float:
        """What these requests cost; names as here, in any case."""
        each: dict[str, float] = asdict(self)
        return sum(each[name.lower()] * number / 1000 for name, number in requests.items())

    def of_storage(self, byte_ms: float) -> float:
        """What bytes cost that were stored for a time: the sum of their milliseconds."""
        return self.storage * byte_ms / GB / MONTH_MS


def changed(prices: Prices, given: Mapping[str, str]) -> Prices:
    """Raises ValueError for an unknown name or no number."""
    names = [each.name for each in fields(Prices)]
    for name, text in given.items():
        if name not in names:
            raise ValueError(f"there is no price {name!r}; there are {', '.join(names)}")
        try:
            price = float(text)
        except ValueError:
            price = -1.0
        if not 0 <= price < 1e9:
            raise ValueError(f"the price of {name} is no number of dollars from 0 on: {text!r}")
        prices = replace(prices, **{name: price})
    return prices
