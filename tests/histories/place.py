"""The store of a history: ministack for S3, or Azurite for Azure."""

from __future__ import annotations

from sparkwal.testing.servers import Server, log_options, make_bucket, start_ministack
from tests.store import azurite

BUCKET = "histories"


def start(*, on_azure: bool) -> tuple[Server, str]:
    """A running store, and the path of a new container or bucket in it."""
    if on_azure:
        server = azurite.start_azurite()
        return server, f"az://{azurite.new_container(server.url)}"
    server = start_ministack()
    make_bucket(server.url, BUCKET)
    return server, f"s3://{BUCKET}"


def options_of(path: str, url: str, *, hedge: bool = False) -> dict[str, str]:
    """The options of a log at `path`, whose store or a proxy of it is at `url`."""
    if path.startswith("az:"):
        return {**azurite.options(url), "hedge": str(hedge).lower()}
    return log_options(url, hedge=hedge)
