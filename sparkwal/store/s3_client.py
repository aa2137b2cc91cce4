"""Creates the S3 clients of this process, and changes botocore's defaults in them."""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sparkwal.store import s3_get, s3_replies
from sparkwal.store.concealing import conceal
from sparkwal.store.config import S3Config, check_keys, normal_endpoint

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


class _Client(NamedTuple):
    client: S3Client
    credentials: Any


# The most clients of a process. Each holds up to `max_pool_connections` connections.
MOST_CLIENTS = 8
_clients: dict[S3Config, _Client] = {}
_clients_lock = threading.Lock()


def _forget_parent() -> None:
    """Begin without clients after a fork.

    Two processes on one socket would read each other's replies. The lock is new too, because a
    thread of the parent may have held it.
    """
    global _clients_lock
    _clients_lock = threading.Lock()
    _clients.clear()


os.register_at_fork(after_in_child=_forget_parent)


def s3_client(config: S3Config) -> S3Client:
    """This process's client for `config`. A new client costs tens of milliseconds."""
    return _cached(config).client


def _cached(config: S3Config) -> _Client:
    cached = _clients.get(config)
    if cached is None:
        with _clients_lock:
            cached = _clients.get(config) or _new_client(config)
            _clients[config] = cached
            # Without a bound, a process that gets new keys every hour would collect clients.
            if len(_clients) > MOST_CLIENTS:
                # A thread that still uses the oldest client opens new connections.
                _clients.pop(next(iter(_clients))).client.close()
    return cached


def provider(config: S3Config) -> str | None:
    """The name of botocore's provider of the credentials, or None without credentials.

    For example "env" or "iam-role"; "explicit" means options. The name is no secret.
    """
    credentials = _cached(config).credentials
    return str(credentials.method) if credentials else None


def renew(config: S3Config, refused: S3Client) -> bool:
    """Read the credentials again after a server refused those of a client.

    Returns:
        True if `s3_client` now returns another client, with other credentials. False if the
        credentials are the same, or come from options.
    """
    if config.access_key_id is not None:
        return False
    with _clients_lock:
        cached = _clients.get(config)
        if cached is None or cached.client is not refused:
            # Another thread has replaced the client already.
            return True
        # This makes a new session: a session reads its files and environment only once.
        fresh = _new_client(config)
        if _frozen(fresh) == _frozen(cached):
            return False
        _clients[config] = fresh
        return True


def _frozen(cached: _Client) -> object:
    return cached.credentials and cached.credentials.get_frozen_credentials()


@lru_cache
def descriptions() -> Any:
    """botocore's descriptions of services. Each session would read them again: 0.07 s of CPU."""
    from botocore.session import Session

    return Session().get_component("data_loader")


def _new_client(config: S3Config) -> _Client:
    # botocore's session, because boto3's, which uses it, costs each worker of Spark 0.1 s more.
    from botocore.config import Config
    from botocore.credentials import Credentials
    from botocore.session import Session

    conceal(config.secrets)
    session = Session(profile=config.profile)
    session.register_component("data_loader", descriptions())
    if config.access_key_id is not None and config.secret_access_key is not None:
        session.set_credentials(
            config.access_key_id, config.secret_access_key, config.session_token
        )
    if config.endpoint is None:
        _check_configured_endpoint(session)
    region = config.region or session.get_config_variable("region")
    configured: Any = (session.get_config_variable("s3") or {}).get("addressing_style")
    style: Any = config.addressing_style or configured or ("path" if config.endpoint else None)
    client: Any = session.create_client(
        "s3",
        endpoint_url=config.endpoint,
        # Other stores ignore the region, but the signature needs one.
        region_name=region or ("us-east-1" if config.endpoint else None),
        config=Config(
            # Only RetryingStore retries: after a lost reply, a refusal may be caused by the write
            # itself.
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=config.max_pool_connections,
            connect_timeout=config.connect_timeout,
            read_timeout=config.read_timeout,
            tcp_keepalive=True,
            signature_version="s3v4",
            s3={"addressing_style": style} if style else {},
            # botocore's default checksums break older stores. The signature and the CRCs of the log
            # protect all bytes.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )
    conceal(config.secrets)
    client.meta.events.register_last("before-call.s3", _one_plain_request)
    client.meta.events.register_last("before-call.s3.DeleteObjects", _with_md5)
    # This pattern runs before botocore's own check of the body.
    client.meta.events.register_first("before-parse.*.*", _keys_and_sizes)
    s3_get.listen(client)
    s3_replies.listen(client)
    credentials = session.get_credentials()
    if type(credentials) is Credentials:
        # Keys from the environment or a file. The keys of a role are not read yet.
        check_keys(credentials.access_key, credentials.secret_key, credentials.token)
    return _Client(client, credentials)


def _check_configured_endpoint(session: Any) -> None:
    """Check the endpoint of the AWS configuration or environment, which botocore logs.

    Raises:
        OptionError: it is no http(s) URL, or has credentials, which are not shown.
    """
    from botocore.configprovider import ConfiguredEndpointProvider

    configured = ConfiguredEndpointProvider(
        full_config=session.full_config,
        scoped_config=session.get_scoped_config(),
        client_name="s3",
    ).provide()
    if configured is not None:
        normal_endpoint(configured)


def _one_plain_request(params: Any, context: Any, **_: object) -> None:
    # "Expect: 100-continue" would add a round trip to every commit.
    params["headers"].pop("Expect", None)
    # After a redirect, each client would look up the bucket's region. An error that names the
    # option is better.
    context.get("s3_redirect", {})["redirected"] = True


def _with_md5(params: Any, **_: object) -> None:
    # Older servers demand this header for a DeleteObjects. botocore sends a newer checksum only.
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()


_KEY, _SIZE = re.compile(rb"<Key>([^<]*)</Key>"), re.compile(rb"<Size>([0-9]+)</Size>")
_ETAG, _NEXT = re.compile(rb"<ETag>([^<]*)</ETag>"), re.compile(rb"</Contents>\s*<Contents>")


def _keys_and_sizes(
    operation_model: Any, response_dict: Any, customized_response_dict: Any, **others: object
) -> None:
    # botocore's parser takes more time for a LIST of 1000 keys than all other work of a recovery.
    # So the entries are cut out of the body and parsed here. botocore parses the other elements,
    # and the complete body if it has another form or broke off.
    if operation_model.name != "ListObjectsV2" or response_dict["status_code"] != 200:
        return
    head, _, remainder = response_dict["body"].partition(b"<Contents>")
    entries, _, tail = remainder.rpartition(b"</Contents>")
    # Entries follow each other directly.
    count = len(_NEXT.findall(entries)) + 1
    other_elements = head + tail
    keys, sizes, etags = (pattern.findall(entries) for pattern in (_KEY, _SIZE, _ETAG))
    etags = etags or [b""] * count
    # If the entries have another form, such as an XML prefix, the log must not seem empty.
    if not len(keys) == len(sizes) == len(etags) == count or b"Contents" in other_elements:
        return
    response_dict["body"] = other_elements
    customized_response_dict["Contents"] = [
        {"Key": html.unescape(key.decode()), "Size": int(size), "ETag": etag.decode()}
        for key, size, etag in zip(keys, sizes, etags, strict=True)
    ]
