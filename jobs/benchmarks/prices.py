"""What S3 charges for requests."""

from __future__ import annotations

from collections.abc import Mapping

# S3 Standard, us-east-1, list prices, in dollars for 1,000 requests. DELETE is free.
WRITE = 0.005  # PUT, COPY, POST, LIST
READ = 0.0004  # GET, HEAD and all others

# The proxy's kinds; a COPY is one of PUT, a POST one of the uploads'.
PRICES: dict[str, float] = {
    "PUT": WRITE,
    "LIST": WRITE,
    "CREATE_MULTIPART": WRITE,
    "UPLOAD_PART": WRITE,
    "COMPLETE_MULTIPART": WRITE,
    "GET": READ,
    "HEAD": READ,
    "OTHER": READ,
    "DELETE": 0.0,
    "ABORT_MULTIPART": 0.0,
}


def dollars(requests: Mapping[str, float]) -> float:
    """What these requests cost, by kind."""
    return sum(PRICES[kind] * number / 1000 for kind, number in requests.items())
