"""The private names of botocore and urllib3 that `s3_get` uses, each in one function.

If botocore lacks a name, `s3_get` reads by its public `get_object`: the bytes are the same, and a
GET takes more CPU time. If urllib3 lacks a name, no request is sent ahead. `setup.cfg` bounds both
libraries to the versions that were tried.
"""

from __future__ import annotations

from queue import Empty
from typing import Any


def can_send(client: Any) -> bool:
    """Whether `send` works with this client."""
    session = getattr(getattr(client, "_endpoint", None), "http_session", None)
    return hasattr(session, "send")


def send(client: Any, request: Any) -> Any:
    """Send a request by a client's connections, proxies, certificates and timeouts."""
    return client._endpoint.http_session.send(request)


def can_sign(client: Any) -> bool:
    """Whether `sign` works with this client."""
    return hasattr(getattr(client, "_request_signer", None), "get_auth_instance")


def sign(client: Any, request: Any, service: str, region: str) -> None:
    """Sign a request by a client's credentials, and refresh these if they are about to expire."""
    signer = client._request_signer.get_auth_instance(service, region, "s3v4")
    signer.add_auth(request)


def connection_pool(client: Any, url: str) -> Any | None:
    """The pool of a client's connections to a host, or None behind a proxy or without a name."""
    try:
        session = client._endpoint.http_session
        if session._proxy_config.proxy_url_for(url):
            return None
        pool = session._get_connection_manager(url).connection_from_url(url)
    except AttributeError:
        return None
    return pool if hasattr(pool, "pool") and hasattr(pool, "_put_conn") else None


def take_open_connection(pool: Any) -> Any | None:
    """Take an idle connection out of a pool, or None if no connection is idle and open."""
    # urllib3 sets `pool` to None when it closes a pool.
    if not pool.pool:
        return None
    try:
        connection = pool.pool.get(block=False)
    except Empty:
        return None
    if not getattr(connection, "is_connected", False):
        put_back(pool, connection)
        return None
    return connection


def put_back(pool: Any, connection: Any) -> None:
    """Return a connection to its pool. Its last reply must be read completely."""
    pool._put_conn(connection)


def send_get(connection: Any, target: str, headers: Any) -> None:
    """Send a GET on a connection. The caller reads the reply."""
    connection.request("GET", target, headers=headers, preload_content=False, decode_content=False)
